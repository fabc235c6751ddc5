// The choice of an algorithm: a cost model of the machine in a few numbers, and the user's overrides (D9).
//
// Thread safety: everything here is a pure function or immutable once made.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "device/work.h"

namespace kolo::planner {

// What the model knows about the ranks' surroundings.
struct Machine {
  // An axis of a mesh.
  struct Axis {
    int ranks = 1;
    int hosts = 1;  // that a line along it spans; the most of all lines
  };

  int ranks = 1;
  bool mapped = true;           // all ranks reach each other's memory: zero-copy forms exist
  int cores = 1;                // for these ranks
  double hopUs = 0.12;          // one cache line from core to core
  double switchUs = 1.5;        // one rank's turn when there are more ranks than cores
  double cacheGBps = 12.0;      // a core's copy out of caches
  double memoryGBps = 6.0;      // a core's copy out of memory
  double cacheBytes = 8 << 20;  // beyond that, memory
  std::uint32_t slotBytes = 1 << 17;
  int hosts = 1;             // between which ranks reach each other by posted links
  int perHost = 0;           // ranks on each; 0: not equally many
  bool hostsInRows = true;   // the ranks of a host follow each other
  std::vector<Axis> mesh;    // of a communicator along several axes of a mesh; else empty
  double netHopUs = 20;      // a message between hosts, call to call
  double netPostUs = 3;      // a rank's time to send one
  double netGBps = 1.0;      // of a host, one way: of all NICs that its ranks use
  double netRankGBps = 1.0;  // of a rank, one way
  int netNics = 1;           // of a host
  int channels = 1;          // blocks of a GPU that may share an operation; on the host an operation has one thread
  double blockGBps = 0;      // on a GPU: one block's copy
  std::uint64_t packetBytes =
      0;               // on a GPU: that a block exchanges with another in packets at most; 0: nothing goes so
  double fenceUs = 0;  // on a GPU: a block's wait until what it has written is there
};

// Reductions that users made, in Query::reduction.
inline constexpr int kPreMulSum = koloNumOps, kUserReduction = koloNumOps + 1;

struct Query {
  device::Collective collective = device::Collective::kAllReduce;
  std::uint64_t bytes = 0;     // count of the API call times the element size: one block where blocks are divided
  std::uint64_t elements = 0;  // that count; for overrides, like `reduction`
  int reduction = koloSum;     // a predefined koloRedOp_t, kPreMulSum or kUserReduction
  bool vector = false;         // counts differ between ranks
  bool countsKnown = true;     // all ranks know all counts
  bool registered = false;     // for predictions only: ranks may differ, and so no choice depends on it
  // Fold all inputs at once, in rank order: reproducible, not commutative, or an average of 8- or 16-bit integers.
  bool inOrder = false;
  bool isList = false;       // of items that lie apart: no header carries them, no window holds them
  bool castsOutput = false;  // some arrive in another datatype than the transfer's
};

struct Choice {
  device::Algorithm algorithm = device::Algorithm::kCount;  // through staging
  device::Algorithm direct = device::Algorithm::kCount;     // if all buffers turn out to be in windows
  bool isDirectForced = false;                              // by an override
  // The algorithm of a barrier that follows a broadcast or a scatter, through that root. kCount: the barrier takes
  // `algorithm`, as after any other operation. Where ranks of one host share cores, the barrier so lets the root go on
  // first. In most programs the root has then sent its next data before the other ranks ask for it, and the other ranks
  // do not use up time slices to wait for it.
  device::Algorithm behindRoot = device::Algorithm::kCount;
  bool inPackets = false;  // through packets instead of slots
  double predictedUs = 0;  // of the one that query.registered selects
  // Of an algorithm of several steps: for the steps along the first axis of its grid, and along the others.
  device::Algorithm alongFirst = device::Algorithm::kCount, alongOthers = device::Algorithm::kCount;
};

// Whether an algorithm exists for a collective at all.
bool isWrittenFor(device::Algorithm algorithm, device::Collective collective);
// Whether an algorithm can serve a query.
bool fits(device::Algorithm algorithm, const Query& query, const Machine& machine);
// Predicted time; direct: of zero-copy. Else through slots or in packets, whichever takes less.
double predictUs(device::Algorithm algorithm, bool direct, const Query& query, const Machine& machine);
// Whether an algorithm's data is to go in packets, if it does not go by zero-copy: it fits, and takes less time.
bool goesInPackets(device::Algorithm algorithm, const Query& query, const Machine& machine);

// A range of numbers, both ends included.
struct Range {
  std::uint64_t low = 0, high = UINT64_MAX;
  bool contains(std::uint64_t number) const { return number >= low && number <= high; }
  bool isWhole() const { return low == 0 && high == UINT64_MAX; }
};

// One override, such as "all_reduce:ring@1M-/ranks=3-/op=sum" or "all_reduce:^ring".
struct Wish {
  device::Collective collective;
  device::Algorithm algorithm;
  bool forbid = false;
  // Its conditions.
  Range bytes, elements, ranks;
  std::uint32_t reductions = UINT32_MAX;                  // a bit for each Query::reduction
  bool whereRegistered = true, whereUnregistered = true;  // all buffers lie in windows, or not

  // registered: which of the query's two cases is planned.
  bool holds(const Query& query, const Machine& machine, bool registered) const {
    return collective == query.collective && bytes.contains(query.bytes) && elements.contains(query.elements) &&
           ranks.contains(static_cast<std::uint64_t>(machine.ranks)) && (reductions >> query.reduction & 1) != 0 &&
           (registered ? whereRegistered : whereUnregistered);
  }
};
// koloInvalidArgument says which part is wrong and what was expected.
Result<std::vector<Wish>> parseWishes(std::string_view text);

// The size that stands for the class of `bytes`, which is planned as one. A class lies between two powers of two; sizes
// that a header line carries are apart from longer ones.
std::uint64_t sizeForClassOf(std::uint64_t bytes);
// Whether overrides depend on exact sizes or reductions. If so, every call is planned by itself.
bool tellCallsApart(const std::vector<Wish>& wishes);

Choice choose(const Query& query, const Machine& machine, const std::vector<Wish>& wishes);
// Every candidate with its predicted time, and why the winner won: for the query's class of sizes, as in execution.
std::string explain(const Query& query, const Machine& machine, const std::vector<Wish>& wishes);

// How many blocks share an operation: one for each kLeastPartBytes of a rank's data.
inline constexpr std::uint64_t kLeastPartBytes = 8 << 10;  // a pack of 16 bytes for each thread of a block
int channelsFor(device::Algorithm algorithm, const Query& query, const Machine& machine);

// Scratch that an algorithm needs, in bytes; totalBytes is the whole input of this rank.
std::uint64_t scratchBytes(device::Algorithm algorithm, device::Collective collective, std::uint64_t totalBytes);

}  // namespace kolo::planner
