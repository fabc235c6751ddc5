// What the ranks have to say alike of an operation that has many parts, in words: made only where they have not, to
// tell in which part, and in what of it, two ranks differ.
//
// Thread safety: a holder may ask it from any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace kolo {

// Two ranks agree if their keys are the same. text: "recvtype float32", as in "rank 1 gave recvtype float32".
struct Term {
  std::uint64_t key = 0;
  std::string text;
};

class Terms {
 public:
  virtual ~Terms() = default;
  virtual std::size_t parts() const = 0;
  // In the same order for each part.
  virtual std::vector<Term> of(std::size_t part) const = 0;

 protected:
  Terms() = default;
  Terms(const Terms&) = default;
  Terms(Terms&&) = default;
  Terms& operator=(const Terms&) = default;
  Terms& operator=(Terms&&) = default;
};

}  // namespace kolo
