// What proves the frames of one direction of a rail and, if the job asks for it, encrypts them. Both ends derive its
// keys from the key of their connections (network/key_exchange.h), which is new for each set of connections.
//  - Headers are in the clear, with a tag of 64 bits (SipHash-2-4) over the header and its number: a frame that was
//    altered, left out, repeated, or taken from another rail or direction does not pass. One that does not pass ends
//    the connection, so there are no second guesses.
//  - Payloads are encrypted in pieces, each with a tag of its own, by AES-256-GCM or ChaCha20-Poly1305 (libsodium).
//    Nothing of a piece is seen before its tag has been checked. The nonces count the pieces of this key.
//
// Thread safety: one thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>

#include "../connect/wire.h"
#include "frame.h"

namespace kolo::tcp {

struct Direction {
  const common::Key& connection;
  std::size_t rail = 0;
  bool isDiallers = true;  // the dialler sends
  connect::Cipher cipher = connect::Cipher::kNone;
};

class Seal {
 public:
  static constexpr std::size_t kPiece = 16384, kTag = crypto_aead_chacha20poly1305_IETF_ABYTES;
  static_assert(kTag == crypto_aead_aes256gcm_ABYTES);

  explicit Seal(const Direction& direction);
  ~Seal();
  Seal(const Seal&) = delete;
  Seal& operator=(const Seal&) = delete;

  // frame: all but its tag. number: how many frames went before.
  std::uint64_t tag(Frame frame, std::uint64_t number) const;

  bool encrypts() const { return cipher_ != connect::Cipher::kNone; }
  // The next piece, of at most kPiece bytes; sealed, it has kTag more.
  void close(const unsigned char* piece, std::size_t bytes, unsigned char* sealed);
  // False: it is not what the other end sealed as its next piece; nothing of it is told.
  bool open(const unsigned char* sealed, std::size_t bytes, unsigned char* piece);

 private:
  struct Nonce {
    unsigned char bytes[crypto_aead_chacha20poly1305_IETF_NPUBBYTES];
  };
  static_assert(sizeof(Nonce) == crypto_aead_aes256gcm_NPUBBYTES);
  Nonce nextNonce();

  connect::Cipher cipher_;
  std::uint64_t pieces_ = 0;
  struct {
    unsigned char ofHeaders[crypto_shorthash_KEYBYTES];
    unsigned char ofPayloads[crypto_aead_chacha20poly1305_IETF_KEYBYTES];
  } keys_;
  crypto_aead_aes256gcm_state aes_;
};

}  // namespace kolo::tcp
