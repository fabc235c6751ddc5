// Every interleaving of a model's parties, tried one after the other.
//
// Thread safety: one thread for each object.
#pragma once

#include <cstddef>
#include <set>
#include <vector>

namespace kolo::tests {

// State: all that the parties and the memory between them know; copied, and ordered.
template <class State>
class Interleavings {
 public:
  // Whether some interleaving goes wrong, or comes to a standstill before isOver(state). eachStep(state, take) calls
  // take(next, isWrong) for each step that some party can take next.
  template <class IsOver, class EachStep>
  bool goWrong(const State& begin, const IsOver& isOver, const EachStep& eachStep) {
    std::vector<State> left = {begin};
    while (!left.empty()) {
      const State state = left.back();
      left.pop_back();
      if (!seen_.insert(state).second) continue;
      bool moved = false, wrong = false;
      eachStep(state, [&](const State& next, bool isWrong) {
        moved = true;
        wrong = wrong || isWrong;
        left.push_back(next);
      });
      if (wrong || (!moved && !isOver(state))) return true;
    }
    return false;
  }
  std::size_t states() const { return seen_.size(); }

 private:
  std::set<State> seen_;
};

}  // namespace kolo::tests
