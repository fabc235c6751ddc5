#include <fmt/ranges.h>

#include <bit>
#include <string>
#include <utility>

#include "base/datatypes.h"
#include "collectives/hash.h"
#include "collectives/list.h"

namespace kolo::collectives {
namespace {

// The side of an item whose buffer holds the blocks of all ranks; the sending side if no buffer of the collective is
// divided. Both sides of an all-to-all hold all blocks: the sending one is taken, whose lengths are the same on all
// ranks.
const Side& wholeOf(const List& list, const Item& item) {
  const bool sends = device::isIn(list.collective, device::kSendsBlocks);
  return !sends && device::isIn(list.collective, device::kReceivesBlocks) ? item.recv : item.send;
}

// The number of times that the blocks follow each other in the whole array: the product of the lengths in front of the
// axis. An array that is cut along its first axis is the same as a buffer without axes. 1 where there are no elements.
std::uint64_t rowsOf(const Side& whole) {
  std::uint64_t elements = 0, rows = 1;
  for (std::size_t block = 0; block < whole.extents.size(); ++block) elements += whole.elementsOf(block);
  for (int d = 0; d < whole.axis && elements != 0; ++d) rows *= whole.shape[d];
  return rows;
}

std::uint64_t otherElements(const Item& item, const Recut& recut) {
  std::uint64_t others = 1;
  for (int d = 0; d < item.send.ndim; ++d) others *= d == recut.from || d == recut.to ? 1 : item.send.shape[d];
  return others;
}

std::string shapeOf(const Side& side) {
  std::vector<std::uint64_t> shape(side.shape, side.shape + side.ndim);
  for (const std::uint64_t extent : side.extents) shape[static_cast<std::size_t>(side.axis)] += extent;
  return fmt::format("({})", fmt::join(shape, ", "));
}

// Calls add(number, words) for each number of an item that all ranks have to say alike; words() puts it into words.
template <class Add>
void eachNumber(const List& list, const Item& item, Add&& add) {
  const auto addType = [&](const char* name, koloDataType_t datatype) {
    add(static_cast<std::uint64_t>(datatype), [=] { return fmt::format("{} {}", name, koloDataTypeName(datatype)); });
  };
  addType("transfertype", item.transferType);
  addType("recvtype", item.recv.datatype);
  add(std::bit_cast<std::uint32_t>(item.scale), [&] { return fmt::format("scale {}", item.scale); });
  if (list.recut) {
    const auto addCut = [&](const char* name, int axis, const std::vector<std::uint64_t>& lengths) {
      add(static_cast<std::uint64_t>(axis), [=] { return fmt::format("{} {}", name, axis); });
      for (std::size_t rank = 0; rank < lengths.size(); ++rank)
        add(lengths[rank], [=, length = lengths[rank]] {
          return fmt::format("length {} of rank {} along axis {}", length, rank, axis);
        });
    };
    addCut("the array cut along axis", list.recut->from, list.recut->fromLengths);
    addCut("the result cut along axis", list.recut->to, list.recut->toLengths);
    const std::uint64_t others = otherElements(item, *list.recut);
    add(others, [=] { return fmt::format("{} elements at each place of the axes", others); });
    return;
  }
  const Side& whole = wholeOf(list, item);
  const std::size_t blocks = whole.extents.size();
  if (blocks > 1) {
    add(rowsOf(whole), [&] { return fmt::format("axis {} of an array of shape {}", whole.axis, shapeOf(whole)); });
  }
  for (std::size_t block = 0; block < blocks; ++block) {
    const std::uint64_t elements = whole.elementsOf(block);
    add(elements,
        [=] { return fmt::format("{} elements{}", elements, blocks > 1 ? fmt::format(" for rank {}", block) : ""); });
  }
}

}  // namespace

std::uint64_t digestOf(const List& list) {
  std::uint64_t digest = list.items.size();
  for (const Item& item : list.items)
    eachNumber(list, item, [&](std::uint64_t number, const auto&) { mix(digest, number); });
  return digest;
}

std::vector<Term> List::of(std::size_t number) const {
  std::vector<Term> terms;
  eachNumber(*this, items[number], [&](std::uint64_t each, const auto& words) { terms.push_back({each, words()}); });
  return terms;
}

}  // namespace kolo::collectives
