// The table of paths over all combinations of facts; and device/offers.h, which gathers the facts of collectives: ranks
// whose headers are handed to each other here come to the same path.
#include "device/path.h"

#include <array>
#include <catch2/catch.hpp>
#include <cstdint>
#include <vector>

#include "device/offers.h"

namespace kolo::device {
namespace {

constexpr Offer kOffers[] = {Offer::kInSlots, Offer::kNothing, Offer::kAddress, Offer::kWindow};
constexpr Offer kOffersOfBuffers[] = {Offer::kNothing, Offer::kAddress, Offer::kWindow};
constexpr Start kStarts[] = {Start::kChecks, Start::kDefersChecks, Start::kStagesEarly};
constexpr bool kBoth[] = {false, true};

// ---- what ranks offer

template <class Check>
void forAllSharing(Check check) {
  for (const bool reads : kBoth)
    for (const bool writes : kBoth)
      for (const Offer input : kOffersOfBuffers)
        for (const Offer output : kOffersOfBuffers)
          for (const bool isReachable : kBoth)
            for (const Start start : kStarts) {
              const Sharing most{reads, writes, input, output, Start::kChecks};
              INFO("input " << static_cast<int>(input) << ", output " << static_cast<int>(output) << ", start "
                            << static_cast<int>(start) << ", reachable " << isReachable);
              check(most, isReachable, sharingIn(most, start, isReachable));
            }
}

TEST_CASE("what all ranks have agreed depends on nothing that one rank alone knows") {
  forAllSharing([](const Sharing& most, bool, const Sharing& sharing) {
    CHECK((sharing.readsPeers == most.readsPeers && sharing.writesPeers == most.writesPeers));
  });
}

TEST_CASE("a rank that stages early offers no buffer, and says so") {
  forAllSharing([](const Sharing&, bool, const Sharing& sharing) {
    CHECK((sharing.input == Offer::kInSlots) == (sharing.start == Start::kStagesEarly));
    if (sharing.start == Start::kStagesEarly) CHECK(sharing.output == Offer::kNothing);
  });
}

TEST_CASE("a call offers what it may, but for memory that others cannot reach") {
  forAllSharing([](const Sharing& most, bool isReachable, const Sharing& sharing) {
    if (sharing.start == Start::kStagesEarly) return;
    const auto check = [&](Offer offer, Offer at_most) {
      if (offer == Offer::kAddress) CHECK(isReachable);
      if (isReachable || at_most == Offer::kWindow) CHECK(offer == at_most);
      else CHECK(offer == Offer::kNothing);
    };
    check(sharing.input, most.input);
    check(sharing.output, most.output);
  });
}

TEST_CASE("only the first call of an operation checks all headers") {
  for (const Start start : kStarts) CHECK(defersChecks(start) == (start != Start::kChecks));
}

// ---- a block, or a message

template <class Check>
void forAllBlocks(Check check) {
  for (const bool fitsLine : kBoth)
    for (const Offer input : kOffers)
      for (const Offer output : kOffersOfBuffers) {
        INFO("line " << fitsLine << ", input " << static_cast<int>(input) << ", output " << static_cast<int>(output));
        check(fitsLine, input, output, pathOf(fitsLine, input, output));
      }
}

TEST_CASE("a block goes with its line exactly if it fits") {
  forAllBlocks([](bool fitsLine, Offer, Offer, Path path) { CHECK((path == Path::kInline) == fitsLine); });
}

TEST_CASE("nobody touches memory that was not offered, and slots are always a way") {
  forAllBlocks([](bool fitsLine, Offer input, Offer output, Path path) {
    if (path == Path::kPeerReads) CHECK((input == Offer::kAddress || input == Offer::kWindow));
    if (path == Path::kPeerWrites) CHECK(output != Offer::kNothing);
    if (!fitsLine && input <= Offer::kNothing && output == Offer::kNothing) CHECK(path == Path::kStaged);
  });
}

TEST_CASE("what its giver has put into slots is neither read nor written elsewhere") {
  forAllBlocks([](bool fitsLine, Offer input, Offer, Path path) {
    if (!fitsLine && input == Offer::kInSlots) CHECK(path == Path::kStaged);
  });
}

TEST_CASE("a block is copied once wherever that is possible, and written rather than read") {
  forAllBlocks([](bool fitsLine, Offer input, Offer output, Path path) {
    if (fitsLine || input == Offer::kInSlots) return;
    if (isOffered(output)) CHECK(path == Path::kPeerWrites);
    else CHECK((path == Path::kPeerReads) == isOffered(input));
  });
}

TEST_CASE("a root pushes only what is readable where it is, in place, and into what was offered") {
  for (const Offer input : kOffers)
    for (const bool isInPlace : kBoth)
      for (const Offer output : kOffersOfBuffers) {
        if (!isPushed(input, isInPlace, output)) continue;
        CHECK((isInPlace && isOffered(output)));
        CHECK(pathOf(false, input, Offer::kNothing) == Path::kPeerReads);  // the peer takes the rest
      }
}

// ---- whole operations

template <class Check>
void forAllOpenings(Check check) {
  for (const bool meets : kBoth)
    for (const bool slots : kBoth)
      for (const bool gets : kBoth)
        for (const bool defers : kBoth)
          for (const bool packets : kBoth) {
            const OpeningFacts facts{.fitsPackets = packets,
                                     .meets = meets,
                                     .goesThroughSlots = slots,
                                     .gets = gets,
                                     .defersChecks = defers};
            INFO("meets " << meets << ", slots " << slots << ", gets " << gets << ", defers " << defers << ", packets "
                          << packets);
            check(facts, openingOf(facts));
          }
}

TEST_CASE("an operation goes in packets exactly if all know that it fits, whatever one rank knows beside") {
  forAllOpenings(
      [](const OpeningFacts& facts, Opening opening) { CHECK((opening == Opening::kInPackets) == facts.fitsPackets); });
}

TEST_CASE("a rank leaves headers unread only if no header could keep its data out of the slots") {
  forAllOpenings([](const OpeningFacts& facts, Opening opening) {
    CHECK((opening == Opening::kByAlgorithm) == (!facts.meets && !facts.fitsPackets));
    if (opening == Opening::kSends || opening == Opening::kOwes) CHECK(facts.goesThroughSlots);
    if (facts.meets && !facts.goesThroughSlots && !facts.fitsPackets) CHECK(opening == Opening::kMeets);
  });
}

TEST_CASE("a rank owes a header only if it gets nothing, and only if its call may leave headers for later") {
  forAllOpenings([](const OpeningFacts& facts, Opening opening) {
    if (opening == Opening::kOwes) CHECK((!facts.gets && facts.defersChecks));
    OpeningFacts otherwise = facts;
    otherwise.defersChecks = !facts.defersChecks;
    const auto waits = [](Opening each) { return each == Opening::kMeets || each == Opening::kOwes; };
    const Opening other = openingOf(otherwise);
    CHECK((other == opening || (waits(other) && waits(opening))));
  });
}

template <class Check>
void forAllCourses(Check check) {
  for (unsigned bits = 0; bits < 1u << 4; ++bits)
    for (const Offer inputs : kOffers)
      for (const Offer outputs : kOffers) {
        const auto bit = [&](unsigned place) { return (bits >> place & 1) != 0; };
        const CourseFacts facts{bit(0), bit(1), bit(2), bit(3), inputs, outputs};
        INFO("facts " << bits << ", inputs " << static_cast<int>(inputs) << ", outputs " << static_cast<int>(outputs));
        check(facts, courseOf(facts));
      }
}

TEST_CASE("an operation touches only what all ranks that must have offered it, by address only if that is agreed") {
  forAllCourses([](const CourseFacts& facts, Course course) {
    switch (course) {
      case Course::kStaged: break;
      case Course::kByBlock:
        CHECK(facts.hasRoot);
        CHECK((isOffered(facts.inputs) || isOffered(facts.outputs)));
        break;
      case Course::kInWindows: CHECK((facts.inputs == Offer::kWindow && facts.outputs == Offer::kWindow)); break;
      case Course::kByWriting: CHECK((facts.writesPeers && isOffered(facts.outputs))); [[fallthrough]];
      case Course::kByReading: CHECK((facts.readsPeers && isOffered(facts.inputs))); break;
    }
    CHECK((course == Course::kByBlock || course == Course::kStaged || !facts.hasRoot));
  });
}

TEST_CASE("an operation of which nothing is offered goes through slots") {
  CHECK(courseOf({}) == Course::kStaged);
  forAllCourses([](const CourseFacts& facts, Course course) {
    if (!isOffered(facts.inputs) && !isOffered(facts.outputs)) CHECK(course == Course::kStaged);
  });
}

TEST_CASE("an operation whose inputs may all be taken does so, unless its two-shot could not write") {
  forAllCourses([](const CourseFacts& facts, Course course) {
    const bool mayRead = facts.inputs == Offer::kWindow && facts.outputs == Offer::kWindow;
    const bool mustWrite = facts.isTwoShot && facts.writesPeers;
    if (!facts.hasRoot && mayRead) CHECK(course == Course::kInWindows);
    if (facts.hasRoot || !facts.readsPeers || !isOffered(facts.inputs) || (mustWrite && !isOffered(facts.outputs)))
      return;
    CHECK(course != Course::kStaged);
  });
}

// ---- ranks that hand each other their headers

struct NoTeam {
  static constexpr bool kIsOneThread = true;
};

constexpr int kRanks = 3;
constexpr std::uint64_t kPlace = 1 << 20;

// One operation on all ranks. All have the same counts.
class World {
 public:
  World(Collective collective, Algorithm algorithm, Algorithm direct, std::uint64_t bytes) : memory_(8, 0) {
    for (int rank = 0; rank < kRanks; ++rank) {
      Work& work = works_[at(rank)];
      work.signature.collective = collective;
      work.signature.algorithm = algorithm;
      work.direct = direct;
      work.rank = rank;
      work.ranks = kRanks;
      work.sendLayout.count = work.recvLayout.count = bytes;
      work.send = memory_.data();
      work.recv = memory_.data() + 4;
      work.sendRef = {kPlace, 1};
      work.recvRef = {2 * kPlace, 2};
      work.channel.links = links_[at(rank)].data();
    }
  }

