// A device in time slices: one grid has it at a time, and gives it to the next when all of its blocks wait or have
// ended. Real slices end by the clock too; what counts here is how many a result takes at least.
//
// Thread safety: all functions.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <list>
#include <mutex>

namespace kolo::test::mock {

class Slices {
 public:
  struct Grid {
    unsigned alive = 0;       // blocks that have not ended
    unsigned running = 0;     // of them, those that do not wait
    std::uint64_t slice = 0;  // number of its slices
  };

  // Waits for the grid's first slice.
  void begin(Grid& grid, unsigned blocks) {
    std::unique_lock lock(mutex_);
    grid = {blocks, 0, 0};
    grids_.push_back(&grid);
    if (holder_ == nullptr) give(grids_.begin());
    changed_.wait(lock, [&] { return holder_ == &grid; });
  }
  // A block waits: returns in the grid's next slice.
  void wait(Grid& grid) {
    std::unique_lock lock(mutex_);
    const std::uint64_t slice = grid.slice;
    if (--grid.running == 0) next();
    changed_.wait(lock, [&] { return grid.slice != slice; });
  }
  void endBlock(Grid& grid) {
    const std::lock_guard lock(mutex_);
    --grid.alive;
    if (--grid.running == 0) next();
  }
  std::uint64_t taken() {
    const std::lock_guard lock(mutex_);
    return taken_;
  }

 private:
  using Place = std::list<Grid*>::iterator;

  // REQUIRES: the lock.
  void give(Place place) {
    if (holder_ != nullptr && holder_ != *place) ++taken_;
    holder_ = *place;
    holder_->running = holder_->alive;
    ++holder_->slice;
    changed_.notify_all();
  }
  void next() {
    Place place = grids_.begin();
    while (*place != holder_) ++place;
    const Place after = holder_->alive == 0 ? grids_.erase(place) : std::next(place);
    if (grids_.empty()) {
      holder_ = nullptr;
    } else {
      give(after == grids_.end() ? grids_.begin() : after);
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::list<Grid*> grids_;
  Grid* holder_ = nullptr;
  std::uint64_t taken_ = 0;
};

}  // namespace kolo::test::mock
