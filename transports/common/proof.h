// Messages and blobs that prove where they come from: fixed-size structs that begin with a magic and end with a proof
// (HMAC) by a key that only ranks of one communicator have.
//
// Thread safety: pure functions and plain data.
#pragma once

#include <kolo/transport.h>
#include <sodium.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace kolo::common {

struct Key {
  unsigned char bytes[crypto_auth_KEYBYTES];
};
using Proof = unsigned char[crypto_auth_BYTES];
using Nonce = unsigned char[32];
using Id = unsigned char[16];

// The key of one communicator's secret, for one transport only: purpose is "kolo transport shm", say.
inline Key deriveKey(const unsigned char (&communicator)[32], const char* purpose) {
  Key key;
  crypto_generichash(key.bytes, sizeof key.bytes, reinterpret_cast<const unsigned char*>(purpose),
                     std::strlen(purpose) + 1, communicator, sizeof communicator);
  return key;
}

template <class Message>
void setMagic(Message& message) {
  std::memcpy(message.magic, Message::kMagic, sizeof message.magic);
}
template <class Message>
bool hasMagic(const Message& message) {
  return std::memcmp(message.magic, Message::kMagic, sizeof message.magic) == 0;
}

// The proof is of everything that stands before it. Each kind of message has its own magic, so none passes for another.
template <class Message>
void prove(Message& message, const Key& key) {
  setMagic(message);
  crypto_auth(message.proof, reinterpret_cast<const unsigned char*>(&message), offsetof(Message, proof), key.bytes);
}
template <class Message>
bool isProven(const Message& message, const Key& key) {
  return hasMagic(message) && crypto_auth_verify(message.proof, reinterpret_cast<const unsigned char*>(&message),
                                                 offsetof(Message, proof), key.bytes) == 0;
}

template <std::size_t n>
bool same(const unsigned char (&a)[n], const unsigned char (&b)[n]) {
  return std::memcmp(a, b, n) == 0;
}

template <class Message>
void toBlob(const Message& message, koloTransportBlob* blob) {
  blob->bytes = sizeof message;
  std::memcpy(blob->data, &message, sizeof message);
}
template <class Message>
bool fromBlob(const koloTransportBlob& blob, Message* message) {
  if (blob.bytes != sizeof *message) return false;
  std::memcpy(message, blob.data, sizeof *message);
  return hasMagic(*message);
}

}  // namespace kolo::common
