// Rounds of random cases that all ranks draw alike.
#pragma once

#include <algorithm>
#include <chrono>
#include <numeric>

#include "layouts.h"

namespace kolo::test {

// As many rounds as are asked for, then more while there is time.
class Rounds {
 public:
  Rounds(int least, double seconds) : least_(least), end_(Clock::now() + std::chrono::duration<double>(seconds)) {}
  // Whether another round begins. Collective: rank 0 looks at its clock now and then, and tells the other ranks.
  bool next() {
    int more = 1;
    if (done_ >= least_ && (done_ - least_) % kAtOnce == 0) {
      more = Clock::now() < end_ ? 1 : 0;
      ITS_OWN(MPI_Bcast)(&more, 1, MPI_INT, 0, MPI_COMM_WORLD);
    }
    done_ += more;
    return more != 0;
  }
  int done() const { return done_; }

 private:
  using Clock = std::chrono::steady_clock;
  static constexpr int kAtOnce = 10;

  int least_, done_ = 0;
  std::chrono::time_point<Clock, std::chrono::duration<double>> end_;
};

// The numbers below `size` in a random order, all of them before one comes again.
class Deck {
 public:
  explicit Deck(int size) : cards_(static_cast<std::size_t>(size)), next_(cards_.size()) {
    std::iota(cards_.begin(), cards_.end(), 0);
  }
  int draw(Random& random) {
    if (next_ == cards_.size()) {
      std::shuffle(cards_.begin(), cards_.end(), random);
      next_ = 0;
    }
    return cards_[next_++];
  }

 private:
  std::vector<int> cards_;
  std::size_t next_;
};

}  // namespace kolo::test
