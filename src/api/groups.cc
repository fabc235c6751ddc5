// Groups of ranks: communicators of some ranks, meshes, names, the translation of ranks, and votes.
#include <algorithm>
#include <array>
#include <cstdint>
#include <string>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "api/checks.h"
#include "api/guard.h"
#include "api/ownership.h"
#include "base/caller.h"
#include "bootstrap/wire.h"
#include "comm/factory.h"
#include "comm/in_turn.h"
#include "comm/mesh.h"
#include "comm/subgroups.h"

namespace kolo::api {
namespace {

std::uintptr_t numberOf(koloComm_t handle) { return reinterpret_cast<std::uintptr_t>(handle); }

// A group that exists already, and that this rank would use again: one owner more for as long as that is open.
class FormerGroup {
 public:
  FormerGroup(comm::Communicator& parent, const std::vector<int>& ranks, const Result<comm::Options>& options) {
    const comm::Subgroups::Entry* const entry =
        options.ok() ? parent.subgroups().find(ranks, options.value()) : nullptr;
    if (entry == nullptr) return;
    const Pin<comm::Communicator> group = communicators.find(numberOf(entry->handle));
    const bool isUsable = group && !group->failed() && !group->isFinalized() && group->references().add();
    if (!isUsable) return;
    handle_ = entry->handle;
    number_ = entry->number;
  }
  ~FormerGroup() {
    if (handle_ == nullptr) return;
    if (const Status ended = dropOwner(handle_); !ended.ok())
      log::info("a group that is no more used: {}", ended.message());
  }
  FormerGroup(const FormerGroup&) = delete;
  FormerGroup& operator=(const FormerGroup&) = delete;

  std::uint64_t number() const { return number_; }  // 0: there is none
  koloComm_t keep() { return std::exchange(handle_, nullptr); }

