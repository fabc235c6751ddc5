// The giving side: which memories this process has registered, and one background thread that hands their files to
// processes which prove that they belong to the memory's communicator.
//
// Thread safety: all functions, from any thread.
// Invariants: a file in the table is open, because its owner removes the memory before closing it, and files are sent
// only with the table's lock held. The thread never blocks but in poll, so a stranger, garbage or a client that says
// nothing costs at most a slot, for kClientTime, and the oldest slot goes to the next client when all are taken. A
// forked child starts with an empty table, no thread and no sockets of its parent.
#pragma once

#include <pthread.h>

#include <array>
#include <chrono>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <vector>

#include "wire.h"

namespace kolo::handover {

using IdKey = std::array<unsigned char, sizeof(Id)>;

struct Exported {
  void* address;
  std::uint64_t bytes;
  int fd;  // borrowed; -1: ordinary memory
  Key key;
};

// How many files this process may have open (RLIMIT_NOFILE); 0: not known.
std::uint64_t fileLimit();

class Exporter {
 public:
  // One for each process, never destroyed: the thread may run while the process exits.
  static Exporter& instance();

  // The new memory's id.
  IdKey add(const Exported& memory);
  void remove(const IdKey& id);
  std::optional<Exported> find(const IdKey& id);

  // Starts the thread if it does not run. 0, or an errno; each success is paired with one release(), the last of which
  // ends the thread.
  int acquire();
  void release();
  // Where it listens; valid between acquire and release.
  void copySocketName(char (&name)[kSocketNameBytes]);

 private:
  using Clock = std::chrono::steady_clock;
  struct Client {
    int fd;
    Clock::time_point deadline;
    Nonce nonce;
  };

  Exporter();
  int start();
  int openSockets();
  void closeSockets();
  void serve();
  int pollTimeout() const;
  bool acceptClients();
  void refuseForFiles(int errnum);
  void addClient(int fd);
  void answer(const Client& client);
  void sendReply(const Client& client, const Request& request, Answer answer, const Exported* memory);

  // Both are held over fork, in this order.
  std::mutex lifecycle_;  // users_, thread_, and starting and ending it
  std::mutex state_;      // everything below

  int users_ = 0;
  pthread_t thread_{};

  std::map<IdKey, Exported> memories_;
  std::vector<Client> clients_;  // oldest first; changed by the thread only
  int listener_ = -1;
  int wake_ = -1;   // eventfd: written once, to end the thread
  int spare_ = -1;  // given up for a moment, to tell importers that there are no descriptors
  char socketName_[kSocketNameBytes] = {};
};

}  // namespace kolo::handover
