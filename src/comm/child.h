// A communicator of some ranks of another one, its parent, as one of these ranks makes it: by split, shrink, or as a
// group.
//
// Its ranks come to know of each other as each of these functions says: who the members are, in which order, and under
// which key. Where all of them map each other's memory they may share the parent's pool (links/pool.h). Each member
// then offers a block, in whatever exchange it is in with the others. With the offers of all members a rank makes its
// part alone. Ranks of the parent that are not members need not know of it. If some member shares nothing, all members
// see that in the offers, and make the communicator by the control plane, as a first one is made.
//
// Thread safety: under the parent's turn.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "comm/factory.h"

namespace kolo::comm {

// Whether this rank may use the memory of these ranks, to which it opens links where it has none. If not, the log says
// why.
bool sharesMemory(Communicator& parent, const std::vector<int>& ranks);

class Child {
 public:
  // Without members as yet. key: may be changed until the communicator is made.
  Child(Communicator& parent, std::uint64_t key);

  // ranks: distinct ones of the parent, this one among them.
  void setMembers(std::vector<int> ranks);
  void setKey(std::uint64_t key) { membership_.key = key; }
  // Of the parent, in the child's order.
  const std::vector<int>& ranks() const { return ranks_; }
  const Membership& membership() const { return membership_; }

  // What this rank says to the other members, in at most so many bytes; "": it shares nothing. From now on the others
  // may use its block.
  std::string offer(const Options& options, std::size_t most);
  // They will not: none of them makes the communicator with this offer.
  void withdraw();
  // They may have made it, and this rank does not know. Their operations find that it has left.
  void leave();

  // This rank's part. offers: of all members, in their order; empty: nothing was offered. Collective over the members
  // if there are none, or one is "". Once.
  Result<Owned> make(const Options& options, const std::vector<std::string>& offers = {});

 private:
  struct Offer;
  Status agree(const std::vector<Offer>& offers) const;
  Result<Owned> makeOver(const Options& options, const std::vector<std::string>& texts);

  Communicator& parent_;
  std::vector<int> ranks_;
  Membership membership_;
  std::shared_ptr<Share> share_;  // this rank's block, and what is cut from it
  std::unique_ptr<Peers> peers_;  // links of the pool
};

}  // namespace kolo::comm
