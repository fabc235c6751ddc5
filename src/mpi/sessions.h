// All sessions of the process, from MPI_Init, or the first collective, until MPI_Finalize.
//
// A session whose communicator has been freed ends as soon as it needs no other rank for that. MPI_Comm_free waits for
// nobody, because a peer may be waiting for what this rank does next. So a session that cannot end yet is kept, and
// tried again whenever another session begins or ends. MPI_Finalize waits for the rest: by then every rank has called
// whatever a session may wait for.
//
// Thread safety: all functions, but for close(), when no other thread is in the MPI.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "mpi/session.h"

namespace kolo::mpi {

class Sessions {
 public:
  // Whether the MPI is up, and the sessions with it.
  bool isOpen() { return state_.load(std::memory_order_acquire) == State::kOpen || open(); }  // [open]
  int keyval() const { return keyval_; }
  // Code that remembers what it found here has to look again when this number has changed.
  std::uint64_t changes() const { return changes_.load(std::memory_order_acquire); }  // [change]

  Session* add(std::unique_ptr<Session> session);
  // nullptr: the session is no more, or has none. The session may end as soon as this has returned; Kolo refuses the
  // handle then.
  koloComm_t counterpartOf(std::uint64_t number);
  // Its communicator has been freed.
  void end(const Session& session);
  // Ends those of freed communicators that need no other rank for it.
  void sweep();

  // Lets the MPI go on.
  void progress();

  // What collectives that were left to the MPI must have been worth before a communicator gets its counterpart
  // (Session::grow).
  std::uint64_t price() const { return price_.load(std::memory_order_relaxed); }
  // What all ranks have agreed on.
  void setPrice(std::uint64_t price) { price_.store(price, std::memory_order_relaxed); }

  // Kolo could not start on a communicator.
  bool hasFailed() const { return hasFailed_; }
  void setFailed() { hasFailed_ = true; }

 private:
  enum class State { kClosed, kOpen, kOver };

  bool open();
  void close();
  static int finalize(MPI_Comm comm, int keyval, void* attribute, void* extra);
  // A thread that may use a new communicator with an old one's handle knows of it from the one that freed that, after
  // this.
  void change() { changes_.fetch_add(1, std::memory_order_release); }  // [change]

  std::atomic<std::uint64_t> changes_{1};
  std::atomic<State> state_{State::kClosed};
  std::mutex mutex_;
  std::map<std::uint64_t, std::unique_ptr<Session>> all_;  // by number, and so in the order in which they were made
  std::vector<std::unique_ptr<Session>> ending_;           // their communicators have been freed
  std::uint64_t made_ = 0;
  int keyval_ = MPI_KEYVAL_INVALID;       // of sessions
  int finalizer_ = MPI_KEYVAL_INVALID;    // of MPI_COMM_SELF's attribute, whose end is the beginning of MPI_Finalize
  MPI_Comm own_ = MPI_COMM_NULL;          // of this process
  MPI_Request never_ = MPI_REQUEST_NULL;  // receives there, where nobody sends
  std::mutex testing_;
  std::atomic<std::uint64_t> price_{0};
  std::atomic<bool> hasFailed_{false};
};

// Never destroyed: a program may call MPI from its own destructors.
inline Sessions& sessions() {
  static auto* const all = new Sessions;
  return *all;
}

}  // namespace kolo::mpi
