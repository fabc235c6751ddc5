// What is inside a koloUniqueId: where the hub listens, and the job's secret.
//
// 128 bytes, little-endian: "KOLO", format u8, flags u8, port u16, library version u32, maker's pid u32, network stack
// u64, places 60 (8 of IPv4, 3 of IPv6), tag 16, secret 16 or zeros, growth u32, checksum 8.
//
// Thread safety: all functions, from any thread.
#pragma once

#include <kolo/kolo.h>

#include <cstdint>
#include <vector>

#include "bootstrap/process_info.h"
#include "bootstrap/socket.h"
#include "bootstrap/wire.h"

namespace kolo::bootstrap {

constexpr std::uint8_t kIdFormat = 3;  // of what follows it; what is before the maker's pid is the same in all formats

struct IdContents {
  std::uint8_t format = kIdFormat;
  // Of a root given by the user: its hub may come up later, so a refused connection is retried until the deadline.
  bool explicitRoot = false;
  // The host has addresses for which there was no room.
  bool hasMore = false;
  // The secret is of KOLO_SECRET (job_secret.h), and the bytes of the id have none.
  bool isSecretGiven = false;
  std::uint16_t port = 0;
  std::uint32_t version = KOLO_VERSION_CODE;
  std::uint32_t makerPid = 0;
  std::uint64_t stack = 0;    // stackIdentity() of the hub's process
  std::vector<Place> places;  // where the hub is, best first: as many as there is room for
  Secret secret{};
  std::uint32_t growth = 0;  // of the communicator that grows by this id (comm/factory.h); 0: none does
};

// Of a hub of this process that listens at these addresses; its port is still to be filled in.
IdContents contentsOfId(const Secret& secret, const LocalAddresses& local, bool explicitRoot);

koloUniqueId encodeId(const IdContents& contents);
// koloInvalidArgument: not an id, or damaged. koloMismatch: of a version of the library that writes ids in another
// format, both printed. Another version alone is no error here, nor is a KOLO_SECRET that is not set: its hub is to
// refuse this rank, so that all ranks, or their users, hear of it.
Result<IdContents> decodeId(const koloUniqueId& id);

}  // namespace kolo::bootstrap
