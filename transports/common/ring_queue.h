// First in, first out, in one piece of memory that is kept: what passes through in millions allocates nothing.
//
// Thread safety: one thread at a time.
#pragma once

#include <cstddef>
#include <utility>
#include <vector>

namespace kolo::common {

template <class T>
class RingQueue {
 public:
  bool empty() const { return count_ == 0; }
  std::size_t size() const { return count_; }
  // The one that is `index` places behind the oldest. REQUIRES: index < size().
  T& operator[](std::size_t index) { return places_[(first_ + index) & (places_.size() - 1)]; }
  const T& operator[](std::size_t index) const { return places_[(first_ + index) & (places_.size() - 1)]; }
  // The oldest. REQUIRES, as popFront(): not empty.
  T& front() { return places_[first_]; }
  const T& front() const { return places_[first_]; }
  void popFront() {
    first_ = (first_ + 1) & (places_.size() - 1);
    --count_;
  }

  // Returns where it is, until the next one is added or it is taken. REQUIRES: `item` is none of this queue's.
  T& pushBack(const T& item) {
    if (count_ == places_.size()) grow();
    T& place = (*this)[count_++];
    place = item;
    return place;
  }

  // All, the oldest first; none is left.
  std::vector<T> takeAll() {
    std::vector<T> all;
    all.reserve(count_);
    for (std::size_t i = 0; i < count_; ++i) all.push_back(std::move((*this)[i]));
    first_ = count_ = 0;
    return all;
  }

 private:
  void grow() {
    std::vector<T> larger(places_.empty() ? 8 : 2 * places_.size());  // powers of two
    for (std::size_t i = 0; i < count_; ++i) larger[i] = std::move((*this)[i]);
    places_ = std::move(larger);
    first_ = 0;
  }

  std::vector<T> places_;
  std::size_t first_ = 0, count_ = 0;
};

}  // namespace kolo::common
