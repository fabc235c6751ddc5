// One collective call on all ranks, at random: its problem, its buffers, what they must hold afterwards.
//
// Thread safety: call() on the thread of its rank, everything else on the test's thread.
#pragma once

#include <memory>
#include <random>
#include <string>
#include <vector>

#include "support/algorithms.h"
#include "support/oracle.h"
#include "world.h"

namespace kolo::tests {

using Random = std::mt19937_64;

// Evenly distributed over [low, high].
inline std::size_t pick(Random& random, std::size_t low, std::size_t high) {
  return std::uniform_int_distribution<std::size_t>(low, high)(random);
}
inline bool chance(Random& random, double probability) { return std::bernoulli_distribution(probability)(random); }

enum class Data {
  kExact,  // sums and products come out the same in any order
  kRough,  // they do not
  // For types of 8 and 16 bits:
  kLarge,  // numbers next to the largest (or, of integers, the least): their sums are too large
  kTiny    // not many of the smallest steps above, or below, 0
};

// Those that calculate.
inline constexpr koloCollective_t kReducing[] = {koloCollectiveAllReduce, koloCollectiveReduce,
                                                 koloCollectiveReduceScatter};

// What a case is to be; the rest is chosen at random.
struct Wanted {
  koloCollective_t collective = koloCollectiveAllReduce;
  std::string algorithm;  // "": the planner's choice
  koloDataType_t datatype = koloFloat32;
  koloRedOp_t op = koloSum;
  Reduction reduction = Reduction::kPredefined;
  Data data = Data::kExact;
  bool vector = false;
  std::size_t count = 0;  // of one block; the most with vector
  double inWindow = 0.5;  // probability of each buffer
  double inPlace = 0.3;
  std::uint64_t dataSeed = 0;  // inputs depend on nothing else; 0: at random
};

class Case {
 public:
  // Places buffers and fills them. False if the windows of the world have no room left: reset `place` and try again.
  static std::unique_ptr<Case> make(const World& world, const Wanted& wanted, std::vector<std::size_t>& windowUsed,
                                    Random& random);

  // Makes the call as `rank`, with the algorithm forced. Notes the result and what executed it.
  void call(const World& world, int rank);
  // "" or what is wrong with the result.
  // before: the case that was called before it; null: unknown.
  std::string verify(const World& world, const Case* before) const;  // once
  std::string describe() const;
  const Problem& problem() const { return problem_; }
  // The recv buffers of a rank, block after block, as they are now.
  Bytes received(int rank) const;
  const Trace& traceOf(int rank) const { return sides_[static_cast<std::size_t>(rank)].trace; }
  const std::string& algorithm() const { return wanted_.algorithm; }

 private:
  // Memory around and under a buffer, as it was and as it must be.
  struct Region {
    std::unique_ptr<unsigned char[]> owned;  // null: in the window
    unsigned char* memory = nullptr;
    Bytes expected;
    // On a GPU: where it is there; what is above is its copy.
    std::unique_ptr<DeviceMemory> deviceOwned;
    unsigned char* device = nullptr;
  };
  struct Side {
    std::vector<Region> regions;  // one in place, two otherwise
    unsigned char* send = nullptr;
    unsigned char* recv = nullptr;
    bool inPlace = false;
    bool sendInWindow = false, recvInWindow = false;
    koloResult_t result = koloInternalError;
    std::string message;
    std::string planned;  // what koloCommGetPlan says is used through staging
    Trace trace;
  };
  void shape(const World& world, Random& random);
  void shapeVector(Random& random);
  bool placeRank(const World& world, int rank, std::vector<std::size_t>& windowUsed, Random& random);
  unsigned char* place(const World& world, int rank, std::size_t bytes, bool inWindow, Side& side,
                       std::vector<std::size_t>& windowUsed, Random& random);
  void fillInputs(std::uint64_t seed);
  void fillElement(std::uint8_t* at, std::size_t rank, std::size_t index, Random& random) const;
  void fillExtreme(std::uint8_t* at, std::size_t index, Random& random) const;
  void expect();
  void uploadAll(const World& world) const;
  void downloadAll(const World& world) const;
  unsigned char* onDevice(const Side& side, unsigned char* buffer) const;
  koloResult_t invoke(const World& world, int rank, koloRedOp_t op);
  koloResult_t invokeVector(const World& world, int rank, koloRedOp_t op);
  std::string compare(const Bytes& expected, const unsigned char* actual, bool bits) const;
  bool bitsMatter(const World& world) const;
  double tolerance() const;
  std::string wrongAlgorithm(const World& world, const Case* before) const;
  std::string wrongPairs(const World& world) const;

  Wanted wanted_;
  Problem problem_;
  std::vector<Side> sides_;
  std::vector<std::vector<Bytes>> outputs_;
};

// Calls the cases one after the other on all ranks, with nothing in between but what `delays` (in microseconds, at
// random up to this) adds on each; then verifies them all.
void runCases(World& world, const std::vector<std::unique_ptr<Case>>& cases, std::uint64_t seed, int delays = 0);

// A slot's bytes with the staging of WorldOptions' default.
inline constexpr std::size_t kSmallSlotBytes = 4096;
// A random datatype, operation, count and placement for an algorithm ("": any).
Wanted randomWanted(koloCollective_t collective, const std::string& algorithm, int ranks, Random& random);

}  // namespace kolo::tests
