#include "seal.h"

#include <cstring>

namespace kolo::tcp {

using connect::Cipher;

Seal::Seal(const Direction& direction) : cipher_(direction.cipher) {
  static_assert(sizeof keys_ <= crypto_generichash_BYTES_MAX);
  unsigned char purpose[] = "kolo tcp rail ..";
  purpose[sizeof purpose - 3] = static_cast<unsigned char>(direction.rail);
  purpose[sizeof purpose - 2] = direction.isDiallers ? 1 : 0;
  crypto_generichash(reinterpret_cast<unsigned char*>(&keys_), sizeof keys_, purpose, sizeof purpose,
                     direction.connection.bytes, sizeof direction.connection.bytes);
  if (cipher_ == Cipher::kAes256Gcm) crypto_aead_aes256gcm_beforenm(&aes_, keys_.ofPayloads);
}

Seal::~Seal() {
  sodium_memzero(&keys_, sizeof keys_);
  sodium_memzero(&aes_, sizeof aes_);
}

std::uint64_t Seal::tag(Frame frame, std::uint64_t number) const {
  frame.tag = number;
  std::uint64_t tag;
  static_assert(sizeof tag == crypto_shorthash_BYTES);
  crypto_shorthash(reinterpret_cast<unsigned char*>(&tag), reinterpret_cast<const unsigned char*>(&frame), sizeof frame,
                   keys_.ofHeaders);
  return tag;
}

Seal::Nonce Seal::nextNonce() {
  Nonce nonce{};
  std::memcpy(nonce.bytes, &pieces_, sizeof pieces_);
  ++pieces_;
  return nonce;
}

void Seal::close(const unsigned char* piece, std::size_t bytes, unsigned char* sealed) {
  const Nonce nonce = nextNonce();
  if (cipher_ == Cipher::kAes256Gcm) {
    crypto_aead_aes256gcm_encrypt_afternm(sealed, nullptr, piece, bytes, nullptr, 0, nullptr, nonce.bytes, &aes_);
  } else {
    crypto_aead_chacha20poly1305_ietf_encrypt(sealed, nullptr, piece, bytes, nullptr, 0, nullptr, nonce.bytes,
                                              keys_.ofPayloads);
  }
}

bool Seal::open(const unsigned char* sealed, std::size_t bytes, unsigned char* piece) {
  const Nonce nonce = nextNonce();
  const std::size_t all = bytes + kTag;
  if (cipher_ == Cipher::kAes256Gcm) {
    return crypto_aead_aes256gcm_decrypt_afternm(piece, nullptr, nullptr, sealed, all, nullptr, 0, nonce.bytes,
                                                 &aes_) == 0;
  }
  return crypto_aead_chacha20poly1305_ietf_decrypt(piece, nullptr, nullptr, sealed, all, nullptr, 0, nonce.bytes,
                                                   keys_.ofPayloads) == 0;
}

}  // namespace kolo::tcp
