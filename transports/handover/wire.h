// What processes tell each other: the blobs that the core carries, and the three messages by which an importer gets a
// file from an exporter. All are fixed-size, of one machine, and proven by a key that only ranks of one communicator
// have.
//
// Thread safety: pure functions and plain data.
#pragma once

#include <kolo/transport.h>
#include <sodium.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

namespace kolo::handover {

struct Key {
  unsigned char bytes[crypto_auth_KEYBYTES];
};
using Proof = unsigned char[crypto_auth_BYTES];
using Nonce = unsigned char[32];
using Id = unsigned char[16];

inline constexpr std::size_t kSocketNameBytes = 48;

// Of a device. Who the process is, and what explains why another one cannot reach it.
struct Address {
  static constexpr char kMagic[9] = "KOLOshmA";
  char magic[8];
  Id processId;
  Id hostId;
  std::uint64_t networkNamespace;  // inode; 0: unknown
  std::uint64_t processIdAt;       // where the process keeps its processId, for a trial reading
  std::int32_t pid;                // in the exporter's own namespace: for messages, and for a reading that is tried first
  std::uint32_t uid;
  Proof proof;
};

// Of a registered memory. Holds no pointer: in the same process the id is looked up.
struct Descriptor {
  static constexpr char kMagic[9] = "KOLOshmM";
  char magic[8];
  Id processId;
  Id memoryId;
  std::uint64_t bytes;
  std::uint64_t fdOffset;
  std::uint32_t hasFile;
  std::int32_t serverErrno;           // why there is no socket although there is a file
  char socketName[kSocketNameBytes];  // abstract, terminated; empty: none
  Proof proof;
};

// Exporter to importer, when it connects.
struct Hello {
  static constexpr char kMagic[9] = "KOLOshmH";
  char magic[8];
  Nonce serverNonce;
};

// Importer to exporter. The server's nonce makes a replayed request worthless.
struct Request {
  static constexpr char kMagic[9] = "KOLOshmR";
  char magic[8];
  Nonce serverNonce;
  Nonce clientNonce;
  Id memoryId;
  Proof proof;
};

enum class Answer : std::uint32_t { kGranted = 0, kUnknownMemory = 1, kWrongProof = 2 };

// Exporter to importer; with the file if granted. Proven only then: to a stranger nothing is proven.
struct Reply {
  static constexpr char kMagic[9] = "KOLOshmF";
  char magic[8];
  Nonce clientNonce;
  Answer answer;
  std::uint32_t uidSeen;  // the importer's user as the kernel told the exporter
  Proof proof;
};

static_assert(std::has_unique_object_representations_v<Address> && sizeof(Address) <= KOLO_TRANSPORT_BLOB_BYTES);
static_assert(std::has_unique_object_representations_v<Descriptor> && sizeof(Descriptor) <= KOLO_TRANSPORT_BLOB_BYTES);
static_assert(std::has_unique_object_representations_v<Request> && std::has_unique_object_representations_v<Reply>);

// The key of one communicator's secret, for one transport only: purpose is "kolo transport shm", say.
inline Key deriveKey(const unsigned char (&communicator)[32], const char* purpose) {
  Key key;
  crypto_generichash(key.bytes, sizeof key.bytes, reinterpret_cast<const unsigned char*>(purpose), std::strlen(purpose) + 1,
                     communicator, sizeof communicator);
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

// Where a function's one line of explanation goes.
struct Why {
  char* text;
  std::size_t bytes;
  // Writes the line and returns the code.
  __attribute__((format(printf, 3, 4))) int fail(int code, const char* format, ...) const;
};

// strerror, of threads.
struct ErrorText {
  explicit ErrorText(int errnum);
  char room[128];
  const char* text;
};

}  // namespace kolo::handover
