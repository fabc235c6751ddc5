// Which transports there are, and how the core calls one. The core names no transport: the build passes the table of
// those compiled in, KOLO_TRANSPORT_PLUGINS adds shared objects, KOLO_TRANSPORTS orders and restricts.
//
// Thread safety: list() and find() from any thread. A Device, and what was made of it, from one thread at a time, but
// for what sharesLinks() says.
#pragma once

#include <kolo/transport.h>

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"

namespace kolo::transport {

struct Entry {
  const koloTransport* table;
  std::string origin;  // "built in" or the shared object's path
  bool works;          // probe() said so
  std::string why;     // if not
};

// All transports in the order of preference in force: plugins first, then built in, restricted and ordered by `names`
// (comma separated; empty: KOLO_TRANSPORTS; if that is empty too, all). Errors: koloInvalidEnvironment for a plugin
// that cannot be loaded (path and reason), whose ABI version differs (both versions), or whose table lacks a function;
// and for an unknown name (the known ones are listed).
Result<std::vector<Entry>> list(const std::string& names);

// Of the memory that it links; a table from before there were several kinds links the host's.
koloMemoryKind_t memoryKindOf(const koloTransport& table);

// What every device is told about this process; the rest of the struct is the communicator's.
koloTransportHost thisProcess();

class Memory;
class Link;

// One transport opened for one rank of one communicator. The wrappers turn C codes into Status, with the transport's
// name in the message.
class Device : public std::enable_shared_from_this<Device> {
 public:
  static Result<std::shared_ptr<Device>> open(const koloTransport* table, const koloTransportHost& host);
  ~Device();
  const char* name() const { return table_->name; }
  const koloTransportBlob& address() const { return address_; }
  bool isPosted() const { return table_->linkKind == koloLinkPosted; }
  // Posted only: whether memory may be registered for a single operation.
  bool registersCheaply() const { return table_->registersCheaply != 0; }
  // Whether its links may be left for those of another transport (Link::abandon).
  bool linksCanBeAbandoned() const;
  // Mapped only: whether Link::read and Link::write may be called from several threads at once.
  bool sharesLinks() const;
  // Posted only: whether memory of CUDA devices may be registered.
  bool registersDeviceMemory() const;
  // Posted only: moves data; true if something has moved. As deviceProgress of the table.
  bool progress(int peer, int waitUs) const { return table_->deviceProgress(device_, peer, waitUs) == 1; }
  // Posted only: what the table and the device say of their network; nothing is known of a transport that does not say.
  struct Network {
    std::vector<koloTransportNic> nics;
    std::uint32_t messageNs = 0, putNs = 0, mostMegabits = 0;
  };
  Network network() const;
  // What was put need not reach anybody any more: from now on nothing waits for peers, or reads or writes memory for a
  // request. False: the transport does not know of that; canBeAbandoned() tells before.
  bool abandon() const;
  bool canBeAbandoned() const;

  // koloUnsupported: this memory cannot be shared by this transport. The fd is borrowed.
  Result<std::unique_ptr<Memory>> registerMemory(const koloTransportMemory& range);
  // koloUnreachable: this peer cannot be reached by this transport. koloRemoteError: the peer's memory has fewer than
  // `least` bytes, which is what this rank is going to use of it.
  Result<std::unique_ptr<Link>> openLink(const koloTransportBlob& peerAddress, const koloTransportBlob& peerMemory,
                                         std::uint64_t least);

 private:
  friend class Memory;
  friend class Link;
  Device(const koloTransport* table) : table_(table) {}
  const koloTransport* table_;
  void* device_ = nullptr;
  koloTransportBlob address_{};
};

// Registered until destroyed. Keeps its device alive.
class Memory {
 public:
  ~Memory();
  const koloTransportBlob& descriptor() const { return descriptor_; }
  // Posted only: what peers name it by.
  Result<koloTransportKey> key() const;
  const Device& device() const { return *device_; }
  void* handle() const { return memory_; }

 private:
  friend class Device;
  std::shared_ptr<Device> device_;
  void* memory_ = nullptr;
  koloTransportBlob descriptor_{};
};

// Open until destroyed. Keeps its device alive.
class Link {
 public:
  ~Link();
  // Null for a posted link.
  unsigned char* mapped() const { return mapped_; }
  std::uint64_t bytes() const { return bytes_; }  // of the peer's memory, which the link reaches
  bool isPosted() const { return device_->isPosted(); }
  std::uint32_t rails() const { return rails_; }
  // Of a posted link: accepts the request. koloInProgress: as much is under way as may be; koloRemoteError: the link is
  // lost.
  Status put(const koloTransportPut& put) const;
  std::uint64_t unfinished() const;
  std::uint64_t queued() const;
  Status state() const;
  bool canBeAbandoned() const { return device_->linksCanBeAbandoned(); }
  // Ends the way to the peer: nothing that the peer has put arrives any more. REQUIRES: canBeAbandoned().
  void abandon() const;
  // Whether read() works: proven when the link was opened. If not, why.
  const Status& reads() const { return reads_; }
  // Copies from ordinary memory of the peer, by its address there. REQUIRES: reads().
  Status read(void* to, std::uint64_t from, std::uint64_t bytes) const;
  // Whether write() works: proven when the link was opened.
  bool writes() const { return writes_; }
  // Copies into ordinary memory of the peer, by its address there. REQUIRES: writes().
  Status write(std::uint64_t to, const void* from, std::uint64_t bytes) const;

 private:
  friend class Device;
  std::shared_ptr<Device> device_;
  void* link_ = nullptr;
  unsigned char* mapped_ = nullptr;
  std::uint64_t bytes_ = 0;
  std::uint32_t rails_ = 1;
  Status reads_;
  bool writes_ = false;
};

// Equal on one running kernel, or by KOLO_HOST_ID.
using HostId = std::array<unsigned char, 16>;
const HostId& hostId();

}  // namespace kolo::transport