  Work& operator[](int rank) { return works_[at(rank)]; }
  Link& link(int from, int to) { return links_[at(from)][at(to)]; }
  Exchange<NoTeam> on(int rank) { return {team_, works_[at(rank)]}; }

  // What rank `reader` finds in the header of `writer`: where a block is, the header says nothing of buffers.
  void meet(int reader, int writer) {
    const Work& theirs = works_[at(writer)];
    const bool isInline = theirs.fitsHeader(theirs.bytesOf(theirs.partTo(reader).count));
    const bool hasBlock = isInline && gives(theirs, writer, reader);
    link(reader, writer).headers.theirSend = hasBlock ? kLie : offeredInput(theirs, reader);
    link(reader, writer).headers.theirRecv = hasBlock ? kLie : offeredOutput(theirs, reader);
  }
  // What is left of an earlier operation.
  void forget(int reader, int writer) {
    link(reader, writer).headers.theirSend = link(reader, writer).headers.theirRecv = kLie;
  }

 private:
  static constexpr WindowRef kLie{3 * kPlace, 3};
  static std::size_t at(int rank) { return static_cast<std::size_t>(rank); }

  NoTeam team_;
  std::vector<unsigned char> memory_;
  std::array<Work, kRanks> works_;
  std::array<std::array<Link, kRanks>, kRanks> links_;
};

constexpr std::uint64_t kBytes[] = {0, 8, kHeaderPayloadBytes, kHeaderPayloadBytes + 1, 4096, 8192, 1 << 20};
constexpr std::uint64_t kLimits[] = {0, kHeaderPayloadBytes + 1, 4097, 8192};

bool touchesPeer(Path path) { return path == Path::kPeerReads || path == Path::kPeerWrites; }

// The giver and the receiver of one block, where each block has a path of its own.
void checkPair(World& world, int giver, int receiver) {
  const Path to = pathTo(world.on(giver), receiver);
  CHECK(to == pathFrom(world.on(receiver), giver));
  if (to == Path::kPeerReads) CHECK(isOffered(offerOf(offeredInput(world[giver], receiver))));
  if (to == Path::kPeerWrites) CHECK(isOffered(offerOf(offeredOutput(world[receiver], giver))));
  if (touchesPeer(to)) CHECK(world[giver].direct != Algorithm::kCount);
  if (!goesThroughSlots(world[giver])) return;
  world.forget(giver, receiver);  // the header may be unread
  CHECK_FALSE((touchesPeer(pathTo(world.on(giver), receiver)) && onlyGives(world[giver])));
  CHECK(pathTo(world.on(giver), receiver) == to);
}

// Two ranks of a pair that know how long their block is, and whose limits may differ, as their windows do; but not
// those of a gather.
void checkPairs(Collective collective, std::uint64_t bytes, std::uint64_t giversLimit, std::uint64_t receiversLimit) {
  const int giver = collective == Collective::kScatter || collective == Collective::kBroadcast ? 0 : 1;
  const int receiver = giver == 0 ? 1 : 0;
  for (const Algorithm direct : {Algorithm::kCount, Algorithm::kOneShot})
    for (const Start start : {Start::kChecks, Start::kStagesEarly})
      for (const Offer input : kOffersOfBuffers)
        for (const Offer output : kOffersOfBuffers) {
          World world(collective, Algorithm::kOneShot, direct, bytes);
          const bool isDirect = direct != Algorithm::kCount;
          const bool isRooted = isIn(collective, kMeetsRootOnly);
          const auto offered = [&](Offer offer) { return isDirect ? offer : Offer::kNothing; };
          const Sharing mine{true, true, offered(input), Offer::kNothing, Start::kChecks};
          world[giver].sharing = sharingIn(mine, isDirect && isRooted ? start : Start::kChecks, true);
          world[receiver].sharing = {true, true, Offer::kNothing, offered(output), Start::kChecks};
          world[giver].header.pairsFromBytes = giversLimit;
          world[receiver].header.pairsFromBytes = receiversLimit;
          world.meet(giver, receiver);
          world.meet(receiver, giver);
          INFO("collective " << static_cast<int>(collective) << ", " << bytes << " bytes, limits " << giversLimit
                             << " and " << receiversLimit << ", input " << static_cast<int>(input) << ", output "
                             << static_cast<int>(output) << ", direct " << isDirect << ", early "
                             << (start == Start::kStagesEarly));
          checkPair(world, giver, receiver);
        }
}

TEST_CASE("both ranks of a pair come to the same path, each from its own side and the peer's header") {
  for (const std::uint64_t bytes : kBytes)
    for (const std::uint64_t giversLimit : kLimits)
      for (const std::uint64_t receiversLimit : kLimits) {
        if ((giversLimit == 0) != (receiversLimit == 0)) continue;
        checkPairs(Collective::kScatter, bytes, giversLimit, receiversLimit);
        if (giversLimit != 0) checkPairs(Collective::kAllToAll, bytes, giversLimit, receiversLimit);
        if (giversLimit == receiversLimit) checkPairs(Collective::kGather, bytes, giversLimit, receiversLimit);
      }
  for (const std::uint64_t bytes : kBytes) checkPairs(Collective::kBroadcast, bytes, 0, 0);
}

// What a rank may offer, by what all have agreed on: an address only then, and no input that nobody could use
// (shareBuffers() in collectives/prepare.cc).
bool mayOffer(const Work& work, const Sharing& sharing) {
  const Collective collective = work.signature.collective;
  const bool isWritten =
      collective == Collective::kAllReduce || (collective == Collective::kReduce && work.rank == work.root);
  if (sharing.input == Offer::kAddress && !sharing.readsPeers) return false;
  if (sharing.output == Offer::kAddress && !sharing.writesPeers) return false;
  return !(isWritten && !sharing.readsPeers && sharing.output != Offer::kWindow && isOffered(sharing.input));
}

// The courses of all ranks, each after its own opening: that of ranks that have read headers is the same, and that of
// the others is what these come to.
void checkWorld(World& world) {
  std::array<Opening, kRanks> openings{};
  std::array<Course, kRanks> courses{};
  for (int rank = 0; rank < kRanks; ++rank) {
    openings[static_cast<std::size_t>(rank)] = openingOf(world[rank]);
    const bool reads = openings[static_cast<std::size_t>(rank)] == Opening::kMeets;
    for (int peer = 0; peer < kRanks; ++peer) {
      if (peer == rank) continue;
      const bool isPartner = !isIn(world[rank].signature.collective, kMeetsRootOnly) || rank == 0 || peer == 0;
      reads&& isPartner ? world.meet(rank, peer) : world.forget(rank, peer);
    }
    courses[static_cast<std::size_t>(rank)] = courseOf(world.on(rank), openings[static_cast<std::size_t>(rank)]);
  }
  for (int rank = 0; rank < kRanks; ++rank) {
    const auto at = static_cast<std::size_t>(rank);
    if (world[0].direct == Algorithm::kCount || openings[at] == Opening::kByAlgorithm)
      CHECK(courses[at] == Course::kStaged);
    // One-shot with a root is the same in both courses: each block has its own path.
    const bool isByBlock =
        isIn(world[0].signature.collective, kMeetsRootOnly) && world[0].signature.algorithm == Algorithm::kOneShot;
    if (!isByBlock) CHECK(courses[at] == courses[0]);
    if (courses[at] == Course::kInWindows) CHECK(world[rank].sharing.input == Offer::kWindow);
    if (courses[at] == Course::kByReading) CHECK(isOffered(world[rank].sharing.input));
    if (courses[at] == Course::kByWriting) CHECK(isOffered(world[rank].sharing.output));
  }
}

// All that each rank may offer, in all combinations.
void checkWorlds(Collective collective, Algorithm algorithm, Algorithm direct, bool reads, bool writes) {
  constexpr int kOfRank = 9;
  for (int combination = 0; combination < kOfRank * kOfRank * kOfRank; ++combination) {
    World world(collective, algorithm, direct, 1 << 20);
    bool isPossible = true;
    for (int rank = 0, rest = combination; rank < kRanks; ++rank, rest /= kOfRank) {
      world[rank].sharing = {reads, writes, kOffersOfBuffers[rest % 3], kOffersOfBuffers[rest / 3 % 3],
                             Start::kDefersChecks};
      isPossible = isPossible && mayOffer(world[rank], world[rank].sharing);
    }
    if (direct == Algorithm::kCount && combination != 0) return;  // nothing is offered then
    if (!isPossible) continue;
    INFO("collective " << static_cast<int>(collective) << ", algorithm " << static_cast<int>(algorithm) << ", direct "
                       << static_cast<int>(direct) << ", reads " << reads << ", writes " << writes << ", offers "
                       << combination);
    checkWorld(world);
  }
}

TEST_CASE("all ranks come to the same course, whichever of them have read headers") {
  for (int collective = 0; collective < static_cast<int>(Collective::kBarrier); ++collective)
    for (const Algorithm algorithm : {Algorithm::kOneShot, Algorithm::kTwoShot, Algorithm::kPairwise, Algorithm::kRing})
      for (const Algorithm direct : {Algorithm::kCount, Algorithm::kOneShot, Algorithm::kTwoShot})
        for (const bool reads : kBoth)
          for (const bool writes : kBoth) {
            const auto each = static_cast<Collective>(collective);
            const bool isFolded = each == Collective::kAllReduce;
            if (writes && (!reads || !(isFolded || isIn(each, kMeetsRootOnly)))) continue;
            checkWorlds(each, algorithm, direct, reads, writes);
          }
}

}  // namespace
}  // namespace kolo::device
