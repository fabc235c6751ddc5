// One rank's part in making a child: a communicator of some ranks of another, its parent, by split, by shrink or as a
// group.
//
// The split, shrink or group function says how ranks learn the members, their order, and the key. Where all of them map
// each other's memory they may share the parent's pool (links/pool.h). Each member then offers a block of the pool, in
// the exchange by which members meet. With all offers a rank makes its part alone. The parent's other ranks are not
// involved. If a member shares nothing, all members see that in the offers, and make the communicator by the control
// plane, like a first one.
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
  // Has no members yet. key: may be changed until make(). interrupt: ends the exchanges of making it.
  Child(Communicator& parent, std::uint64_t key, const std::shared_ptr<bootstrap::Interrupt>& interrupt);

  // ranks: distinct ones of the parent, this one among them.
  void setMembers(std::vector<int> ranks);
  void setKey(std::uint64_t key) { membership_.key = key; }
  // Their ranks in the parent, in order.
  const std::vector<int>& ranks() const { return ranks_; }
  const Membership& membership() const { return membership_; }

  // This rank's text for the other members, of at most `most` bytes; "": it shares nothing. The others may then use its
  // block.
  std::string offer(const Options& options, std::size_t most);
  // Takes the offer back. REQUIRES: no member uses it.
  void withdraw();
  // Says that this rank has left, to members that may have made the child.
  void leave();

  // Makes this rank's part, once. offers: all members', in order; empty: none. Collective over the members if there are
  // none, or if one is "".
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
