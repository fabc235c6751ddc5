#include "mpi/regions.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <span>

namespace kolo::mpi {
namespace {

// Calls action(first, count, offset in the packed bytes) for pieces whose bytes the MPI can count in an int.
template <class Action>
void inPieces(std::size_t size, MPI_Count first, MPI_Count count, const Action& action) {
  constexpr std::size_t kMost = std::size_t{1} << 30;
  const auto most = static_cast<MPI_Count>(std::max<std::size_t>(1, kMost / std::max<std::size_t>(1, size)));
  for (MPI_Count done = 0; done < count; done += most) {
    action(first + done, static_cast<int>(std::min(most, count - done)), static_cast<std::size_t>(done) * size);
  }
}

void check(int code) {
  if (code != MPI_SUCCESS) throw MpiError{code};
}

}  // namespace

void Elements::pack(MPI_Count first, MPI_Count count, unsigned char* to) const {
  if (bytes(count) == 0) return;
  if (form.isRun) {
    std::memcpy(to, at(first), bytes(count));
    return;
  }
  inPieces(form.size, first, count, [&](MPI_Count begin, int length, std::size_t offset) {
    int position = 0;
    check(PMPI_Pack(at(begin), length, datatype, to + offset, static_cast<int>(bytes(length)), &position, comm));
  });
}

void Elements::unpack(const unsigned char* from, MPI_Count first, MPI_Count count) const {
  if (bytes(count) == 0) return;
  if (form.isRun) {
    std::memcpy(at(first), from, bytes(count));
    return;
  }
  inPieces(form.size, first, count, [&](MPI_Count begin, int length, std::size_t offset) {
    int position = 0;
    check(PMPI_Unpack(from + offset, static_cast<int>(bytes(length)), &position, at(begin), length, datatype, comm));
  });
}

void KeptDatatype::keep(Elements& elements) {
  if (!elements.form.isRun) {
    check(PMPI_Type_dup(elements.datatype, &copy_));
    elements.datatype = copy_;
  }
  elements.comm = MPI_COMM_SELF;
}

Region::Region(const Elements& elements, MPI_Count count, bool isCopied) : elements_(elements), count_(count) {
  if (!elements.form.isRun || isCopied) copy_ = std::make_unique_for_overwrite<unsigned char[]>(bytes());
}

void Region::load(MPI_Count first, MPI_Count count) const {
  if (copy_) elements_.pack(first, count, copy_.get() + elements_.bytes(first));
}

void Region::store() const {
  if (copy_ && isStored_) elements_.unpack(copy_.get(), 0, count_);
}

// Kolo's displacements are not negative: they begin at the block that lies first. Those of empty blocks may be anything.
Blocks::Blocks(const Elements& elements, int ranks, const Numbers& counts, const Numbers& displs, Placing placing)
    : elements_(elements), ranks_(ranks), counts_(counts), displs_(displs) {
  place(placing);
}

Blocks::Blocks(std::vector<Elements> elements, const Numbers& counts, Placing placing)
    : elements_(elements.front()), own_(std::move(elements)), ranks_(static_cast<int>(own_.size())), counts_(counts),
      displs_(static_cast<const int*>(nullptr)) {
  place(placing);
}

void Blocks::place(Placing placing) {
  if (ranks_ > kFew) many_ = std::make_unique_for_overwrite<std::size_t[]>(2 * static_cast<std::size_t>(ranks_));
  std::size_t* const lengths = numbers();
  std::size_t* const begins = lengths + ranks_;   // addresses, at first
  constexpr std::uintptr_t kNone = UINTPTR_MAX;
  std::uintptr_t first = kNone;
  bool areRuns = true;
  for (int i = 0; i < ranks_; ++i) {
    const Elements& elements = elementsOf(i);
    const MPI_Count count = counts_[i];
    lengths[i] = elements.bytes(count);
    begins[i] = 0;
    if (count == 0) continue;
    begins[i] = reinterpret_cast<std::uintptr_t>(elements.buffer) + static_cast<std::uintptr_t>(firstOf(i) * elements.form.extent);
    first = std::min(first, begins[i]);
    areRuns = areRuns && elements.form.isRun;
  }
  data_ = first != kNone ? reinterpret_cast<unsigned char*>(first) : elements_.buffer;
  for (int i = 0; i < ranks_; ++i) begins[i] = counts_[i] != 0 ? begins[i] - first : 0;
  const bool fits = areRuns && (placing == Placing::kFree || (placing == Placing::kInARow && isInARow()));
  if (!fits) useOwnMemory();
}

bool Blocks::isInARow() const {
  std::size_t end = 0;
  for (int i = 0; i < ranks_; end += length(i++)) {
    if (length(i) != 0 && displs()[i] != end) return false;
  }
  return true;
}

void Blocks::useOwnMemory() {
  std::size_t end = 0;
  std::size_t* const begins = numbers() + ranks_;
  for (int i = 0; i < ranks_; end += length(i++)) begins[i] = end;
  copy_ = std::make_unique_for_overwrite<unsigned char[]>(end);
  data_ = copy_.get();
}

void Blocks::load() const {
  for (int i = 0; i < ranks_; ++i) load(i);
}

void Blocks::load(int i) const {
  if (copy_) elementsOf(i).pack(firstOf(i), counts_[i], block(i));
}

void Blocks::store() const {
  if (!copy_) return;
  for (int i = 0; i < ranks_; ++i) elementsOf(i).unpack(block(i), firstOf(i), counts_[i]);
}

void Blocks::outliveTheCall() {
  if (!copy_) return;
  const std::span all = own_.empty() ? std::span(&elements_, 1) : std::span(own_);
  datatypes_.resize(all.size());
  for (std::size_t i = 0; i < all.size(); ++i) datatypes_[i].keep(all[i]);
}

}  // namespace kolo::mpi
