// A communicator of the program's and Kolo's communicator beside it, of the same ranks in the same order.
//
// A session hangs on the communicator as an attribute, which copies of the communicator do not get. It comes with the
// first collective. Kolo's communicator, the counterpart, costs as much as hundreds of short collectives, so it comes
// only when use has paid for it: a session is young until the collectives that it has left to the MPI are worth that
// (grow). The counterpart of MPI_COMM_WORLD is made in MPI_Init (startup.cc).
//
// When the program frees the communicator, the session ends, but waits for no other rank (sessions.h). What is left
// ends in MPI_Finalize.
//
// Thread safety: of() from any thread; what it returns as MPI's communicators are: one collective at a time.
#pragma once

#include <kolo/kolo.h>

#include <cstdint>
#include <list>
#include <memory>

#include "mpi/datatypes.h"
#include "mpi/mpi_header.h"
#include "mpi/pool.h"

namespace kolo::mpi {

// How Kolo calculates what the MPI's operation and datatype say.
struct Reduction {
  koloDataType_t datatype;
  koloRedOp_t op;
};

class Session {
 public:
  // nullptr: this communicator's collectives are the MPI's: it has one rank or two groups, Kolo could not start on all
  // of its ranks, the session is young, or the MPI is not initialised, or not any more. All ranks find the same. For
  // blocking collectives: those on MPI_COMM_WORLD make its counterpart, where MPI_Init has not, and so do the first
  // ones on other communicators if these are to have it at once. young: becomes the session if it is young.
  static Session* of(MPI_Comm comm, Session** young = nullptr);
  // The session as of() finds it, but never young. Collective, for calls that cost as much as a counterpart.
  static Session* made(MPI_Comm comm);
  // The session as of() finds it, for calls that may not wait for other ranks: they make no counterpart. As ranks have
  // called the same blocking collectives before, all of them find it or none does.
  static Session* existing(MPI_Comm comm, Session** young = nullptr);

  bool isYoung() const { return counterpart_ == Counterpart::kNotYet; }
  // A collective that moved so many bytes, as all ranks count them, was left to the MPI. It may have been one too many:
  // then the counterpart is made. That waits for all ranks, so it is done behind a collective in which they all waited
  // for each other (haveMet): programs have been written for MPIs that wait no more than they must. REQUIRES: young.
  void grow(std::size_t bytes, bool haveMet);

  // Whether communicators of this process may have sessions, as far as is known: the MPI is initialised, there are
  // several ranks, and Kolo has not failed to start.
  static bool mayBe();

  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;
  ~Session();

  koloComm_t kolo() const { return kolo_; }
  int rank() const { return rank_; }
  int ranks() const { return ranks_; }
  MPI_Comm comm() const { return comm_; }

  // How Kolo calculates what is covered (operations.h). Where it has no such operation, it calls that of the MPI
  // (MPI_Reduce_local). In the order of the communicator's collectives.
  koloResult_t findReduction(MPI_Op op, MPI_Datatype datatype, Reduction& reduction);
  // Whether the MPI may calculate in any thread, on all ranks: they have asked for MPI_THREAD_MULTIPLE.
  bool mayCalculateAnywhere() const { return mayCalculateAnywhere_; }

  // Whether all ranks are on one host, as the MPI sees it.
  bool isOnOneHost() const { return isOnOneHost_; }
  // Collective. Memory that this process has mapped for all ranks, as koloWindowRegisterMapped takes it. nullptr:
  // collectives use it like any other.
  koloWindow_t adopt(void* const* parts, const std::size_t* bytes);
  // The end of that on this rank, before its memory is freed; the others' may be unmapped when all ranks have called
  // this. The session with this number may have ended. Waits for nobody, not even for collectives of this session's in
  // other threads: a window has a communicator of its own. Any thread.
  static void abandon(std::uint64_t number, koloWindow_t window);
  // No other session of the process has, or had, the same.
  std::uint64_t number() const { return number_; }

  // A collective: run() calls Kolo, or starts a request, with arguments that the MPI would not refuse. In the order of
  // the communicator's collectives. Before it, now and then, the ranks see whether some have new segments of memory
  // (pool.h). waitsForAll: every rank needs something from every other, and so loses nothing by that; otherwise it is
  // put off, for as long as looks are apart at most. Collectives are counted when they have been carried out: a rank
  // whose arguments were refused may make up for that, and the others have called once.
  template <class Run>
  koloResult_t carryOut(bool waitsForAll, bool blocks, const Run& run) {
    if (callsBeforeLook_ <= (waitsForAll ? 0 : -kMostBetweenLooks)) {
      const koloResult_t result = blocks ? look() : startLook();
      if (result != koloSuccess) return result;
    }
    const koloResult_t result = run();
    if (result == koloSuccess) --callsBeforeLook_;
    return result;
  }

 private:
  // An operation that the MPI carries out, on elements that Kolo only knows the length of.
  struct Borrowed {
    MPI_Op op;
    MPI_Datatype datatype;
    koloRedOp_t handle;
  };

  // A request for a window over some rank's next segment.
  struct Look {
    koloRequest_t request = nullptr;
    koloWindow_t window = nullptr;  // whose end is its communicator's
  };

  // Of communicators that have none yet, and may get one.
  enum class Counterpart : char { kNotYet, kNever, kMade };
  enum class When { kNotNow, kIfDue, kNow };

  explicit Session(MPI_Comm comm) : comm_(comm) {}
  static Session* find(MPI_Comm comm, When when, Session** young);
  static Session* attached(MPI_Comm comm);
  static Session* attach(MPI_Comm comm);
  bool isDue(When when) const;
  void make();
  int firstUnready(bool isReady);
  void findPlace();
  int newSegments() const;
  Pool::Segment nextSegment();
  koloResult_t look();
  koloResult_t startLook();
  void planNextLook();
  void noteLooks();
  void registerSegments(int rounds);
  koloResult_t join(const koloUniqueId& id);
  void retire();
  bool retiresAtOnce();
  koloResult_t borrow(MPI_Op op, MPI_Datatype datatype, koloRedOp_t& handle);
  static void fold(void* acc, const void* in, size_t count, koloDataType_t carrier, void* context);
  static int release(MPI_Comm comm, int keyval, void* attribute, void* extra);
  friend class Sessions;

  MPI_Comm comm_;
  std::uint64_t number_ = 0;
  int rank_ = 0, ranks_ = 1;
  Counterpart counterpart_ = Counterpart::kNotYet;
  std::uint64_t worth_ = 0;  // of the collectives that were left to the MPI; alike on all ranks
  koloComm_t kolo_ = nullptr;
  bool mayCalculateAnywhere_ = false;
  bool isOnOneHost_ = false;
  static constexpr int kMostBetweenLooks = 256;  // a look costs what a short collective does
  int betweenLooks_ = 1, callsBeforeLook_ = 0;   // the former doubles up to the most
  std::size_t registered_ = 0;                   // of the pool's segments
  int toRegister_ = 0;                           // the most that any rank has
  std::list<Look> looks_;                        // that were started, and perhaps are not over
  std::list<Borrowed> borrowed_;                 // places that koloRedOpCreate has been given
};

}  // namespace kolo::mpi
