// What can be made scarce in this program, which has its own operator new and pthread_create (scarce_test.cc). Not
// counted, and so never refused, is what C code takes by malloc: the C library, libsodium, hwloc, and the exceptions
// that say that there is no memory.
//
// Thread safety: all functions.
#pragma once

#include <atomic>
#include <limits>

namespace kolo::test {

constexpr long kNever = std::numeric_limits<long>::max();

// Of a kind of thing, all that are asked for in this process are counted. Those from `first_` to before `end_` are
// refused.
class Supply {
 public:
  bool gives() {
    const long number = asked_.fetch_add(1) + 1;
    return number < first_.load() || number >= end_.load();
  }
  long asked() const { return asked_; }
  // So many are refused, from the first on of those that are asked for from now on.
  void refuse(long first, long count) {
    const long now = asked_;
    end_ = count == kNever || first == kNever ? kNever : now + first + count;
    first_ = first == kNever ? kNever : now + first;
  }
  void give() { first_ = kNever; }

 private:
  std::atomic<long> asked_{0}, first_{kNever}, end_{kNever};
};
extern constinit Supply memorySupply, threadSupply;

// While this lives.
class Shortage {
 public:
  Shortage(Supply& supply, long first, long count) : supply_(supply) { supply_.refuse(first, count); }
  ~Shortage() { supply_.give(); }
  Shortage(const Shortage&) = delete;
  Shortage& operator=(const Shortage&) = delete;

 private:
  Supply& supply_;
};

}  // namespace kolo::test
