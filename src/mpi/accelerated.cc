#include "mpi/accelerated.h"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "mpi/operations.h"
#include "mpi/order.h"
#include "mpi/report.h"

namespace kolo::mpi {
namespace {

// Maybe on this rank alone: by arguments that the MPI refuses without a word to the others.
constexpr const char* kRefused = "MPI has to judge the arguments";
// These are the same on all ranks.
constexpr const char* kNotCovered = "not a predefined operation on a predefined datatype of at most 16 bytes";
constexpr const char* kTooLongAScan = "a nonblocking scan of more than 1 MiB of all ranks together";

// Data at address 0 are for datatypes with absolute addresses (MPI_BOTTOM), which are no run.
bool isUsable(const Elements& elements, MPI_Count count) {
  if (count < 0 || elements.datatype == MPI_DATATYPE_NULL) return false;
  if (elements.bytes(count) == 0) return true;
  return elements.buffer != MPI_IN_PLACE && (elements.buffer != nullptr || !elements.form.isRun);
}

// Whether the MPI refuses a block that this rank gives itself and takes where it lies: MPICH does so if the datatypes
// are the same, and counts in bytes of data. What it does not notice it carries out, as Open MPI does all: the rank's
// own data go through a copy. REQUIRES: the block is equally long in both.
bool isRefused(const Elements& own, MPI_Count count, const Elements& all, MPI_Count before) {
  if (kTakesBufferTwice || count == 0 || own.buffer == nullptr || own.datatype != all.datatype) return false;
  const auto place = reinterpret_cast<std::uintptr_t>(all.buffer) + static_cast<std::uintptr_t>(before) * all.form.size;
  return reinterpret_cast<std::uintptr_t>(own.buffer) == place;
}

// The same of an exchange, whose blocks lie alike.
bool isRefused(const Side& given, const Side& taken) {
  if (kTakesBufferTwice || given.buffer() == nullptr || given.buffer() != taken.buffer()) return false;
  const bool isAlike = given.isCounted() ? given.counts.isSameArray(taken.counts) : given.count != 0;
  return isAlike && given.datatype == taken.datatype && given.datatypes == taken.datatypes;
}

// Of numbers that are reduced. MPI_IN_PLACE in the place of sendbuf is a pointer like any other here.
bool areBuffers(const void* sendbuf, const void* recvbuf, MPI_Count count) {
  if (count <= 0) return count == 0;
  return sendbuf != nullptr && recvbuf != nullptr && recvbuf != MPI_IN_PLACE &&
         (sendbuf != recvbuf || kTakesBufferTwice);
}

// From a call's arguments to what Kolo is asked for.
class Preparation {
 public:
  Preparation(const Collective& its, Order& order, bool isLater)
      : its_(its), order_(order), isLater_(isLater), rank_(order.session.rank()), ranks_(order.session.ranks()) {}

  // nullptr, or why the call is declined.
  const char* run() {
    order_.name = its_.name;
    order_.root = its_.flow.root;
    if (its_.flow.isRooted() && (order_.root < 0 || order_.root >= ranks_)) return kRefused;
    if (its_.op != nullptr) return calculate();
    if (its_.given.isOfAllRanks()) return its_.taken.isOfAllRanks() ? exchange() : distribute(its_.taken, its_.given);
    if (its_.taken.isOfAllRanks()) return distribute(its_.given, its_.taken);
    return its_.given.blocks == Side::Blocks::kNone ? nullptr : broadcast();
  }

 private:
  using Blocks = Side::Blocks;

  // Whether this rank has what the root alone has, or each rank where there is no root.
  bool hasWhole() const { return !its_.flow.isRooted() || rank_ == its_.flow.root; }
  Elements elements(const void* buffer, MPI_Datatype datatype) const { return {buffer, datatype, its_.comm}; }
  bool areBlocks(const Side& side) const;
  void make(std::optional<Region>& region, const Side& side, const Elements& elements) const;
  void make(std::optional<Region>& region, const Side& side) const;
  bool areUsable(const Side& side, const Region& region) const;
  const char* differ(std::size_t given, std::size_t taken);
  const char* broadcast();
  const char* distribute(const Side& own, const Side& all);
  const char* exchange();
  const char* calculate();
  bool areOperands(const void* sendbuf, const void* recvbuf, bool isInPlace);
  const char* scan(const void* input, void* recvbuf);

