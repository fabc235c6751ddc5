#include "collectives/list_terms.h"

#include <fmt/ranges.h>

#include <bit>
#include <string>
#include <utility>

#include "base/datatypes.h"
#include "collectives/hash.h"

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

void addLengths(std::vector<Term>& terms, int axis, const std::vector<std::uint64_t>& lengths) {
  for (std::size_t rank = 0; rank < lengths.size(); ++rank)
    terms.push_back({lengths[rank], fmt::format("length {} of rank {} along axis {}", lengths[rank], rank, axis)});
}

// Adds the numbers that digestOf() takes of a reshard, each with its words.
void addRecut(std::vector<Term>& terms, const Item& item, const Recut& recut) {
  const auto add = [&](const char* name, int axis) {
    terms.push_back({static_cast<std::uint64_t>(axis), fmt::format("{} {}", name, axis)});
  };
  add("the array cut along axis", recut.from);
  add("the result cut along axis", recut.to);
  addLengths(terms, recut.from, recut.fromLengths);
  addLengths(terms, recut.to, recut.toLengths);
  const std::uint64_t others = otherElements(item, recut);
  terms.push_back({others, fmt::format("{} elements at each place of the axes", others)});
}

}  // namespace

std::uint64_t digestOf(const List& list) {
  std::uint64_t digest = list.items.size();
  for (const Item& item : list.items) {
    mix(digest, static_cast<std::uint64_t>(item.transferType) | static_cast<std::uint64_t>(item.recv.datatype) << 8 |
                    std::uint64_t{std::bit_cast<std::uint32_t>(item.scale)} << 32);
    if (list.recut) {
      const Recut& recut = *list.recut;
      mix(digest, static_cast<std::uint64_t>(recut.from) << 32 | static_cast<std::uint64_t>(recut.to));
      for (const std::uint64_t length : recut.fromLengths) mix(digest, length);
      for (const std::uint64_t length : recut.toLengths) mix(digest, length);
      mix(digest, otherElements(item, recut));
      continue;
    }
    const Side& whole = wholeOf(list, item);
    mix(digest, rowsOf(whole));
    for (std::size_t block = 0; block < whole.extents.size(); ++block) mix(digest, whole.elementsOf(block));
  }
  return digest;
}

std::vector<Term> List::of(std::size_t number) const {
  const Item& item = items[number];
  const auto type = [](const char* name, koloDataType_t datatype) {
    return Term{static_cast<std::uint64_t>(datatype), fmt::format("{} {}", name, koloDataTypeName(datatype))};
  };
  std::vector<Term> terms{type("transfertype", item.transferType),
                          type("recvtype", item.recv.datatype),
                          {std::bit_cast<std::uint32_t>(item.scale), fmt::format("scale {}", item.scale)}};
  if (recut) {
    addRecut(terms, item, *recut);
    return terms;
  }
  const Side& whole = wholeOf(*this, item);
  if (whole.extents.size() == 1) {
    terms.push_back({whole.elementsOf(0), fmt::format("{} elements", whole.elementsOf(0))});
    return terms;
  }
  terms.push_back({rowsOf(whole), fmt::format("axis {} of an array of shape {}", whole.axis, shapeOf(whole))});
  for (std::size_t block = 0; block < whole.extents.size(); ++block) {
    const std::uint64_t elements = whole.elementsOf(block);
    terms.push_back({elements, fmt::format("{} elements for rank {}", elements, block)});
  }
  return terms;
}

}  // namespace kolo::collectives
