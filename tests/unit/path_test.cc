#include "device/path.h"

#include <catch2/catch.hpp>

namespace kolo::device {
namespace {

// ---- what ranks share

// All combinations of what decides.
template <class Check>
void forAllSharing(Check check) {
  for (unsigned bits = 0; bits < 1u << 7; ++bits) {
    const auto bit = [&](unsigned place) { return (bits >> place & 1) != 0; };
    const SharingFacts facts{.readsPeers = bit(0),
                             .writesPeers = bit(1),
                             .input = {.isForPeers = bit(2), .isInWindow = bit(3)},
                             .output = {.isForPeers = bit(4), .isInWindow = bit(5)},
                             .isReachable = bit(6)};
    for (const Start start : {Start::kChecks, Start::kDefersChecks, Start::kStagesEarly}) {
      INFO("facts " << bits << ", start " << static_cast<int>(start));
      check(facts, start, sharingOf(facts, start));
    }
  }
}

TEST_CASE("what all ranks have agreed depends on nothing that one rank alone knows") {
  forAllSharing([](const SharingFacts& facts, Start start, const Sharing& sharing) {
    CHECK(sharing.readsPeers == facts.readsPeers);
    CHECK(sharing.writesPeers == facts.writesPeers);
    CHECK(sharing.start == start);
  });
}

TEST_CASE("a rank that stages early offers nothing") {
  forAllSharing([](const SharingFacts&, Start start, const Sharing& sharing) {
    if (start != Start::kStagesEarly) return;
    CHECK(sharing.input == Offer::kNothing);
    CHECK(sharing.output == Offer::kNothing);
  });
}

TEST_CASE("whether a call defers the checks of headers does not change what it offers") {
  forAllSharing([](const SharingFacts& facts, Start start, const Sharing& sharing) {
    if (start != Start::kDefersChecks) return;
    const Sharing other = sharingOf(facts, Start::kChecks);
    CHECK((other.input == sharing.input && other.output == sharing.output));
  });
}

TEST_CASE("a buffer is offered only if it is for the peers, and in its window if it has one") {
  forAllSharing([](const SharingFacts& facts, Start start, const Sharing& sharing) {
    const auto check = [&](const BufferFacts& buffer, Offer offer) {
      if (!buffer.isForPeers) CHECK(offer == Offer::kNothing);
      if (offer == Offer::kWindow) CHECK(buffer.isInWindow);
      if (buffer.isForPeers && buffer.isInWindow && start != Start::kStagesEarly) CHECK(offer == Offer::kWindow);
    };
    check(facts.input, sharing.input);
    check(facts.output, sharing.output);
  });
}

TEST_CASE("an address is offered only if all ranks have agreed to use it, and if it can be reached") {
  forAllSharing([](const SharingFacts& facts, Start start, const Sharing& sharing) {
    const auto check = [&](const BufferFacts& buffer, bool isAgreed, Offer offer) {
      const bool may = start != Start::kStagesEarly && buffer.isForPeers && !buffer.isInWindow;
      CHECK((offer == Offer::kAddress) == (may && isAgreed && facts.isReachable));
    };
    check(facts.input, facts.readsPeers, sharing.input);
    check(facts.output, facts.writesPeers, sharing.output);
  });
}

TEST_CASE("only the first call of an operation checks all headers") {
  CHECK_FALSE(defersChecks(Start::kChecks));
  CHECK(defersChecks(Start::kDefersChecks));
  CHECK(defersChecks(Start::kStagesEarly));
}

// ---- a block

template <class Check>
void forAllBlocks(Check check) {
  for (unsigned bits = 0; bits < 64; ++bits) {
    const auto bit = [&](unsigned place) { return (bits >> place & 1) != 0; };
    const BlockFacts block{.fitsHeader = bit(0),
                           .hasOwnPath = bit(1),
                           .isStagedEarly = bit(2),
                           .mayBeWritten = bit(3),
                           .outputIsOffered = bit(4),
                           .inputIsOffered = bit(5)};
    INFO("header " << block.fitsHeader << ", own path " << block.hasOwnPath << ", early " << block.isStagedEarly
                   << ", writable " << block.mayBeWritten << ", output " << block.outputIsOffered << ", input "
                   << block.inputIsOffered);
    check(block, pathOf(block));
  }
}

TEST_CASE("a block goes with its header exactly if it fits") {
  forAllBlocks([](const BlockFacts& block, Path path) { CHECK((path == Path::kInline) == block.fitsHeader); });
}

TEST_CASE("nobody touches memory that was not offered") {
  forAllBlocks([](const BlockFacts& block, Path path) {
    if (path == Path::kPeerReads) CHECK(block.inputIsOffered);
    if (path == Path::kPeerWrites) CHECK((block.mayBeWritten && block.outputIsOffered));
  });
}

TEST_CASE("a block that has been staged early, or has no path of its own, goes through slots") {
  forAllBlocks([](const BlockFacts& block, Path path) {
    if (!block.fitsHeader && (block.isStagedEarly || !block.hasOwnPath)) CHECK(path == Path::kStaged);
  });
}

TEST_CASE("a block is copied once wherever that is possible, and written rather than read") {
  forAllBlocks([](const BlockFacts& block, Path path) {
    if (block.fitsHeader || block.isStagedEarly || !block.hasOwnPath) return;
    if (block.mayBeWritten && block.outputIsOffered) {
      CHECK(path == Path::kPeerWrites);
    } else {
      CHECK(path == (block.inputIsOffered ? Path::kPeerReads : Path::kStaged));
    }
  });
}

TEST_CASE("the output of a peer that may not have been met decides nothing") {
  forAllBlocks([](BlockFacts block, Path path) {
    if (block.mayBeWritten) return;
    block.outputIsOffered = !block.outputIsOffered;
    CHECK(pathOf(block) == path);
  });
}

// ---- whole operations

template <class Check>
void forAllOpenings(Check check) {
  for (unsigned bits = 0; bits < 1u << 11; ++bits) {
    const auto bit = [&](unsigned place) { return (bits >> place & 1) != 0; };
    const OpeningFacts facts{.algorithmMeetsAll = bit(0),
                             .hasDirectForm = bit(1),
                             .isBarrier = bit(2),
                             .endsAtRoot = bit(3),
                             .givesAndTakes = bit(4),
                             .pairsDecide = bit(5),
                             .readsPeers = bit(6),
                             .isScaled = bit(7),
                             .ownBuffersAreShared = bit(8),
                             .givesThroughSlots = bit(9),
                             .defersChecks = bit(10)};
    INFO("facts " << bits);
    check(facts, openingOf(facts));
  }
}

TEST_CASE("a rank sends before it has read a header only if no header could keep its data out of the slots") {
  forAllOpenings([](const OpeningFacts& facts, Opening opening) {
    if (opening != Opening::kSends) return;
    CHECK_FALSE(facts.endsAtRoot);
    if (facts.pairsDecide) return;
    CHECK((facts.algorithmMeetsAll && facts.givesAndTakes));
    CHECK_FALSE(facts.readsPeers);
    CHECK((!facts.hasDirectForm || facts.isScaled || !facts.ownBuffersAreShared));
  });
}

TEST_CASE("a rank that may need others' headers reads them") {
  forAllOpenings([](const OpeningFacts& facts, Opening opening) {
    if (opening == Opening::kByAlgorithm) CHECK((facts.isBarrier || !(facts.hasDirectForm || facts.algorithmMeetsAll)));
    if (opening == Opening::kOwes) CHECK((facts.defersChecks && facts.givesThroughSlots));
    if (opening == Opening::kSends || facts.isBarrier || !(facts.hasDirectForm || facts.algorithmMeetsAll)) return;
    CHECK((opening == Opening::kOwes) == (facts.defersChecks && facts.givesThroughSlots));
  });
}

TEST_CASE("what one rank may leave for later changes when it waits, and nothing else") {
  forAllOpenings([](OpeningFacts facts, Opening opening) {
    facts.defersChecks = !facts.defersChecks;
    const Opening other = openingOf(facts);
    const auto waits = [](Opening each) { return each == Opening::kMeets || each == Opening::kOwes; };
    CHECK((other == opening || (waits(other) && waits(opening))));
  });
}

template <class Check>
void forAllCourses(Check check) {
  for (unsigned bits = 0; bits < 1u << 8; ++bits) {
    const auto bit = [&](unsigned place) { return (bits >> place & 1) != 0; };
    const CourseFacts facts{.wentWithHeader = bit(0),
                            .hasDirectForm = bit(1),
                            .owes = bit(2),
                            .endsAtRoot = bit(3),
                            .blocksMayDiffer = bit(4),
                            .rootOffers = bit(5),
                            .buffersAreShared = bit(6),
                            .inputsAreReadable = bit(7)};
    INFO("facts " << bits);
    check(facts, courseOf(facts));
  }
}

TEST_CASE("an operation leaves the slots only if it has a direct form, and if headers have been read that allow it") {
  forAllCourses([](const CourseFacts& facts, Course course) {
    CHECK((course == Course::kNothing) == facts.wentWithHeader);
    if (course == Course::kNothing || course == Course::kStaged) return;
    CHECK((facts.hasDirectForm && !facts.owes));
    CHECK((course == Course::kByBlock) == facts.endsAtRoot);
    if (course == Course::kByBlock) CHECK((facts.blocksMayDiffer || facts.rootOffers));
    if (course == Course::kInWindows) CHECK(facts.buffersAreShared);
    if (course == Course::kByReading) CHECK((facts.inputsAreReadable && !facts.buffersAreShared));
  });
}

TEST_CASE("an operation that may go without slots does") {
  forAllCourses([](const CourseFacts& facts, Course course) {
    const bool mayGo = facts.endsAtRoot ? facts.blocksMayDiffer || facts.rootOffers
                                        : facts.buffersAreShared || facts.inputsAreReadable;
    if (facts.hasDirectForm && !facts.owes && mayGo) CHECK(course != Course::kStaged);
  });
}

TEST_CASE("what a header says decides nothing for a rank that has not read it") {
  forAllCourses([](CourseFacts facts, Course course) {
    if (!facts.owes) return;
    facts.rootOffers = !facts.rootOffers;
    facts.buffersAreShared = !facts.buffersAreShared;
    facts.inputsAreReadable = !facts.inputsAreReadable;
    CHECK(courseOf(facts) == course);
  });
}

}  // namespace
}  // namespace kolo::device
