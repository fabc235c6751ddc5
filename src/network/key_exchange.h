// A key for one connection between two ends that hold the same secret.
//
// It is made after CPace (draft-irtf-cfrg-cpace), with libsodium's ristretto255, the group of X25519, and BLAKE2b; what
// is hashed is not encoded as the draft says, so it works with itself alone. The secret
// chooses a point. Each end draws a number, sends the point times that number (its share), and multiplies the other
// end's share by its own number. The key is a hash of this product, the secret, and all that both have said before.
//  - A recording tells nothing by which a guess of the secret could be checked, however weak the secret is. A guess is
//    checked by connecting, one guess a connection.
//  - A secret that becomes known later opens no recording, for the numbers are gone with the connection.
//  - Both shares are new for each connection, so what was recorded of one proves nothing on another.
//
// Thread safety: different objects from any thread.
#pragma once

#include <array>
#include <cstddef>
#include <span>
#include <string_view>

namespace kolo::network {

class KeyExchange {
 public:
  static constexpr std::size_t kBytes = 32;
  using Key = std::array<unsigned char, kBytes>;
  using Share = std::array<unsigned char, kBytes>;

  // sodium_init() has been called.
  explicit KeyExchange(std::span<const unsigned char, kBytes> secret);
  ~KeyExchange();

  // To be sent to the other end.
  const Share& share() const { return share_; }
  // transcript: what both ends have said, both shares included. Where the other end's share is no point, the key is one
  // that nobody else has.
  Key finish(const Share& theirs, std::string_view transcript) const;

 private:
  Key secret_, number_;
  Share share_;
};

}  // namespace kolo::network
