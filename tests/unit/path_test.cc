#include "device/path.h"

#include <catch2/catch.hpp>

namespace kolo::device {
namespace {

// All combinations of what decides.
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

}  // namespace
}  // namespace kolo::device