 private:
  koloComm_t handle_ = nullptr;
  std::uint64_t number_ = 0;
};

Status checkList(const std::vector<int>& ranks, const comm::Communicator& parent) {
  std::vector<bool> isThere(static_cast<std::size_t>(parent.ranks()));
  for (const int rank : ranks) {
    if (rank < 0 || rank >= parent.ranks())
      return error(koloInvalidRank, "ranks has {}, expected ranks 0..{}", rank, parent.ranks() - 1);
    if (isThere[static_cast<std::size_t>(rank)])
      return error(koloDuplicateRank, "ranks has rank {} twice, expected each rank once", rank);
    isThere[static_cast<std::size_t>(rank)] = true;
  }
  if (isThere[static_cast<std::size_t>(parent.rank())]) return {};
  return error(koloInvalidUsage, "rank {} is not in the list of ranks ({}); only the ranks in the list make the group",
               parent.rank(), bootstrap::describeRanks(ranks));
}

// The ranks of a group, and of one that is a mesh the lengths of its axes (comm::Mesh::shapeAlong).
struct Members {
  std::vector<int> ranks;
  std::vector<int> mesh;
};

// REQUIRES: the parent's turn, and a list that was checked
Result<koloComm_t> createGroup(comm::Communicator& parent, const Members& members, const char* name,
                               const koloConfig_t* config) {
  const std::vector<int>& ranks = members.ranks;
  const Result<comm::Options> options =
      withoutExceptions([&] { return comm::groupOptions(parent, ranks, members.mesh, name, config); });
  FormerGroup former(parent, ranks, options);
  KOLO_ASSIGN(comm::NewGroup group, comm::createGroup(parent, ranks, options, former.number()));
  if (group.made == nullptr) return former.keep();
  koloComm_t handle = nullptr;
  KOLO_TRY(deliver(&handle, std::move(group.made)));
  parent.subgroups().add({ranks, options.value().name, members.mesh, group.number, handle},
                         [](const comm::Subgroups::Entry& each) { return !communicators.find(numberOf(each.handle)); });
  return handle;
}

Status createGroupIn(const Pin<comm::Communicator>& parent, const Members& members, const char* name,
                     koloComm_t* newcomm, const koloConfig_t* config) {
  KOLO_ASSIGN(*newcomm, inTurn(*parent, [&] { return createGroup(*parent, members, name, config); }));
  return {};
}

// The list of a caller's numbers.
Result<std::vector<int>> takeList(const char* name, const int* list, int n, int most) {
  if (n < 1 || n > most) return error(koloInvalidCount, "n{} is {}, expected 1..{}", name, n, most);
  if (list == nullptr) return error(koloInvalidPointer, "{} is NULL, expected an array of {}", name, n);
  return std::vector<int>(list, list + n);
}

// The ranks along some axes of a mesh, in which a communicator's own rank is.
Result<Members> membersAlong(const comm::Communicator& communicator, const int* dims, int ndim, const int* axes,
                             int naxes) {
  KOLO_ASSIGN(const comm::Mesh mesh, comm::Mesh::make(dims, ndim, communicator.ranks()));
  KOLO_ASSIGN(const std::vector<int> listed, takeList("axes", axes, naxes, ndim));
  KOLO_TRY(mesh.checkAxes(listed));
  return Members{mesh.along(listed, communicator.rank()), mesh.shapeAlong(listed)};
}

// Of several communicators with the name, those that work go before those that have failed, and those that the calling
// thread has made before others.
Result<koloComm_t> findByName(const std::string& name) {
  std::size_t named = 0;
  std::vector<std::uintptr_t> working, failed;
  for (const std::uintptr_t handle :
       communicators.findAll([&](const comm::Communicator& each) { return each.options().name == name; })) {
    const Pin<comm::Communicator> found = communicators.find(handle);
    if (!found) continue;  // it has been destroyed meanwhile
    ++named;
    (found->failed() ? failed : working).push_back(handle);
  }
  std::vector<std::uintptr_t>& candidates = working.empty() ? failed : working;
  if (candidates.empty())
    return error(koloInvalidArgument, "no communicator of this process has the name \"{}\"", name);
  if (candidates.size() > 1) {
    std::erase_if(candidates, [](std::uintptr_t handle) {
      const Pin<comm::Communicator> found = communicators.find(handle);
      return !found || found->references().maker() != std::this_thread::get_id();
    });
  }
  if (candidates.size() == 1) return reinterpret_cast<koloComm_t>(candidates.front());
  return error(koloInvalidUsage,
               "{} communicators of this process have the name \"{}\", and the calling thread has made {} of them: "
               "expected one",
               named, name, candidates.size());
}

// Whether two communicators come from one unique id, so that their ranks can be compared.
bool areOfOneJob(comm::Communicator& one, comm::Communicator& other) {
  const auto jobOf = [](comm::Communicator& communicator) {
    return communicator.membership().control->derivedSecret("job");
  };
  return one.membership().control == other.membership().control || jobOf(one) == jobOf(other);
}

}  // namespace
}  // namespace kolo::api

using namespace kolo;
using namespace kolo::api;

