// One rank of a contract test: a device with its memories and links. Used by the test directly, and by the other
// process that a test commands.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "memory/device_memory.h"
#include "memory/shared_memory.h"
#include "transport/registry.h"

namespace kolo::contract {

struct HostOptions {
  unsigned char secret = 1;   // every byte of the communicator's secret
  bool otherMachine = false;  // claims another running kernel
  bool otherProcess = false;  // claims another address space than this one's
  int timeoutMs = 20000;
  int rank = 0;
  int ranks = 2;
  char nearNics[32] = {};
  char settings[96] = {};  // NAME=value, separated by blanks; before the environment's
};

// A koloTransportPut by indices.
struct PutOptions {
  std::uint64_t memory = 0;  // from which
  std::uint64_t from = 0;    // offset in it
  std::uint64_t bytes = 0;
  std::uint64_t to = 0;
  std::uint64_t signalTo = KOLO_TRANSPORT_NO_SIGNAL;
  std::uint64_t signal = 0;
  std::uint32_t rail = 0;
  std::uint32_t more = KOLO_TRANSPORT_NOTHING;
  bool hasKey = false;
  koloTransportKey key{};
};

// Memory that other processes can be given, or not. Of a GPU: by the virtual memory API, or of a pool.
enum class Backing { kFile, kOrdinary };

class Rank {
 public:
  // The device of the transport of that name, of a communicator of two ranks.
  Status open(const std::string& transport, const HostOptions& options);
  void close();
  const koloTransportBlob& address() const { return device_->address(); }

  // A range of `bytes` bytes, `offset` bytes into its file. The value is its index.
  Result<std::size_t> registerMemory(std::size_t bytes, std::size_t offset, Backing backing);
  const koloTransportBlob& descriptor(std::size_t memory) const { return memories_[memory].registered->descriptor(); }
  unsigned char* data(std::size_t memory) const { return memories_[memory].begin(); }
  std::size_t bytes(std::size_t memory) const { return memories_[memory].bytes; }
  // Of the registration; free additionally unmaps and closes the file.
  void deregister(std::size_t memory) { memories_[memory].registered.reset(); }
  void free(std::size_t memory) { memories_[memory] = {}; }

  Result<std::size_t> openLink(const koloTransportBlob& address, const koloTransportBlob& descriptor);
  unsigned char* mapped(std::size_t link) const { return links_[link]->mapped(); }
  const Status& reads(std::size_t link) const { return links_[link]->reads(); }
  Status read(std::size_t link, void* to, std::uint64_t from, std::uint64_t bytes) const {
    return links_[link]->read(to, from, bytes);
  }
  bool writes(std::size_t link) const { return links_[link]->writes(); }
  Status write(std::size_t link, std::uint64_t to, const void* from, std::uint64_t bytes) const {
    return links_[link]->write(to, from, bytes);
  }
  void closeLink(std::size_t link) { links_[link].reset(); }

  // Of posted links.
  Result<koloTransportKey> key(std::size_t memory) const { return memories_[memory].registered->key(); }
  std::uint32_t rails(std::size_t link) const { return links_[link]->rails(); }
  Status put(std::size_t link, const PutOptions& options) const;
  std::uint64_t unfinished(std::size_t link) const { return links_[link]->unfinished(); }
  std::uint64_t queued(std::size_t link) const { return links_[link]->queued(); }
  Status state(std::size_t link) const { return links_[link]->state(); }
  bool progress(int peer, int waitUs) const { return device_->progress(peer, waitUs); }
  bool abandon() const { return device_->abandon(); }

 private:
  struct PoolDeleter {
    void operator()(unsigned char* memory) const;
  };
  struct Owned {
    memory::SharedMemory file;
    memory::DeviceMemory onDevice;
    std::unique_ptr<unsigned char, PoolDeleter> ofPool;
    std::size_t offset = 0;
    std::size_t bytes = 0;
    unsigned char* begin() const {
      return offset + (ofPool != nullptr ? ofPool.get() : onDevice.bytes() != 0 ? onDevice.as() : file.data());
    }
    std::unique_ptr<transport::Memory> registered;
  };
  std::uint32_t kind_ = koloMemoryHost;
  std::shared_ptr<transport::Device> device_;
  std::vector<Owned> memories_;
  std::vector<std::unique_ptr<transport::Link>> links_;
};

// Both sides of a ping-pong of release stores and acquire loads with a payload. False if a payload was not visible with
// its counter, or after a minute.
bool sendPings(unsigned char* own, unsigned char* peers, std::uint64_t rounds);
bool answerPings(unsigned char* own, unsigned char* peers, std::uint64_t rounds);

// Of this process.
std::size_t openFiles();
std::size_t sharedMappings();

}  // namespace kolo::contract
