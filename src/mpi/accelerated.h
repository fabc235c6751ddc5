// MPI's collectives by those of Kolo: one call on a communicator that has a session.
//
// Each function has the parameters of the MPI's. It may decline, and has then done nothing: the call is the MPI's. It
// declines what it does not cover by what is the same on all ranks; and arguments that the MPI refuses, so that the
// error is the MPI's own. What may differ between ranks (datatypes of the same signature, which of them have gaps,
// displacements) never decides, nor does what MPI forbids and the MPI does not refuse: the rank would be in the MPI
// while the others are in Kolo.
//
// A function ends by calling Kolo (carryOut). Arguments are judged and data packed before: until then nothing is
// counted, and nobody waited for.
#pragma once

#include <kolo/kolo.h>

#include <memory>
#include <type_traits>
#include <utility>

#include "mpi/regions.h"
#include "mpi/session.h"
#include "mpi/task.h"

namespace kolo::mpi {

class Outcome {
 public:
  Outcome(koloResult_t result) : result_(result) {}  // NOLINT: converting on purpose
  // Call what is the same on all ranks. why: a literal.
  static Outcome declined(const char* why) {
    Outcome outcome(koloSuccess);
    outcome.why_ = why;
    return outcome;
  }
  // Maybe on this rank alone: by arguments that the MPI refuses without a word to the others.
  static Outcome refused() { return declined("MPI has to judge the arguments"); }

  // nullptr: it was carried out, with result(); or was started, or could not be.
  const char* whyDeclined() const { return why_; }
  koloResult_t result() const { return result_; }

 private:
  koloResult_t result_;
  const char* why_ = nullptr;
};

// A collective: run(call, from, to), then to.store().
template <class From, class To, class Run>
class TaskOf final : public Task {
  static_assert(!std::is_reference_v<From> && !std::is_reference_v<To> && !std::is_reference_v<Run>,
                "a task outlives the call");

 public:
  TaskOf(From&& from, To&& to, Run&& run) : from_(std::move(from)), to_(std::move(to)), run_(std::move(run)) {
    to_.outliveTheCall();
  }
  ~TaskOf() override { wait(); }
  void store() override { to_.store(); }

 private:
  koloResult_t run(const Call& call) override { return run_(call, from_, to_); }

  From from_;
  To to_;
  Run run_;
};

class Accelerated {
 public:
  using Count = MPI_Count;
  using Counts = Numbers;
  using Displs = Numbers;

  // later: nullptr for calls that block; otherwise where to leave what was started. waitsForAll: as Session::carryOut
  // has it.
  Accelerated(Session& session, std::unique_ptr<Task>* later, bool waitsForAll)
      : session_(session), later_(later), waitsForAll_(waitsForAll), kolo_(session.kolo()), rank_(session.rank()),
        ranks_(session.ranks()) {}

#define COLLECTIVE(Name, INonblocking, parameters, arguments) Outcome try##Name parameters;
#include "mpi/collectives.inc"
#undef COLLECTIVE

 private:
  bool isRoot(int root) const { return root >= 0 && root < ranks_; }
  bool areBlocks(const Numbers& counts, const Numbers& displs) const;
  std::vector<Elements> elementsOfEach(const void* buffer, const Numbers& counts, const Numbers& displs,
                                       const MPI_Datatype* datatypes) const;
  Outcome differ(std::size_t given, std::size_t taken);
  Outcome exchange(Blocks&& from, Blocks&& to);
  bool calculates(MPI_Op op, MPI_Datatype datatype) const;
  Elements elements(const void* buffer, MPI_Datatype datatype) const { return {buffer, datatype, session_.comm()}; }
  Region ownResult(void* recvbuf, MPI_Count count, MPI_Datatype datatype) const;
  Outcome scan(const void* sendbuf, void* recvbuf, MPI_Count count, MPI_Datatype datatype, MPI_Op op, bool isInclusive);

  // Does run(call, from, to) and to.store(); of a nonblocking call, the former: then they move into a task. So `run`
  // holds what else it needs, and nothing of this object.
  template <class From, class To, class Run>
  Outcome carryOut(From&& from, To&& to, Run&& run, bool onlyGives = false) {
    if (later_ != nullptr) {
      auto task = std::make_unique<TaskOf<From, To, Run>>(std::move(from), std::move(to), std::move(run));
      const koloResult_t result = session_.start(waitsForAll_, [&] { return task->start(onlyGives); });
      if (result == koloSuccess) *later_ = std::move(task);
      return result;
    }
    const koloResult_t result = session_.carryOut(waitsForAll_, [&] { return run(Call(), from, to); });
    if (result == koloSuccess) to.store();
    return result;
  }
  // Does run(call), at once or in a task, for operations whose data are where they belong.
  template <class Run>
  Outcome carryOut(Run&& run, bool onlyGives = false) {
    return carryOut(
        Nothing(), Nothing(),
        [run = std::move(run)](const Call& call, const Nothing&, const Nothing&) { return run(call); }, onlyGives);
  }

  Session& session_;
  std::unique_ptr<Task>* later_;
  bool waitsForAll_;
  koloComm_t kolo_;
  int rank_, ranks_;
};

}  // namespace kolo::mpi
