// The program's buffers as Kolo takes them: bytes in a row. Data of datatypes with gaps, or in another order than the
// signature's, go through a copy, packed and unpacked by the MPI. Which ranks need one is each rank's own affair: the
// bytes that move are the same.
//
// Packing may throw MpiError.
#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include "mpi/datatypes.h"
#include "mpi/mpi_header.h"
#include "mpi/packing.h"

namespace kolo::mpi {

// An array of counts or displacements, in either of MPI's widths. It is not copied.
class Numbers {
 public:
  Numbers() = default;
  template <class Integer>
  Numbers(const Integer* values)
      : values_(values), isWide_(sizeof(Integer) == sizeof(MPI_Count)) {  // NOLINT: converting on purpose
    static_assert(sizeof(Integer) == sizeof(int) || sizeof(Integer) == sizeof(MPI_Count));
  }
  MPI_Count operator[](int i) const {
    return isWide_ ? static_cast<const MPI_Count*>(values_)[i] : static_cast<const int*>(values_)[i];
  }
  bool isGiven() const { return values_ != nullptr; }
  bool isSameArray(const Numbers& other) const { return values_ == other.values_; }

 private:
  const void* values_ = nullptr;
  bool isWide_ = false;
};

// A datatype that a program may free before its data are unpacked.
class KeptDatatype {
 public:
  KeptDatatype() = default;
  KeptDatatype(KeptDatatype&& other) noexcept : copy_(std::exchange(other.copy_, MPI_DATATYPE_NULL)) {}
  KeptDatatype& operator=(KeptDatatype&&) = delete;
  ~KeptDatatype() {
    if (copy_ != MPI_DATATYPE_NULL) PMPI_Type_free(&copy_);
  }
  // Lets `elements` have a copy, and no use for the communicator, which may be freed too.
  void keep(Elements& elements);

 private:
  MPI_Datatype copy_ = MPI_DATATYPE_NULL;
};

// A block of elements, or one for each rank. Where Kolo reads them, load() comes before; where it writes them, store()
// after. The program's arrays of counts, displacements and datatypes are read when the region is made, and never again:
// MPIs have read them when a nonblocking call returns, and programs reuse or free them then.
class Region {
 public:
  enum class Placing {
    kFree,    // where they are, if no copy is needed
    kInARow,  // one block after the other; where they are, if they are so there
    kCopied   // in memory of their own
  };
  // REQUIRES, here and below: no count is negative.
  Region(const Elements& elements, MPI_Count count, Placing placing = Placing::kFree)
      : elements_(elements), blocks_(1), data_(elements.buffer), bytes_(elements.bytes(count)) {
    few_[0] = bytes_;
    few_[1] = 0;
    if (!elements.form.isRun || placing == Placing::kCopied) useOwnMemory();
  }
  // At the program's displacements.
  Region(const Elements& elements, int blocks, const Numbers& counts, const Numbers& displs, Placing placing);
  // Elements of its own for each block, at least one, each block from its elements' buffer on.
  Region(std::vector<Elements> elements, const Numbers& counts);
  // It has pointers into itself.
  Region(const Region&) = delete;
  Region& operator=(const Region&) = delete;

  unsigned char* data() const { return data_; }
  const std::size_t* counts() const { return many_ ? many_.get() : few_.data(); }  // in bytes
  const std::size_t* displs() const { return counts() + blocks_; }                 // in bytes, from data() on
  std::size_t bytes() const { return bytes_; }  // from data() to the end of the block that ends last
  const Elements& elementsOf(int i) const { return own_.empty() ? elements_ : own_[static_cast<std::size_t>(i)]; }
  // Whether any of these bytes lie between data() and that end. In a gap of theirs a program may have what it likes,
  // and Kolo takes blocks for one buffer.
  bool spans(const unsigned char* data, std::size_t bytes) const;
  // They are to be in memory of their own. Before load().
  void copy() {
    if (!copy_) useOwnMemory();
  }
  void load() const;
  void store() const;
  // What it holds is not to be stored.
  void discard() { isStored_ = false; }
  // To be stored when the call is over in which it was made.
  void outliveTheCall();

 private:
  std::size_t* numbers() { return many_ ? many_.get() : few_.data(); }
  unsigned char* block(int i) const { return data_ + displs()[i]; }
  void place(const Numbers& counts, const Numbers& displs, Placing placing);
  bool isInARow() const;
  void useOwnMemory();

  Elements elements_;          // of all,
  std::vector<Elements> own_;  // or of each block; then there are no displacements
  int blocks_;
  bool isStored_ = true;
  unsigned char* data_ = nullptr;
  std::size_t bytes_ = 0;
  static constexpr int kFew = 8;
  // counts() and displs() of so many; to allocate them, or to clear them, costs as much as to move a few bytes.
  std::array<std::size_t, std::size_t{2} * kFew> few_;
  std::unique_ptr<std::size_t[]> many_;  // those of more
  std::unique_ptr<unsigned char[]> copy_;
  std::vector<unsigned char*> places_;  // where the program has the blocks, if they are copied
  std::vector<KeptDatatype> datatypes_;
};

}  // namespace kolo::mpi
