// What processes tell each other: the blobs that the core carries, and the three messages by which an importer gets a
// file from an exporter. All are fixed-size, of one machine, and proven by a key that only ranks of one communicator
// have.
//
// Thread safety: pure functions and plain data.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "../common/proof.h"
#include "../common/why.h"

namespace kolo::handover {

using namespace common;

inline constexpr std::size_t kSocketNameBytes = 48;

// Of a device. The identity of the process, and what explains why another one cannot reach it.
struct Address {
  static constexpr char kMagic[9] = "KOLOshmA";
  char magic[8];
  Id processId;
  Id hostId;
  std::uint64_t networkNamespace;  // inode; 0: unknown
  std::uint64_t processIdAt;       // where the process keeps its processId, for a trial reading
  std::int32_t pid;  // in the exporter's own namespace: for messages, and for a reading that is tried first
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
  std::uint64_t limit;                // of open files, where that is EMFILE
  char socketName[kSocketNameBytes];  // abstract, terminated; empty: none
  Proof proof;
};

// Exporter to importer, when it connects.
struct Hello {
  static constexpr char kMagic[9] = "KOLOshmH";
  char magic[8];
  Nonce serverNonce;
  // Not 0: the exporter has run out of descriptors, and closes the connection after this. EMFILE: its process has as
  // many as it may open, which is `limit`; ENFILE: the system has.
  std::int32_t outOfFiles;
  std::uint32_t reserved;
  std::uint64_t limit;
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
static_assert(std::has_unique_object_representations_v<Hello>);
static_assert(std::has_unique_object_representations_v<Request> && std::has_unique_object_representations_v<Reply>);

}  // namespace kolo::handover
