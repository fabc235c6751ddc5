#include "mpi/regions.h"

#include <algorithm>
#include <cstdint>
#include <span>

namespace kolo::mpi {

void KeptDatatype::keep(Elements& elements) {
  if (!elements.form.isRun) {
    if (const int code = PMPI_Type_dup(elements.datatype, &copy_); code != MPI_SUCCESS) throw MpiError{code};
    elements.datatype = copy_;
  }
  elements.comm = MPI_COMM_SELF;
}

// Kolo's displacements are not negative: they begin at the block that lies first. The displacements of empty blocks may
// be anything.
Region::Region(const Elements& elements, int blocks, const Numbers& counts, const Numbers& displs, Placing placing)
    : elements_(elements), blocks_(blocks) {
  place(counts, displs, placing);
}

Region::Region(std::vector<Elements> elements, const Numbers& counts)
    : elements_(elements.front()), own_(std::move(elements)), blocks_(static_cast<int>(own_.size())) {
  place(counts, {}, Placing::kFree);
}

void Region::place(const Numbers& counts, const Numbers& displs, Placing placing) {
  if (blocks_ > kFew) many_ = std::make_unique_for_overwrite<std::size_t[]>(2 * static_cast<std::size_t>(blocks_));
  std::size_t* const lengths = numbers();
  std::size_t* const begins = lengths + blocks_;  // addresses, at first
  constexpr std::uintptr_t kNone = UINTPTR_MAX;
  std::uintptr_t first = kNone;
  bool areRuns = true;
  for (int i = 0; i < blocks_; ++i) {
    const Elements& elements = elementsOf(i);
    const MPI_Count count = counts[i], before = displs.isGiven() ? displs[i] : 0;
    lengths[i] = elements.bytes(count);
    begins[i] = 0;
    if (count == 0) continue;
    begins[i] =
        reinterpret_cast<std::uintptr_t>(elements.buffer) + static_cast<std::uintptr_t>(before * elements.form.extent);
    first = std::min(first, begins[i]);
    areRuns = areRuns && elements.form.isRun;
  }
  data_ = first != kNone ? reinterpret_cast<unsigned char*>(first) : elements_.buffer;
  for (int i = 0; i < blocks_; ++i) {
    begins[i] = counts[i] != 0 ? begins[i] - first : 0;
    bytes_ = std::max(bytes_, begins[i] + lengths[i]);
  }
  const bool fits = areRuns && (placing == Placing::kFree || (placing == Placing::kInARow && isInARow()));
  if (!fits) useOwnMemory();
}

bool Region::isInARow() const {
  std::size_t end = 0;
  for (int i = 0; i < blocks_; end += counts()[i++]) {
    if (counts()[i] != 0 && displs()[i] != end) return false;
  }
  return true;
}

void Region::useOwnMemory() {
  std::size_t end = 0;
  std::size_t* const begins = numbers() + blocks_;
  places_.reserve(static_cast<std::size_t>(blocks_));
  for (int i = 0; i < blocks_; end += counts()[i++]) {
    places_.push_back(block(i));
    begins[i] = end;
  }
  copy_ = std::make_unique_for_overwrite<unsigned char[]>(end);
  data_ = copy_.get();
  bytes_ = end;
}

bool Region::spans(const unsigned char* data, std::size_t bytes) const {
  const auto begin = reinterpret_cast<std::uintptr_t>(data_), other = reinterpret_cast<std::uintptr_t>(data);
  return bytes != 0 && bytes_ != 0 && other < begin + bytes_ && begin < other + bytes;
}

void Region::load() const {
  for (int i = 0; copy_ && i < blocks_; ++i) {
    pack(elementsOf(i), places_[static_cast<std::size_t>(i)], counts()[i], block(i));
  }
}

void Region::store() const {
  for (int i = 0; copy_ && isStored_ && i < blocks_; ++i) {
    unpack(elementsOf(i), block(i), counts()[i], places_[static_cast<std::size_t>(i)]);
  }
}

void Region::outliveTheCall() {
  if (!copy_ || !isStored_) return;
  const std::span all = own_.empty() ? std::span(&elements_, 1) : std::span(own_);
  datatypes_.resize(all.size());
  for (std::size_t i = 0; i < all.size(); ++i) datatypes_[i].keep(all[i]);
}

}  // namespace kolo::mpi