  const Collective& its_;
  Order& order_;
  const bool isLater_;
  const int rank_, ranks_;
};

// ---- collectives that only move data, as bytes. What a rank gives and gets in place is described as what it is, a
// block of the other buffer: where no copy is made, Kolo sees the same address and works in place.

// Displacements belong to the counts; nothing is asked of them but to be there.
bool Preparation::areBlocks(const Side& side) const {
  if (!side.isCounted()) return side.count >= 0;
  if (!side.counts.isGiven() || (side.blocks >= Blocks::kCounted && !side.displs.isGiven())) return false;
  if (side.blocks == Blocks::kTyped && side.datatypes == nullptr) return false;
  for (int i = 0; i < ranks_; ++i) {
    if (side.counts[i] < 0) return false;
  }
  return true;
}

void Preparation::make(std::optional<Region>& region, const Side& side, const Elements& elements) const {
  if (side.blocks == Blocks::kEach) {
    region.emplace(elements, side.count * ranks_);
  } else {
    const bool inARow = its_.name == Hook::kAllgatherv;  // as Kolo wants them there
    region.emplace(elements, ranks_, side.counts, side.displs,
                   inARow ? Region::Placing::kInARow : Region::Placing::kFree);
  }
}

void Preparation::make(std::optional<Region>& region, const Side& side) const {
  if (side.blocks != Blocks::kTyped) return make(region, side, elements(side.buffer(), side.datatype));
  std::vector<Elements> all;
  all.reserve(static_cast<std::size_t>(ranks_));
  for (int i = 0; i < ranks_; ++i) {
    const auto at = reinterpret_cast<std::uintptr_t>(side.buffer()) + static_cast<std::uintptr_t>(side.displs[i]);
    // A block without elements may have no datatype.
    all.push_back(elements(reinterpret_cast<const void*>(at), side.counts[i] != 0 ? side.datatypes[i] : MPI_BYTE));
  }
  region.emplace(std::move(all), side.counts);
}

// By this rank's own block, or, where each has a datatype of its own, by all.
bool Preparation::areUsable(const Side& side, const Region& region) const {
  if (side.blocks != Blocks::kTyped) return isUsable(region.elementsOf(rank_), side.countOf(rank_));
  for (int i = 0; i < ranks_; ++i) {
    if (!isUsable(region.elementsOf(i), side.counts[i])) return false;
  }
  return true;
}

// A barrier takes the collective's place (Order::differing).
const char* Preparation::differ(std::size_t given, std::size_t taken) {
  order_.name = Hook::kBarrier;
  order_.onlyGives = false;
  order_.from.reset();
  order_.to.reset();
  order_.differing = "rank " + std::to_string(rank_) + " gives itself " + std::to_string(given) + " bytes and takes " +
                     std::to_string(taken) + ", which MPI forbids";
  return nullptr;
}

const char* Preparation::broadcast() {
  const Elements all = elements(its_.given.buffer(), its_.given.datatype);
  if (!isUsable(all, its_.given.count)) return kRefused;
  Region& data = order_.to.emplace(all, its_.given.count);
  order_.onlyGives = hasWhole();
  if (order_.onlyGives) {
    data.load();
    data.discard();
  }
  order_.input = order_.output = data.data();
  order_.count = data.bytes();
  return nullptr;
}

// Gathers and scatters: a rank's own block goes to its place among those of all ranks, or comes from there. Where only
// the root has these, the other ranks' arguments for them mean nothing.
const char* Preparation::distribute(const Side& own, const Side& all) {
  const bool isGather = &own == &its_.given;
  std::optional<Region>&ofOwn = isGather ? order_.from : order_.to, &ofAll = isGather ? order_.to : order_.from;
  order_.onlyGives = its_.flow.isRooted() && isGather != hasWhole();
  if (!hasWhole()) {
    const Elements mine = elements(own.buffer(), own.datatype);
    if (!isUsable(mine, own.count)) return kRefused;
    ofOwn.emplace(mine, own.count);
  } else {
    if (!areBlocks(all)) return kRefused;
    const bool isInPlace = own.isInPlace();
    const Elements whole = elements(all.buffer(), all.datatype);
    const MPI_Count before = all.isCounted() ? all.displs[rank_] : rank_ * all.count, taken = all.countOf(rank_),
                    given = isInPlace ? taken : own.count;
    const Elements mine = isInPlace ? elements(whole.at(before), all.datatype) : elements(own.buffer(), own.datatype);
    if (!isUsable(whole, taken) || !isUsable(mine, given)) return kRefused;
    const std::size_t bytes = mine.bytes(given), others = whole.bytes(taken);
    if (bytes != others) return isGather ? differ(bytes, others) : differ(others, bytes);
    if (!isInPlace && isRefused(mine, given, whole, before)) return kRefused;
    make(ofAll, all, whole);
    const bool isWithin = !isInPlace && ofAll->spans(mine.buffer, bytes);
    ofOwn.emplace(mine, given, isWithin ? Region::Placing::kCopied : Region::Placing::kFree);
    if (isInPlace && !isGather) ofOwn->discard();
  }
  order_.count = ofOwn->bytes();
  if (order_.from) {
    order_.from->load();
    order_.input = order_.from->data();
  }
  if (order_.to) order_.output = order_.to->data();
  return nullptr;
}

// Blocks from each rank to each. In place they are the same.
const char* Preparation::exchange() {
  const bool isInPlace = its_.given.isInPlace();
  const Side &taken = its_.taken, &given = isInPlace ? taken : its_.given;
  if (!areBlocks(taken) || !areBlocks(given)) return kRefused;
  make(order_.to, taken);
  Region& to = *order_.to;
  if (!areUsable(taken, to)) return kRefused;
  order_.count = to.elementsOf(rank_).bytes(taken.countOf(rank_));
  order_.input = order_.output = to.data();
  if (isInPlace && !taken.isCounted()) {
    to.load();
    return nullptr;  // Kolo does it without a copy
  }
  make(order_.from, given);
  Region& from = *order_.from;
  if (!areUsable(given, from)) return kRefused;
  const std::size_t own = from.elementsOf(rank_).bytes(given.countOf(rank_));
  if (own != order_.count) return differ(own, order_.count);
  if (!isInPlace && isRefused(given, taken)) return kRefused;
  if (to.spans(from.data(), from.bytes())) from.copy();
  from.load();
  order_.input = from.data();
  return nullptr;
}

// ---- collectives that calculate

// Whether the arguments are those that Kolo takes; of a reduce-scatter with their counts.
bool Preparation::areOperands(const void* sendbuf, const void* recvbuf, bool isInPlace) {
  const Side& given = its_.given;
  if (!hasWhole()) return areBuffers(sendbuf, &rank_, given.count) && sendbuf != MPI_IN_PLACE;
  if (!given.isCounted()) {
    const bool isTwice = its_.flow.isRooted() && sendbuf == recvbuf && given.count != 0;
    return areBuffers(sendbuf, recvbuf, given.count) && !isTwice;
  }
  if (!areBlocks(given)) return false;
  std::size_t total = 0;
  order_.counts.reserve(static_cast<std::size_t>(ranks_));
  for (int i = 0; i < ranks_; ++i) {
    order_.counts.push_back(static_cast<std::size_t>(given.counts[i]));
    total += order_.counts.back();
  }
  if (total == 0) return true;
  return sendbuf != nullptr && ((!isInPlace && given.counts[rank_] == 0) || areBuffers(sendbuf, recvbuf, 1));
}

// Reduce-scatters in place: MPI takes the input from recvbuf, wants the result at its beginning, and leaves the rest as
// it was. Kolo would put the result where this rank's block of the input is; so it gets memory of its own for that,
// with room for what pairs have between their parts.
const char* Preparation::calculate() {
  const MPI_Datatype datatype = its_.given.datatype;
  const void* const sendbuf = its_.given.buffer();
  void* const recvbuf = its_.taken.buffer();
  const bool isScan = its_.flow.kind == Flow::Kind::kUpwards, gets = hasWhole();
  const bool isInPlace = gets && (sendbuf == MPI_IN_PLACE || sendbuf == recvbuf);
  if (!isCovered(*its_.op, datatype)) return kNotCovered;
  // The MPI calculates for Kolo: of a nonblocking call, but for scans, in any thread.
  const bool isInAnyThread = isLater_ && !isScan && !isNative(*its_.op, datatype);
  if (isInAnyThread && !order_.session.mayCalculateAnywhere()) return kNotCovered;
  if (!areOperands(sendbuf, recvbuf, isInPlace)) return kRefused;
  if (isScan) return scan(isInPlace ? recvbuf : sendbuf, recvbuf);
  order_.op = *its_.op;
  order_.datatype = datatype;
  order_.input = isInPlace ? recvbuf : sendbuf;
  order_.output = gets ? recvbuf : nullptr;
  order_.count = static_cast<std::size_t>(its_.given.count);
  order_.onlyGives = !gets;
  if (isInPlace && its_.given.isOfAllRanks()) {
    const MPI_Count bytes = its_.taken.countOf(rank_) * formOf(datatype).extent;
    order_.output = order_.to.emplace(elements(recvbuf, MPI_BYTE), bytes, Region::Placing::kCopied).data();
  }
  return nullptr;
}

const char* Preparation::scan(const void* input, void* recvbuf) {
  const Scan& made = order_.scan.emplace(order_.session, input, recvbuf, its_.given.count, its_.given.datatype,
                                         *its_.op, its_.name == Hook::kScan);
  const bool isTooLong = isLater_ && made.bytes() > Scan::kMostCollected / static_cast<std::size_t>(ranks_);
  return isTooLong ? kTooLongAScan : nullptr;
}

}  // namespace

Outcome carryOut(const Collective& its, Session& session) {
  Order order(session);
  const char* const why = Preparation(its, order, false).run();
  if (why != nullptr) return {koloSuccess, why};
  const koloResult_t result = session.carryOut(its.waitsForAll(), true, [&] { return order.run(Call()); });
  if (order.differing.empty()) {
    if (result == koloSuccess) order.store();
    return {result};
  }
  if (result == koloSuccess) return {result, kDiffer};
  complain(order.differing + "; this ends Kolo's communicator on all ranks");
  return {result};
}

Outcome start(const Collective& its, Session& session, std::unique_ptr<Task>& task) {
  auto made = std::make_unique<Task>(session);
  Order& order = made->order();
  const char* const why = Preparation(its, order, true).run();
  if (why != nullptr) return {koloSuccess, why};
  if (!order.differing.empty()) complain(order.differing);
  order.outliveTheCall();
  const koloResult_t result = session.carryOut(its.waitsForAll(), false, [&] { return made->start(); });
  if (result == koloSuccess) task = std::move(made);
  return {result};
}

}  // namespace kolo::mpi
