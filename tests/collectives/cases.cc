#include "cases.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <catch2/catch.hpp>
#include <chrono>
#include <cmath>
#include <cstring>

#include "algorithms/catalogue.h"
#include "algorithms/direct.h"
#include "algorithms/names.h"
#include "collectives/copy_policy.h"
#include "comm/messages.h"
#include "support/collectives_table.h"

namespace kolo::tests {
namespace {

constexpr std::size_t kGuard = 96;  // bytes before and behind a buffer that nobody may touch
constexpr std::size_t kLineBytes = 40;

std::size_t bytesOf(const Problem& problem, std::size_t elements) {
  return elements * koloDataTypeSize(problem.datatype);
}

// The number of ranks of 0..n-1 whose value may differ from the neutral one, so that a float8 still holds the result.
std::size_t activeRanks(koloDataType_t datatype) {
  return datatype == koloFloat8e4m3 || datatype == koloFloat8e5m2 ? 8 : 64;
}

}  // namespace

Wanted randomWanted(koloCollective_t collective, const std::string& algorithm, int ranks, Random& random) {
  Wanted wanted;
  wanted.collective = collective;
  wanted.algorithm = algorithm;
  wanted.datatype = static_cast<koloDataType_t>(pick(random, 0, koloNumDatatypes - 1));
  do {
    wanted.op = static_cast<koloRedOp_t>(pick(random, 0, koloNumOps - 1));
  } while (koloRedOpIsDefined(wanted.op, wanted.datatype) == 0);
  const bool rough = wanted.datatype == koloFloat32 || wanted.datatype == koloFloat64 ||
                     wanted.datatype == koloFloat16 || wanted.datatype == koloBfloat16;
  if (rough && chance(random, 0.4)) wanted.data = Data::kRough;
  const std::size_t size = koloDataTypeSize(wanted.datatype);
  const bool divided = !test::isBarrier(collective) && test::rowOf(collective).isDivided();
  const std::size_t slot = kSmallSlotBytes / size, line = kLineBytes / size;
  // Around what a line and a slot hold; more than all slots of a pair at once.
  const std::size_t short_[] = {0, 1, 2, 3, line, line + 1, 17, 31, 64 / size + 1, 127, 257};
  const std::size_t long_[] = {slot - 1, slot, slot + 1, 2 * slot + 5, 4 * slot + 3, 9 * slot + 1, slot / 2};
  wanted.count = short_[pick(random, 0, std::size(short_) - 1)];
  if (chance(random, 0.45)) wanted.count = long_[pick(random, 0, std::size(long_) - 1)];
  if (divided && ranks > 4 && wanted.count > slot + 1) wanted.count = slot + 1;
  if (algorithm == "line" && wanted.count > line && chance(random, 0.8)) wanted.count = pick(random, 0, line);
  wanted.inWindow = chance(random, 0.3) ? 1 : chance(random, 0.4) ? 0 : 0.8;
  wanted.inPlace = chance(random, 0.5) ? 0.4 : chance(random, 0.5) ? 1 : 0;
  return wanted;
}

// -------------------------------------------------------------------- shapes

std::unique_ptr<Case> Case::make(const World& world, const Wanted& wanted, std::vector<std::size_t>& windowUsed,
                                 Random& random) {
  std::unique_ptr<Case> made(new Case);
  made->wanted_ = wanted;
  Problem& problem = made->problem_;
  problem.collective = wanted.collective;
  problem.datatype = wanted.datatype;
  problem.op = wanted.op;
  problem.reduction = wanted.reduction;
  problem.ranks = world.ranks();
  problem.root = static_cast<int>(pick(random, 0, static_cast<std::size_t>(world.ranks() - 1)));
  problem.vector = wanted.vector;
  for (int rank = 0; rank < world.ranks(); ++rank) {
    std::uint8_t scale[8] = {};  // as the datatype can hold it
    const bool rough = wanted.data == Data::kRough && isFloating(wanted.datatype);
    if (rough) encode(wanted.datatype, std::uniform_real_distribution<double>(0.8, 1.25)(random), scale);
    problem.scales.push_back(rough ? decode(wanted.datatype, scale) : static_cast<double>(pick(random, 1, 2)));
  }
  made->shape(world, random);
  made->sides_.resize(static_cast<std::size_t>(world.ranks()));
  for (int rank = 0; rank < world.ranks(); ++rank) {
    if (!made->placeRank(world, rank, windowUsed, random)) return nullptr;
  }
  made->fillInputs(wanted.dataSeed != 0 ? wanted.dataSeed : random());
  made->expect();
  if (world.isOnGpu()) made->uploadAll(world);
  return made;
}

void Case::shape(const World& world, Random& random) {
  const auto n = static_cast<std::size_t>(world.ranks());
  problem_.send.assign(n, {});
  problem_.recv.assign(n, {});
  if (problem_.vector) {
    shapeVector(random);
    return;
  }
  const std::size_t count = wanted_.count;
  const std::vector<Block> one = {{0, count}};
  std::vector<Block> all;
  for (std::size_t i = 0; i < n; ++i) all.push_back({i * count, count});
  if (test::isBarrier(problem_.collective)) return;  // it has no buffers
  const test::Collective& row = test::rowOf(problem_.collective);
  for (std::size_t rank = 0; rank < n; ++rank) {
    const bool isRoot = static_cast<int>(rank) == problem_.root;
    if (row.gives(isRoot)) problem_.send[rank] = row.sendDivided ? all : one;
    if (row.gets(isRoot)) problem_.recv[rank] = row.recvDivided ? all : one;
  }
}

// Random counts, many of them zero, with gaps between the blocks.
void Case::shapeVector(Random& random) {
  const std::size_t n = problem_.send.size();
  const auto counts = [&] {
    std::vector<std::size_t> result;
    for (std::size_t i = 0; i < n; ++i) result.push_back(chance(random, 0.25) ? 0 : pick(random, 0, wanted_.count));
    return result;
  };
  const bool gaps = chance(random, 0.6);
  const auto layOut = [&](const std::vector<std::size_t>& lengths) {
    std::vector<Block> blocks;
    std::size_t at = 0;
    for (const std::size_t length : lengths) {
      if (gaps) at += pick(random, 0, 5);
      blocks.push_back({at, length});
      at += length;
    }
    return blocks;
  };
  const auto root = static_cast<std::size_t>(problem_.root);
  if (problem_.collective == koloCollectiveAllToAll) {
    std::vector<std::vector<std::size_t>> lengths;
    for (std::size_t rank = 0; rank < n; ++rank) lengths.push_back(counts());
    for (std::size_t rank = 0; rank < n; ++rank) {
      std::vector<std::size_t> column;
      for (std::size_t from = 0; from < n; ++from) column.push_back(lengths[from][rank]);
      problem_.send[rank] = layOut(lengths[rank]);
      problem_.recv[rank] = layOut(column);
    }
    return;
  }
  const std::vector<Block> blocks = layOut(counts());
  for (std::size_t rank = 0; rank < n; ++rank) {
    const std::vector<Block> own = {{0, blocks[rank].count}};
    const test::Collective& row = test::rowOf(problem_.collective);
    if (row.gives(rank == root)) problem_.send[rank] = row.sendDivided ? blocks : own;
    if (row.gets(rank == root)) problem_.recv[rank] = row.recvDivided ? blocks : own;
  }
}

// ------------------------------------------------------------------- buffers

unsigned char* Case::place(const World& world, int rank, std::size_t bytes, bool inWindow, Side& side,
                           std::vector<std::size_t>& windowUsed, Random& random) {
  const std::size_t skew = chance(random, 0.5) ? pick(random, 0, 63) : 0;
  const std::size_t whole = bytes + 2 * kGuard + skew;
  Region region;
  if (inWindow) {
    std::size_t& used = windowUsed[static_cast<std::size_t>(rank)];
    used += pick(random, 0, 3) * 64;  // not the same offset on each rank
    if (used + whole > world.windowBytes()) return nullptr;
    region.memory = world.window(rank) + used;
    used += (whole + 63) / 64 * 64;
  } else {
    region.owned = std::make_unique<unsigned char[]>(whole);
    region.memory = region.owned.get();
  }
  if (world.isOnGpu() && inWindow) region.device = world.deviceWindow(rank) + (region.memory - world.window(rank));
  if (world.isOnGpu() && !inWindow) {
    region.deviceOwned = std::make_unique<DeviceMemory>(world.device(), whole);
    region.device = region.deviceOwned->data();
  }
  region.expected.resize(whole);
  for (std::size_t i = 0; i < whole; ++i) region.memory[i] = static_cast<unsigned char>(0xa5 ^ (i * 29));
  unsigned char* const buffer = region.memory + kGuard + skew;
  side.regions.push_back(std::move(region));
  return buffer;
}

bool Case::placeRank(const World& world, int rank, std::vector<std::size_t>& windowUsed, Random& random) {
  const auto at = static_cast<std::size_t>(rank);
  Side& side = sides_[at];
  const std::vector<Block>& send = problem_.send[at];
  const std::vector<Block>& recv = problem_.recv[at];
  const std::size_t sendBytes = bytesOf(problem_, Problem::extent(send));
  const std::size_t recvBytes = bytesOf(problem_, Problem::extent(recv));
  const bool both = !send.empty() && !recv.empty();
  const bool possible = both && !(problem_.collective == koloCollectiveAllToAll && problem_.vector) &&
                        !(problem_.vector && problem_.rooted());
  side.inPlace = possible && chance(random, wanted_.inPlace);
  side.sendInWindow = chance(random, wanted_.inWindow);
  side.recvInWindow = side.inPlace ? side.sendInWindow : chance(random, wanted_.inWindow);
  if (!side.inPlace) {
    side.send = place(world, rank, sendBytes, side.sendInWindow, side, windowUsed, random);
    side.recv = place(world, rank, recvBytes, side.recvInWindow, side, windowUsed, random);
    if (side.send == nullptr || side.recv == nullptr) return false;
    // What a rank does not use may be NULL.
    if (sendBytes == 0 && chance(random, 0.3)) side.send = nullptr;
    if (recvBytes == 0 && chance(random, 0.3)) side.recv = nullptr;
    return true;
  }
  unsigned char* const buffer =
      place(world, rank, std::max(sendBytes, recvBytes), side.sendInWindow, side, windowUsed, random);
  if (buffer == nullptr) return false;
  side.send = side.recv = buffer;
  const test::Collective& row = test::rowOf(problem_.collective);
  if (row.recvDivided && !row.sendDivided) side.send += bytesOf(problem_, recv[at].begin);
  if (row.sendDivided && !row.recvDivided) side.recv += bytesOf(problem_, send[at].begin);
  return true;
}

// The ranks' numbers have mostly the same sign. Tiny floats are more steps from 0 than rounding them may take away, but
// for one element of four.
void Case::fillExtreme(std::uint8_t* at, std::size_t index, Random& random) const {
  const koloDataType_t datatype = problem_.datatype;
  const bool isLarge = wanted_.data == Data::kLarge, isNegative = chance(random, 0.05) != (index % 3 == 0);
  auto steps = static_cast<double>(pick(random, 0, 3));
  if (isFloating(datatype)) {
    // Up to there each step is the smallest.
    const auto most = static_cast<std::size_t>(std::min(2 / epsilon(datatype), 100.0)) - 1;
    if (!isLarge && index % 4 != 0) steps = static_cast<double>(pick(random, most / 2, most));
    const double value = isLarge ? largest(datatype) - steps * stepAtLargest(datatype) : steps * smallest(datatype);
    encode(datatype, isNegative ? -value : value, at);
    return;
  }
  const int bits = static_cast<int>(8 * koloDataTypeSize(datatype)) - (isSigned(datatype) ? 1 : 0);
  const int most = (1 << bits) - 1, least = isSigned(datatype) ? -most - 1 : 0, from = static_cast<int>(steps);
  const int value = isLarge ? (isNegative ? least + from : most - from) : (isNegative && least < 0 ? -from : from);
  std::memcpy(at, &value, koloDataTypeSize(datatype));
}

void Case::fillElement(std::uint8_t* at, std::size_t rank, std::size_t index, Random& random) const {
  const koloDataType_t datatype = problem_.datatype;
  if (wanted_.data == Data::kLarge || wanted_.data == Data::kTiny) return fillExtreme(at, index, random);
  if (!isFloating(datatype) || !problem_.reduces() || problem_.reduction == Reduction::kUserXor) {
    for (std::size_t i = 0; i < koloDataTypeSize(datatype); i += 8) {
      const std::uint64_t drawn = random();
      std::memcpy(at + i, &drawn, std::min<std::size_t>(koloDataTypeSize(datatype) - i, 8));
    }
    if (datatype == koloBool && chance(random, 0.3)) *at = 0;
    if (problem_.op != koloSum && problem_.op != koloProd && chance(random, 0.3))
      std::memset(at, 0, koloDataTypeSize(datatype));
    return;
  }
  const auto n = static_cast<std::size_t>(problem_.ranks);
  const std::size_t part = partBytes(datatype);
  for (std::size_t offset = 0; offset < koloDataTypeSize(datatype); offset += part) {
    const bool active = (rank + index) % n < activeRanks(datatype);
    double value = 0;
    if (wanted_.data == Data::kRough) {
      value = std::uniform_real_distribution<double>(0.8, 1.25)(random);
      if (problem_.op != koloProd && chance(random, 0.5)) value = -value;
    } else if (problem_.op == koloProd) {
      value = active && (rank + index) % n < 5 ? 2 : 1;
      if (chance(random, 0.5)) value = -value;
    } else if (active) {
      const bool small = activeRanks(datatype) < 64 || problem_.reduction == Reduction::kPreMulSum;
      value = static_cast<double>(pick(random, 0, small ? 2 : 4)) - (small ? 1 : 2);
      if (problem_.reduction == Reduction::kPreMulSum && (rank + index) % n >= 4) value = 0;
    }
    encode(datatype, value, at + offset);
  }
}

void Case::fillInputs(std::uint64_t seed) {
  Random random(seed);
  for (std::size_t rank = 0; rank < sides_.size(); ++rank) {
    const std::size_t size = koloDataTypeSize(problem_.datatype);
    for (const Block& block : problem_.send[rank]) {
      for (std::size_t i = block.begin; i < block.begin + block.count; ++i) {
        fillElement(sides_[rank].send + i * size, rank, i, random);
      }
    }
  }
}

// The whole of every region as it must be afterwards: as it is, but for the recv blocks.
void Case::expect() {
  std::vector<const std::uint8_t*> inputs;
  for (const Side& side : sides_) inputs.push_back(side.send);
  outputs_ = expectedOutputs(problem_, inputs);
  for (std::size_t rank = 0; rank < sides_.size(); ++rank) {
    Side& side = sides_[rank];
    for (Region& region : side.regions) std::memcpy(region.expected.data(), region.memory, region.expected.size());
    Region& target = side.regions.back();
    for (std::size_t block = 0; block < problem_.recv[rank].size(); ++block) {
      const Bytes& output = outputs_[rank][block];
      if (output.empty()) continue;
      const unsigned char* const place = side.recv + bytesOf(problem_, problem_.recv[rank][block].begin);
      std::memcpy(target.expected.data() + (place - target.memory), output.data(), output.size());
    }
  }
}

// --------------------------------------------------------------------- calls

koloResult_t Case::invokeVector(const World& world, int rank, koloRedOp_t op) {
  const auto at = static_cast<std::size_t>(rank);
  const Side& side = sides_[at];
  const auto split = [](const std::vector<Block>& blocks, std::vector<size_t>& counts, std::vector<size_t>& displs) {
    for (const Block& block : blocks) {
      counts.push_back(block.count);
      displs.push_back(block.begin);
    }
  };
  std::vector<size_t> sendCounts, sendDispls, recvCounts, recvDispls;
  split(problem_.send[at], sendCounts, sendDispls);
  split(problem_.recv[at], recvCounts, recvDispls);
  const koloDataType_t type = problem_.datatype;
  const koloComm_t comm = world.comm(rank);
  switch (problem_.collective) {
    case koloCollectiveAllGather:
      return koloAllGatherv(side.send, side.recv, recvCounts.data(), recvDispls.data(), type, comm, world.stream(rank));
    case koloCollectiveReduceScatter:
      return koloReduceScatterv(side.send, side.recv, sendCounts.data(), sendDispls.data(), type, op, comm,
                                world.stream(rank));
    case koloCollectiveAllToAll:
      return koloAllToAllv(side.send, sendCounts.data(), sendDispls.data(), side.recv, recvCounts.data(),
                           recvDispls.data(), type, comm, world.stream(rank));
    case koloCollectiveGather:
      return koloGatherv(side.send, sendCounts[0], side.recv, recvCounts.data(), recvDispls.data(), type, problem_.root,
                         comm, world.stream(rank));
    default:
      return koloScatterv(side.send, sendCounts.data(), sendDispls.data(), side.recv, recvCounts[0], type,
                          problem_.root, comm, world.stream(rank));
  }
}

// To the GPU and back, before and after all cases of a run: while kernels wait for each other nothing may synchronise
// them.
void Case::uploadAll(const World& world) const {
  for (const Side& side : sides_) {
    for (const Region& region : side.regions)
      test::upload(world.device(), region.device, region.memory, region.expected.size());
  }
}
void Case::downloadAll(const World& world) const {
  for (const Side& side : sides_) {
    for (const Region& region : side.regions)
      test::download(world.device(), region.memory, region.device, region.expected.size());
  }
}
// The buffer of a side as the GPU knows it; NULL stays NULL.
unsigned char* Case::onDevice(const Side& side, unsigned char* buffer) const {
  for (const Region& region : side.regions) {
    if (buffer >= region.memory && buffer < region.memory + region.expected.size())
      return region.device + (buffer - region.memory);
  }
  return nullptr;
}

koloResult_t Case::invoke(const World& world, int rank, koloRedOp_t op) {
  const Side& side = sides_[static_cast<std::size_t>(rank)];
  if (problem_.vector) return invokeVector(world, rank, op);
  return test::call(problem_.collective, {side.send, side.recv, wanted_.count, problem_.datatype, op, problem_.root,
                                          world.comm(rank), world.stream(rank)});
}

void Case::call(const World& world, int rank) {
  Side& side = sides_[static_cast<std::size_t>(rank)];
  const koloComm_t comm = world.comm(rank);
  const std::string wish =
      wanted_.algorithm.empty() ? "" : fmt::format("{}:{}", koloCollectiveName(problem_.collective), wanted_.algorithm);
  koloRedOp_t op = problem_.op;
  koloResult_t result = koloCommSetAlgorithm(comm, wish.c_str());
  if (result == koloSuccess && problem_.reduction == Reduction::kPreMulSum) {
    std::uint8_t scalar[16] = {};
    const double scale = problem_.scales[static_cast<std::size_t>(rank)];
    if (isFloating(problem_.datatype)) {
      encode(problem_.datatype, scale, scalar);
    } else {
      scalar[0] = static_cast<std::uint8_t>(scale);
    }
    result = koloRedOpCreatePreMulSum(&op, scalar, problem_.datatype, koloScalarHostImmediate, comm);
  } else if (result == koloSuccess && problem_.reduction != Reduction::kPredefined) {
    const bool affine = problem_.reduction == Reduction::kAffine;
    result = koloRedOpCreate(&op, affine ? affineFunction : xorFunction, affine ? 0 : 1, nullptr, comm);
  }
  takeTrace();
  unsigned char *const send = side.send, *const recv = side.recv;
  if (world.isOnGpu()) {
    side.send = onDevice(side, send);
    side.recv = onDevice(side, recv);
  }
  if (result == koloSuccess) result = invoke(world, rank, op);
  world.synchronize(rank);
  side.send = send;
  side.recv = recv;
  side.trace = takeTrace();
  koloPlan_t plan{};
  if (koloCommGetPlan(comm, problem_.collective, wanted_.count, problem_.datatype, problem_.op, 0, &plan) ==
      koloSuccess) {
    side.planned = plan.algorithm;
  }
  if (result != koloSuccess) side.message = koloGetLastError(nullptr);
  if (op >= koloNumOps && koloRedOpDestroy(op, comm) != koloSuccess && result == koloSuccess)
    result = koloInternalError;
  side.result = result;
}

// -------------------------------------------------------------- verification

bool Case::bitsMatter(const World& world) const {
  if (!problem_.reduces() || !isFloating(problem_.datatype) || problem_.reduction == Reduction::kUserXor) return true;
  const bool complexProduct =
      problem_.op == koloProd && partBytes(problem_.datatype) != koloDataTypeSize(problem_.datatype);
  if (wanted_.data == Data::kExact && !complexProduct) return true;
  if (world.reproducible() || world.ranks() == 1) return true;
  const Trace& trace = traceOf(0);
  return trace.zeroCopy || trace.algorithm == device::Algorithm::kLine ||
         trace.algorithm == device::Algorithm::kOneShot || trace.algorithm == device::Algorithm::kTwoShot;
}

// Every one of up to n roundings is off by half a unit of a partial result below a bound. Of an average, the stored
// share of w ranks is off by half a step, and weighs the smallest power of two from w on; most are stored by a ring.
double Case::tolerance() const {
  const double n = problem_.ranks;
  if (wanted_.data == Data::kLarge || wanted_.data == Data::kTiny) {
    double steps = 1;  // the expected result is rounded, too
    for (unsigned w = 2; w < static_cast<unsigned>(problem_.ranks); ++w) steps += std::bit_ceil(w) / (2 * n);
    return steps * (wanted_.data == Data::kLarge ? stepAtLargest(problem_.datatype) : smallest(problem_.datatype));
  }
  const double bound = problem_.op == koloProd ? std::pow(1.5, n) + 64 : 2 * n;
  return n * bound * epsilon(problem_.datatype);
}

std::string Case::compare(const Bytes& expected, const unsigned char* actual, bool bits) const {
  if (expected.empty() || std::memcmp(expected.data(), actual, expected.size()) == 0) return "";
  const std::size_t size = koloDataTypeSize(problem_.datatype), part = partBytes(problem_.datatype);
  for (std::size_t at = 0; at < expected.size(); at += part) {
    if (std::memcmp(expected.data() + at, actual + at, part) == 0) continue;
    if (!isFloating(problem_.datatype) || !problem_.reduces()) {
      return fmt::format("element {} is {:02x}... instead of {:02x}...", at / size, actual[at], expected[at]);
    }
    const double want = decode(problem_.datatype, expected.data() + at), have = decode(problem_.datatype, actual + at);
    if (bits || !(std::fabs(want - have) <= tolerance())) {
      return fmt::format("element {} is {} instead of {} ({})", at / size, have, want, bits ? "bits" : "tolerance");
    }
  }
  return "";
}

// Where pairs decide by themselves whether a block goes past the slots: by its length and its buffer alone.
std::string Case::wrongPairs(const World& world) const {
  const bool mayBeDirect = !world.posts() && world.ranks() <= algorithms::kMaxDirectRanks;
  enum Way { kStaged, kPerhaps, kDirect };  // perhaps: if the machine lets ranks read each other's ordinary memory
  const auto wayOf = [&](std::size_t from, std::size_t to) {
    if (!mayBeDirect) return kStaged;
    const std::size_t bytes = bytesOf(problem_, problem_.send[from][problem_.send[from].size() > 1 ? to : 0].count);
    const bool gathers = problem_.collective == koloCollectiveGather;
    const bool inWindow = sides_[from].sendInWindow || (gathers && sides_[to].recvInWindow);
    if (inWindow && bytes > collectives::kEagerWindowBytes) return world.copiesByDefault() ? kPerhaps : kDirect;
    if (inWindow) return kStaged;
    // The root of a gather offers its buffer if some block is long enough; others are then written there, too.
    std::size_t longest = bytes;
    for (const Block& block : problem_.recv[to]) {
      if (gathers) longest = std::max<std::size_t>(longest, bytesOf(problem_, block.count));
    }
    const bool mayBeWritten = bytes > collectives::kEagerWindowBytes && longest >= kSingleCopyBytes;
    return bytes >= kSingleCopyBytes || mayBeWritten ? kPerhaps : kStaged;
  };
  const std::size_t n = sides_.size(), root = static_cast<std::size_t>(problem_.root);
  for (std::size_t rank = 0; rank < n; ++rank) {
    Way most = kStaged;
    for (std::size_t peer = 0; peer < n; ++peer) {
      if (peer == rank) continue;
      const bool sends = problem_.collective == koloCollectiveAllToAll ||
                         (problem_.collective == koloCollectiveScatter ? rank : peer) == root;
      const bool receives = problem_.collective == koloCollectiveAllToAll ||
                            (problem_.collective == koloCollectiveScatter ? peer : rank) == root;
      if (sends) most = std::max(most, wayOf(rank, peer));
      if (receives) most = std::max(most, wayOf(peer, rank));
    }
    const bool direct = sides_[rank].trace.zeroCopy;
    if (most != kPerhaps && direct != (most == kDirect))
      return fmt::format("rank {} went {} staging", rank, direct ? "without" : "only through");
  }
  return "";
}

std::string Case::wrongAlgorithm(const World& world, const Case* before) const {
  const Trace& first = traceOf(0);
  if (world.ranks() == 1 || world.isOnGpu()) return "";
  const bool counted = !problem_.vector || problem_.collective == koloCollectiveAllGather ||
                       problem_.collective == koloCollectiveReduceScatter;
  for (int rank = 0; rank < world.ranks(); ++rank) {
    const Trace& trace = traceOf(rank);
    if (!trace.ran || trace.algorithm != first.algorithm) return "the ranks ran different algorithms";
    const bool together = !problem_.rooted() && (counted || problem_.collective != koloCollectiveAllToAll);
    if (together && trace.zeroCopy != first.zeroCopy) return "only some ranks went without staging";
  }
  if (!counted) {
    if (std::string wrong = wrongPairs(world); !wrong.empty()) return wrong;
  }
  std::size_t longest = 0;
  for (const auto* sides : {&problem_.send, &problem_.recv}) {
    for (const auto& blocks : *sides) {
      for (const Block& block : blocks) longest = std::max(longest, bytesOf(problem_, block.count));
    }
  }
  const std::string ran = name(first.algorithm), wanted = wanted_.algorithm;
  if (ran == "line" && (longest > kLineBytes || !counted)) return "a line cannot carry this";
  const bool isSmallInteger = koloDataTypeSize(problem_.datatype) <= 2 && !isFloating(problem_.datatype);
  const bool ordered = problem_.reduces() && (world.reproducible() || problem_.reduction == Reduction::kAffine ||
                                              (problem_.op == koloAvg && isSmallInteger));
  if (ordered && !algorithms::rowOf(first.algorithm).keepsOrder) return ran + " does not fold in rank order";
  const bool customOrder = problem_.reduction == Reduction::kAffine;  // koloCommGetPlan is not told of the function
  // Where ranks share cores, a barrier behind a broadcast or a scatter, which koloCommGetPlan is not told of either.
  const bool mayBeBehindRoot = before == nullptr || before->problem_.collective == koloCollectiveBroadcast ||
                               before->problem_.collective == koloCollectiveScatter;
  const bool followsRoot =
      problem_.collective == koloCollectiveBarrier && wanted.empty() && mayBeBehindRoot && ran == "two_shot";
  if (!problem_.vector && !customOrder && !followsRoot && sides_[0].planned != ran)
    return fmt::format("{} was planned and {} ran", sides_[0].planned, ran);
  if (wanted.empty() || wanted == ran || ordered) return "";
  const bool nothing = longest == 0 && counted && problem_.collective != koloCollectiveBarrier;
  const bool unknown = problem_.vector && (wanted == "recursive" || wanted == "bruck" || wanted == "tree" || !counted);
  if (nothing || unknown || (wanted == "line" && longest > kLineBytes)) return "";
  return fmt::format("{} ran although {} was asked for", ran, wanted);
}

std::string Case::verify(const World& world, const Case* before) const {
  if (world.isOnGpu()) downloadAll(world);
  for (std::size_t rank = 0; rank < sides_.size(); ++rank) {
    if (sides_[rank].result != koloSuccess) {
      return fmt::format("rank {}: {}: {}", rank, koloGetErrorString(sides_[rank].result), sides_[rank].message);
    }
  }
  const std::string wrong = wrongAlgorithm(world, before);
  if (!wrong.empty()) return wrong;
  const bool bits = bitsMatter(world);
  for (std::size_t rank = 0; rank < sides_.size(); ++rank) {
    const Side& side = sides_[rank];
    for (std::size_t block = 0; block < problem_.recv[rank].size(); ++block) {
      const std::size_t begin = problem_.recv[rank][block].begin;
      const std::string difference = compare(outputs_[rank][block], side.recv + bytesOf(problem_, begin), bits);
      if (!difference.empty()) return fmt::format("rank {}, block {}: {}", rank, block, difference);
    }
    for (const Region& region : side.regions) {
      if (std::memcmp(region.memory, region.expected.data(), region.expected.size()) == 0) continue;
      for (std::size_t i = 0; i < region.expected.size(); ++i) {
        const unsigned char* const at = region.memory + i;
        if (*at == region.expected[i]) continue;
        const bool inRecv =
            std::any_of(problem_.recv[rank].begin(), problem_.recv[rank].end(), [&](const Block& block) {
              const unsigned char* const begin = side.recv + bytesOf(problem_, block.begin);
              return at >= begin && at < begin + bytesOf(problem_, block.count);
            });
        if (inRecv) continue;  // was compared above, perhaps with tolerance
        return fmt::format("rank {}: byte {} relative to sendbuf, {} relative to recvbuf, was overwritten", rank,
                           at - side.send, at - side.recv);
      }
    }
  }
  return "";
}

Bytes Case::received(int rank) const {
  const auto at = static_cast<std::size_t>(rank);
  Bytes all;
  for (const Block& block : problem_.recv[at]) {
    const unsigned char* const begin = sides_[at].recv + bytesOf(problem_, block.begin);
    all.insert(all.end(), begin, begin + bytesOf(problem_, block.count));
  }
  return all;
}

std::string Case::describe() const {
  static constexpr const char* kReductions[] = {"", " pre-multiplied", " affine", " user xor"};
  static constexpr const char* kData[] = {"exact", "rough", "large", "tiny"};
  std::string text = fmt::format("{}{} by {}, {} ranks, {}, {}{}, count {}, root {}, {} data; ranks (place/send/recv):",
                                 koloCollectiveName(problem_.collective), problem_.vector ? "v" : "",
                                 wanted_.algorithm.empty() ? "any" : wanted_.algorithm, problem_.ranks,
                                 koloDataTypeName(problem_.datatype), koloRedOpName(problem_.op),
                                 kReductions[static_cast<int>(problem_.reduction)], wanted_.count, problem_.root,
                                 kData[static_cast<int>(wanted_.data)]);
  for (const Side& side : sides_) {
    text +=
        fmt::format(" {}{}{}", side.inPlace ? 'i' : 'o', side.sendInWindow ? 'w' : 'p', side.recvInWindow ? 'w' : 'p');
  }
  if (traceOf(0).ran) {
    text += fmt::format("; ran {}{}", name(traceOf(0).algorithm), traceOf(0).zeroCopy ? ", zero-copy" : "");
  }
  return text;
}

void runCases(World& world, const std::vector<std::unique_ptr<Case>>& cases, std::uint64_t seed, int delays) {
  std::vector<std::atomic<std::size_t>> progress(static_cast<std::size_t>(world.ranks()));
  const auto state = [&] {
    std::string text;
    for (std::size_t rank = 0; rank < progress.size(); ++rank) {
      const std::size_t at = progress[rank].load();
      text +=
          fmt::format("rank {} is at case {}: {}\n", rank, at, at < cases.size() ? cases[at]->describe() : "the end");
    }
    return text;
  };
  world.run(
      [&](int rank) {
        Random random(seed + static_cast<std::uint64_t>(rank));
        for (std::size_t i = 0; i < cases.size(); ++i) {
          progress[static_cast<std::size_t>(rank)].store(i);
          if (delays > 0 && chance(random, 0.3)) {
            std::this_thread::sleep_for(std::chrono::microseconds(pick(random, 0, static_cast<std::size_t>(delays))));
          }
          cases[i]->call(world, rank);
        }
        progress[static_cast<std::size_t>(rank)].store(cases.size());
      },
      state);
  for (std::size_t i = 0; i < cases.size(); ++i) {
    const std::string wrong = cases[i]->verify(world, i == 0 ? nullptr : cases[i - 1].get());
    if (wrong.empty()) continue;
    INFO("case " << i << " of " << cases.size() << ": " << cases[i]->describe());
    INFO(wrong);
    FAIL();
  }
  SUCCEED();
}

}  // namespace kolo::tests
