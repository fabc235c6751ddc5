#include "collectives/prepare.h"

#include <algorithm>

#include "algorithms/bounds.h"
#include "algorithms/catalogue.h"
#include "algorithms/direct.h"
#include "base/datatypes.h"
#include "collectives/hash.h"
#include "device/reducers.h"
#include "device/segment_moves.h"
#include "executor/host/host_team.h"
#include "executor/host/reduce.h"

namespace kolo::collectives {
namespace {

using device::Algorithm;
using device::Collective;
using device::Offer;
using device::Signature;
using device::Work;

// Of the counts: what v-variants compare instead of one count.
std::uint64_t digest(const std::vector<std::uint64_t>& values, std::uint64_t seed) {
  for (const std::uint64_t value : values) mix(seed, value);
  return seed;
}

// Whether results are 0 or 1 whatever the input was.
bool yieldsTruth(koloDataType_t datatype, device::ReduceOp op) {
  if (op == device::ReduceOp::kUser) return false;
  return datatype == koloBool || op == device::ReduceOp::kLogicalAnd || op == device::ReduceOp::kLogicalOr ||
         op == device::ReduceOp::kLogicalXor;
}

bool yieldsTruth(const Item& item, device::ReduceOp op) { return yieldsTruth(item.transferType, op); }

// A rank alone folds what yields truth with itself: all of an operation, or some items of a list. Other items are sums
// of one input then (device/segment_moves.h).
void foldTruth(const Operation& operation, Work& work) {
  if (operation.list == nullptr) {
    work.fold.yieldsTruth = yieldsTruth(operation.datatype, work.fold.op);
    if (work.fold.yieldsTruth) work.fold.op = device::ReduceOp::kLogicalOr;
    return;
  }
  const std::vector<Item>& items = operation.list->items;
  const auto isTruth = [op = work.fold.op](const Item& item) { return yieldsTruth(item, op); };
  work.fold.yieldsTruth = std::any_of(items.begin(), items.end(), isTruth);
  if (!work.fold.yieldsTruth) return;
  const bool areAll = std::all_of(items.begin(), items.end(), isTruth);
  work.fold.op = areAll ? device::ReduceOp::kLogicalOr : device::ReduceOp::kSum;
}

// Blocks of a list, in bytes: all ranks know all of them.
void describeList(const Blocks& blocks, device::Layout& layout) {
  layout.grain = device::kSegmentGrain;
  if (blocks.areAlike) {
    layout.count = blocks.longest;
  } else {
    layout.counts = blocks.counts.data();
    layout.displs = blocks.displs.data();
  }
}

// The root of a gather reads the blocks that the others offer, which each of them decides alone (givesList()): nobody
// writes into lists of the root's. Whether some may be read is the same on all ranks.
void useListGather(const Site& site, std::uint64_t bytes, Prepared& prepared) {
  Work& work = prepared.work;
  if (work.signature.algorithm != Algorithm::kOneShot || !site.copies.canReadPeers) work.direct = Algorithm::kCount;
  prepared.sharing.readsPeers = work.direct != Algorithm::kCount && work.rank != work.root &&
                                site.copies.sharesLists(bytes) &&
                                (site.hasWindows() || site.copies.readsPeers(Collective::kGather, bytes));
}

// Whether ordinary memory of peers is read and written: all ranks come to the same answer. The same holds for lists,
// whose segments peers read and write one by one: by loads and stores, where all segments of a rank lie in windows. All
// ranks have to know where in the logical buffers a block begins. Without reads a list has no direct form. A short one
// has none either, unless the user asked for that form (isForced).
void useSingleCopies(const Site& site, const Operation& operation, std::uint64_t longest, bool isForced,
                     Prepared& prepared) {
  Work& work = prepared.work;
  device::Sharing& sharing = prepared.sharing;
  const Collective collective = operation.collective;
  const List* const list = operation.list.get();
  if (list != nullptr && collective == Collective::kGather) return useListGather(site, longest, prepared);
  const bool areBlocksKnown = list == nullptr || collective != Collective::kAllToAll || list->areAlike;
  if (work.direct != Algorithm::kCount && areBlocksKnown) {
    sharing.readsPeers = site.copies.readsPeers(collective, longest);
    sharing.writesPeers = site.copies.writesPeers(collective, longest);
    // What has been converted for this rank's output is not what the others are to get.
    const bool isSharable = list != nullptr && !(collective == Collective::kAllReduce && list->castsOutput);
    if (isSharable && site.hasWindows() && site.copies.sharesLists(isForced ? UINT64_MAX : longest)) {
      sharing.readsPeers = true;
      sharing.writesPeers = work.direct == Algorithm::kTwoShot;
    }
  }
  if (list == nullptr) return;
  sharing.writesPeers = sharing.writesPeers && sharing.readsPeers && collective == Collective::kAllReduce;
  if (!sharing.readsPeers) work.direct = Algorithm::kCount;
}

bool isInWindows(const Site& site, const device::Segments& list) {
  const device::Segment* const segments = list.of(device::Buffer::kSend);
  return std::all_of(segments, segments + list.sends + list.recvs, [&](const device::Segment& segment) {
    const device::Extent extent = device::extentOf(list, segment);
    return site.findWindow(extent.begin, extent.bytes).index != 0;
  });
}

// Whether a rank gives its peers its list: they can load from it and store to it, or are to read and write it by copies
// of the kernel.
bool givesList(const Site& site, const Operation& operation, const LaidOut& laidOut, std::uint64_t bytes,
               const device::Sharing& sharing) {
  const Collective collective = operation.collective;
  // In place, what a rank converts for itself would change under ranks that load it.
  const bool isReadWhileWritten =
      operation.list->isInPlace && (collective == Collective::kAllToAll || operation.list->castsOutput);
  const bool isReadBack = sharing.writesPeers && operation.list->castsOutput;
  const bool isTooLong = laidOut.segments()->bytes > device::kMostListBytes;
  if (!sharing.readsPeers || isReadWhileWritten || isReadBack || isTooLong) return false;
  // Of a gather, a block of this rank's own, which may be shorter than others.
  if (collective == Collective::kGather && !site.copies.sharesLists(laidOut.send.bytes)) return false;
  if (isInWindows(site, *laidOut.segments())) return true;
  // By its address, peers would take the memory for that of the abandoned window.
  if (site.hasAbandonedWindows()) return false;
  const bool isWritten =
      !sharing.writesPeers || (laidOut.recvHasLongRuns && site.copies.writesPeers(collective, bytes));
  return laidOut.sendHasLongRuns && isWritten && site.copies.readsPeers(collective, bytes);
}

// What of a list depends on the algorithm: whether it cuts each item into the ranks' parts.
void layOutList(const Site& site, const Operation& operation, std::uint64_t bytes, Prepared& prepared) {
  Work& work = prepared.work;
  const bool inParts = device::isIn(operation.collective, algorithms::rowOf(work.signature.algorithm).cutsItems);
  const std::uint64_t edgesAt = device::inGrains(prepared.scratchBytes);
  prepared.laidOut = std::make_shared<const LaidOut>(layOut(*operation.list, inParts ? work.ranks : 1, edgesAt));
  const LaidOut& laidOut = *prepared.laidOut;
  prepared.edgesEnd = edgesAt + device::kEdges * device::kEdgeBytes;
  work.segments = laidOut.segments();
  device::Sharing& sharing = prepared.sharing;
  if (givesList(site, operation, laidOut, bytes, sharing)) {
    sharing.input = Offer::kAddress;
    if (sharing.writesPeers) sharing.output = Offer::kAddress;
  }
  describeList(laidOut.send, work.sendLayout);
  describeList(laidOut.recv, work.recvLayout);
  if (!inParts) return;
  for (device::Layout* const layout : {&work.sendLayout, &work.recvLayout}) {
    layout->counts = laidOut.send.counts.data();
    layout->displs = laidOut.send.displs.data();
  }
}

void describeBlocks(const Operation& operation, Work& work) {
  if (operation.list != nullptr) {
    work.header.count = operation.list->digest;
    return;  // layOutList() does the rest
  }
  work.header.count = work.sendLayout.count = work.recvLayout.count = operation.count;
  if (!operation.vector) return;
  const VectorCounts& counts = *operation.counts;
  const auto use = [](device::Layout& layout, const auto& lengths, const auto& displs) {
    if (lengths.empty()) return;
    layout.counts = lengths.data();
    layout.displs = displs.data();
  };
  use(work.sendLayout, counts.sendCounts, counts.sendDispls);
  use(work.recvLayout, counts.recvCounts, counts.recvDispls);
  // One of the two where there is a root, and only on the root.
  const bool sends = !counts.sendCounts.empty(), receives = !counts.recvCounts.empty();
  if (countsDiffer(operation)) {
    if (sends || receives) work.header.countTo = (sends ? counts.sendCounts : counts.recvCounts).data();
    if (sends || receives) work.header.countFrom = (receives ? counts.recvCounts : counts.sendCounts).data();
    return;
  }
  const std::uint64_t own = (sends ? counts.sendCounts : counts.recvCounts)[static_cast<std::size_t>(work.rank)];
  (sends ? work.recvLayout : work.sendLayout).count = own;
  work.header.count = sends ? digest(counts.sendDispls, digest(counts.sendCounts, 2)) : digest(counts.recvCounts, 1);
}

// Whether partial results of an average are shares, of some items at least: folds of the others take no notice.
bool storesShares(const Operation& operation) {
  if (operation.list == nullptr) return device::averagesInShares(operation.datatype);
  const std::vector<Item>& items = operation.list->items;
  return std::any_of(items.begin(), items.end(),
                     [](const Item& item) { return device::averagesInShares(item.transferType); });
}

void describe(const Site& site, const Operation& operation, Work& work) {
  work.signature.collective = operation.collective;
  work.signature.datatype = static_cast<std::uint8_t>(operation.datatype);
  work.signature.op = Signature::kNoOp;
  work.signature.vector = operation.vector;
  work.signature.root = static_cast<std::uint32_t>(operation.root);
  work.elementBytes = operation.list != nullptr ? 1 : static_cast<std::uint32_t>(elementBytes(operation.datatype));
  const bool isAlone = operation.list != nullptr && operation.list->isLocal;
  work.rank = isAlone ? 0 : site.rank;
  work.ranks = isAlone ? 1 : site.ranks;
  work.root = operation.root;
  work.send = operation.list != nullptr ? device::logicalBegin(device::Buffer::kSend)
                                        : static_cast<const unsigned char*>(operation.send);
  work.recv = operation.list != nullptr ? device::logicalBegin(device::Buffer::kRecv)
                                        : static_cast<unsigned char*>(operation.recv);
  work.channel.fault = site.fault;
  work.channel.links = site.links;
  work.channel.slots = site.slots;
  work.channel.slotBytes = site.slotBytes;
  if (operation.reduces()) {
    work.fold.op = reduceOpOf(operation.op);
    work.signature.op = static_cast<std::uint8_t>(work.fold.op);
    if (operation.op == koloAvg) {
      work.fold.divisor = static_cast<std::uint32_t>(site.ranks);
      work.signature.op = Signature::kAvg;
      work.fold.inputRanks = storesShares(operation) ? 1 : 0;
    }
  }
  describeBlocks(operation, work);
}

void useReduction(const Operation& operation, Prepared& prepared) {
  Work& work = prepared.work;
  if (const CustomReduction* const custom = operation.custom.get(); custom != nullptr) {
    if (custom->isPreMulSum) {
      std::copy_n(custom->scalar.data(), sizeof work.fold.scalar, work.fold.scalar);
      work.fold.scaled = true;
      work.signature.op = Signature::kPreMulSum;
    } else {
      work.fold.op = device::ReduceOp::kUser;
      work.signature.op = static_cast<std::uint8_t>(work.fold.op);
      prepared.user = custom->user;
      if (operation.list == nullptr)
        prepared.user.datatype = operation.datatype;  // known only now: the function works with every datatype
      prepared.context.user = &prepared.user;
    }
  }
  if (operation.reduces() && work.ranks == 1) foldTruth(operation, work);
  // Where data is only moved, a "fold" of one source copies it to several places.
  if (prepared.context.user == nullptr && operation.list == nullptr)
    prepared.context.kernel = executor::reduceKernel(operation.datatype, work.fold.op);
}

void useChoice(const Site& site, const planner::Choice& choice, Prepared& prepared) {
  Work& work = prepared.work;
  work.signature.algorithm = choice.algorithm;
  work.header.word = work.signature.pack();
  // Inputs that are to be scaled are of no use to peers. Where nobody has a window, data that fits into packets goes
  // so.
  const bool isStaged = work.fold.scaled || (choice.inPackets && !site.hasWindows());
  work.direct = isStaged ? Algorithm::kCount : choice.direct;
  work.steps.grid = site.grids[static_cast<int>(algorithms::rowOf(choice.algorithm).grid)];
  work.steps.alongFirst = choice.alongFirst;
  work.steps.alongOthers = choice.alongOthers;
  prepared.behindRoot = choice.behindRoot;
  prepared.behindOthers = choice.algorithm;
  followOrder(site, work);
}

// A sender fills one slot while the receiver empties another, so a message of some length goes in two chunks or more; a
// long one in chunks that stay in the caches of both.
std::uint32_t chunkFor(const Site& site, const Work& work, std::uint64_t bytes, bool areAlike) {
  const bool inSlices = algorithms::rowOf(work.signature.algorithm).inSlices;
  const std::uint64_t message = (inSlices ? bytes / static_cast<std::uint64_t>(site.ranks) : bytes) /
                                static_cast<std::uint64_t>(work.channel.count);
  const std::uint64_t most = std::min<std::uint64_t>(site.mostChunkBytes, site.slotBytes);
  if (!areAlike) return static_cast<std::uint32_t>(most);
  // Two of them in all, or as many as the longest chunks are: rounded down, what is left would be a third.
  const std::uint64_t half = (message / 2 + 4095) / 4096 * 4096;
  const std::uint64_t chunk = std::clamp<std::uint64_t>(half, 8192, site.mostChunkBytes);
  return static_cast<std::uint32_t>(std::min(chunk, most));
}

void findWindows(const Site& site, const Operation& operation, Work& work) {
  const auto extent = [&](const device::Layout& layout, std::uint32_t divided) {
    const bool isEach = device::isIn(operation.collective, divided);
    if (layout.counts == nullptr) return layout.count * (isEach ? static_cast<std::uint64_t>(site.ranks) : 1);
    std::uint64_t end = 0;
    for (int i = 0; i < site.ranks; ++i) end = std::max(end, layout.block(i).begin + layout.block(i).count);
    return end;
  };
  if (work.send != nullptr)
    work.sendRef = site.findWindow(work.send, extent(work.sendLayout, device::kSendsBlocks) * work.elementBytes);
  if (work.recv != nullptr)
    work.recvRef = site.findWindow(work.recv, extent(work.recvLayout, device::kReceivesBlocks) * work.elementBytes);
}

// What a rank offers of a buffer that peers may touch.
Offer offerOf(const void* buffer, const device::WindowRef& ref, bool byAddress) {
  if (buffer == nullptr) return Offer::kNothing;
  if (ref.index != 0) return Offer::kWindow;
  return byAddress ? Offer::kAddress : Offer::kNothing;
}

// Which buffers, that are no lists, the peers may touch; and where in windows these lie.
void shareBuffers(const Site& site, const Operation& operation, std::uint64_t longest, Prepared& prepared) {
  Work& work = prepared.work;
  device::Sharing& sharing = prepared.sharing;
  const Collective collective = operation.collective;
  // An all-reduce in place puts its result aside until the peers have read.
  const bool readsWhatIsWritten = operation.send == operation.recv && collective == Collective::kAllToAll;
  bool areForPeers = work.direct != Algorithm::kCount && !readsWhatIsWritten;
  if (areForPeers) findWindows(site, operation, work);
  const bool isPlainGather =
      site.pairsChooseInGather && collective == Collective::kGather && work.signature.algorithm == Algorithm::kOneShot;
  if (countsDiffer(operation) || isPlainGather) {
    work.header.pairsFromBytes = site.copies.pairsFromBytes(work);
    areForPeers = areForPeers && longest >= work.header.pairsFromBytes;
  }
  if (!areForPeers) return;
  sharing.input = offerOf(work.send, work.sendRef, sharing.readsPeers);
  sharing.output = offerOf(work.recv, work.recvRef, sharing.writesPeers);
  // An input in a window is of no use where the result cannot be written.
  const bool isWritten =
      collective == Collective::kAllReduce || (collective == Collective::kReduce && work.rank == work.root);
  if (isWritten && !sharing.readsPeers && sharing.output != Offer::kWindow) sharing.input = Offer::kNothing;
}

// Whether the result of an all-reduce is put aside until the peers have read what it is to replace
// (algorithms/direct.h): between windows, or by reading.
bool isPutAside(const Operation& operation, const Prepared& prepared) {
  const device::Sharing& sharing = prepared.sharing;
  const bool isInPlace = operation.list != nullptr ? operation.list->isInPlace : operation.send == operation.recv;
  const bool isOneShot = prepared.work.direct == Algorithm::kOneShot || (sharing.readsPeers && !sharing.writesPeers);
  const bool isOffered = sharing.readsPeers || sharing.input == Offer::kWindow;
  return operation.collective == Collective::kAllReduce && isInPlace && isOneShot && isOffered;
}

std::uint64_t scratchFor(const Operation& operation, const Prepared& prepared, std::uint64_t bytes) {
  const Work& work = prepared.work;
  const std::uint64_t staged =
      planner::scratchBytes(work.signature.algorithm, operation.collective, inputBytes(operation, work.ranks));
  const bool folds = operation.reduces() && work.direct != Algorithm::kCount;
  const std::uint64_t read = folds ? algorithms::bytesReadAside(work.ranks, prepared.sharing.readsPeers) : 0;
  if (!isPutAside(operation, prepared)) return std::max(staged, read);
  // A list may be cut into the ranks' parts, each of which begins at a multiple of the grain.
  const std::uint64_t padding =
      operation.list != nullptr
          ? operation.list->items.size() * static_cast<std::uint64_t>(work.ranks) * device::kSegmentGrain
          : 0;
  return std::max(staged, read + bytes + padding);
}

}  // namespace

Status checkFold(const Operation& operation, const Choices& choices, int ranks) {
  if (ranks <= algorithms::kMaxLineRanks || !operation.reduces() || !choices.inOrder(operation)) return {};
  if (needsWholeFold(operation)) {
    return error(koloUnsupported,
                 "an average of {} folds the inputs of all ranks at once, so that its sum does not "
                 "wrap; that is available for up to {} ranks, and this communicator has {}. An average of int32, whose "
                 "sum may wrap, has no such limit",
                 operation.list != nullptr ? "8- or 16-bit integers" : koloDataTypeName(operation.datatype),
                 algorithms::kMaxLineRanks, ranks);
  }
  return error(koloUnsupported,
               "a fold in rank order (a reproducible communicator, or a reduction that does not commute) "
               "is available for up to {} ranks; this communicator has {}",
               algorithms::kMaxLineRanks, ranks);
}

// Algorithms that move runs of the ranks' blocks keep the numbers.
void followOrder(const Site& site, Work& work) {
  if (site.order->empty()) return;
  const Collective collective = work.signature.collective;
  if (!device::isIn(collective, algorithms::rowOf(work.signature.algorithm).renumbers)) return;
  const auto placeOf = [&](int rank) {
    return static_cast<int>(std::find(site.order->begin(), site.order->end(), rank) - site.order->begin());
  };
  work.steps.members = site.members;
  work.rank = placeOf(work.rank);
  work.root = placeOf(work.root);
  if (device::isIn(collective, device::kSendsBlocks)) work.sendLayout.order = work.steps.members;
  if (device::isIn(collective, device::kReceivesBlocks)) work.recvLayout.order = work.steps.members;
}

std::uint64_t inputBytes(const Operation& operation, int ranks) {
  if (operation.list != nullptr) return blocksOf(*operation.list, device::Buffer::kSend).bytes;
  const std::uint64_t element = elementBytes(operation.datatype);
  if (!operation.vector) return operation.count * element * static_cast<std::uint64_t>(ranks);
  std::uint64_t end = 0;
  const VectorCounts& counts = *operation.counts;
  for (std::size_t i = 0; i < counts.sendCounts.size(); ++i)
    end = std::max(end, counts.sendDispls[i] + counts.sendCounts[i]);
  return end * element;
}

void prepare(const Site& site, Choices& choices, const Operation& operation, Prepared& prepared) {
  prepared.call = kNoCall;
  prepared.work = Work();
  prepared.sharing = {};
  prepared.counts = operation.counts;
  prepared.custom = operation.custom;
  prepared.list = operation.list;
  prepared.table = nullptr;
  prepared.context = site.context;
  prepared.context.datatype = operation.datatype;
  Work& work = prepared.work;
  describe(site, operation, work);
  useReduction(operation, prepared);
  const std::uint64_t bytes = plannedBytes(operation);
  const bool isLocal = operation.list != nullptr && operation.list->isLocal;
  const planner::Choice choice =
      isLocal ? planner::Choice{.algorithm = Algorithm::kLine} : choices.choose(operation, bytes);
  useChoice(site, choice, prepared);
  // Of gatherv, all but the root know their own block only.
  const std::uint64_t longest = operation.collective == Collective::kGather
                                    ? std::max(bytes, work.partTo(work.root).count * work.elementBytes)
                                    : bytes;
  useSingleCopies(site, operation, longest, choice.isDirectForced, prepared);
  if (operation.list == nullptr) shareBuffers(site, operation, longest, prepared);
  prepared.scratchBytes = prepared.edgesEnd = scratchFor(operation, prepared, bytes);
  if (operation.list != nullptr) layOutList(site, operation, bytes, prepared);
  work.sharing = prepared.sharing;
  planner::Query query = choices.queryFor(operation);
  query.bytes = bytes;
  work.channel.count = planner::channelsFor(choice.algorithm, query, *site.machine);
  work.channel.packetBytes = choice.inPackets ? site.machine->packetBytes : 0;
  // Between hosts a chunk is under way for long; elsewhere the caches count.
  work.channel.chunksAtOnce = site.machine->mapped ? 1 : work.channel.slots - 1;
  const std::uint64_t whole =
      device::isIn(operation.collective, device::kDivided) ? bytes * static_cast<std::uint64_t>(site.ranks) : bytes;
  work.streaming = whole >= site.streamingBytes;
  work.channel.chunkBytes = chunkFor(site, work, bytes, !countsDiffer(operation));
  prepared.mayStageEarly = site.copies.mayStageEarly(work);
  prepared.isStagedAnyway = false;
}

}  // namespace kolo::collectives