extern "C" {

KOLO_API koloResult_t koloCommCreateGroup(koloComm_t parent, const int* ranks, int nranks, const char* name,
                                          koloComm_t* newcomm, const koloConfig_t* config) {
  return guard(__func__, [&]() -> Status {
    KOLO_TRY(checkResult("newcomm", newcomm));
    KOLO_TRY(refuseInGroupOrReduction());
    KOLO_ASSIGN(const Pin<comm::Communicator> found, find(parent));
    KOLO_ASSIGN(const std::vector<int> list, takeList("ranks", ranks, nranks, found->ranks()));
    KOLO_TRY(checkList(list, *found));
    return createGroupIn(found, {list, {}}, name, newcomm, config);
  });
}

KOLO_API koloResult_t koloMeshComm(koloComm_t comm, const int* dims, int ndim, const int* axes, int naxes,
                                   koloComm_t* newcomm, const koloConfig_t* config) {
  return guard(__func__, [&]() -> Status {
    KOLO_TRY(checkResult("newcomm", newcomm));
    KOLO_TRY(refuseInGroupOrReduction());
    KOLO_ASSIGN(const Pin<comm::Communicator> found, find(comm));
    KOLO_ASSIGN(const Members members, membersAlong(*found, dims, ndim, axes, naxes));
    return createGroupIn(found, members, nullptr, newcomm, config);
  });
}

KOLO_API koloResult_t koloMeshNeighbors(koloComm_t comm, const int* dims, int ndim, const int* axes, int naxes,
                                        int* before, int* after) {
  return guard(__func__, [&]() -> Status {
    KOLO_TRY(checkResult("before", before));
    KOLO_TRY(checkResult("after", after));
    KOLO_ASSIGN(const Pin<comm::Communicator> found, find(comm));
    KOLO_ASSIGN(const Members members, membersAlong(*found, dims, ndim, axes, naxes));
    const std::vector<int>& ring = members.ranks;
    const auto at = static_cast<std::size_t>(std::find(ring.begin(), ring.end(), found->rank()) - ring.begin());
    *before = ring[(at + ring.size() - 1) % ring.size()];
    *after = ring[(at + 1) % ring.size()];
    return {};
  });
}

KOLO_API koloResult_t koloCommByName(const char* name, koloComm_t* comm) {
  return guard(__func__, [&]() -> Status {
    KOLO_TRY(checkResult("comm", comm));
    if (name == nullptr) return error(koloInvalidPointer, "name is NULL, expected the name of a communicator");
    KOLO_ASSIGN(*comm, findByName(name));
    return {};
  });
}

KOLO_API koloResult_t koloCommTranslateRanks(koloComm_t from, const int* ranks, int nranks, koloComm_t to, int* out) {
  return guard(__func__, [&]() -> Status {
    KOLO_ASSIGN(const Pin<comm::Communicator> one, find(from));
    KOLO_ASSIGN(const Pin<comm::Communicator> other, find(to));
    if (nranks < 0) return error(koloInvalidCount, "nranks is {}, expected 0 or more", nranks);
    if (nranks == 0) return {};
    if (ranks == nullptr) return error(koloInvalidPointer, "ranks is NULL, expected an array of {} ranks", nranks);
    KOLO_TRY(checkResult("out", out));
    const auto outside =
        std::find_if(ranks, ranks + nranks, [&](int rank) { return rank < 0 || rank >= one->ranks(); });
    if (outside != ranks + nranks)
      return error(koloInvalidRank, "ranks has {}, expected ranks 0..{}", *outside, one->ranks() - 1);
    if (!areOfOneJob(*one, *other)) {
      return error(koloInvalidArgument,
                   "communicators {} and {} come from different unique ids: expected communicators of the same ranks",
                   one->options().name, other->options().name);
    }
    std::unordered_map<int, int> rankOf;  // by the rank of the job
    for (int rank = 0; rank < other->ranks(); ++rank) rankOf[other->membership().jobRank(rank)] = rank;
    std::transform(ranks, ranks + nranks, out, [&](int rank) {
      const auto found = rankOf.find(one->membership().jobRank(rank));
      return found != rankOf.end() ? found->second : KOLO_RANK_NONE;
    });
    return {};
  });
}

KOLO_API koloResult_t koloVote(uint64_t mine, uint64_t* any, uint64_t* all, koloComm_t comm) {
  return guard(__func__, [&]() -> Status {
    KOLO_TRY(checkResult("any", any));
    KOLO_TRY(checkResult("all", all));
    KOLO_TRY(refuseInGroupOrReduction());
    Held<comm::Communicator> communicator(communicators.remember(numberOf(comm)));
    if (!communicator) return notACommunicator(comm);
    if (communicator->isFinalized())
      return error(koloInvalidUsage, "the communicator was finalised; expected no votes");
    if (!caller.mayWait && communicator->ranks() > 1)
      return communicator->failed() ? communicator->failure() : Status(koloInProgress, {});
    // A bit is set on all ranks if its complement is set on none.
    std::array<std::uint64_t, 2> words{mine, ~mine};
    KOLO_TRY(comm::inNextTurn(communicator,
                              [&](comm::Communicator& its) { return its.backend().reduceWords(words, koloBitOr); }));
    *any = words[0];
    *all = ~words[1];
    return {};
  });
}

}  // extern "C"
