// The collectives that only move data, as bytes. What a rank gives and gets in place is described as what it is, a
// block of the other buffer: where no copy is made, Kolo sees the same address and works in place.
#include <cstdint>
#include <string>

#include "mpi/accelerated.h"
#include "mpi/report.h"

namespace kolo::mpi {
namespace {

// Data at address 0 are for datatypes with absolute addresses (MPI_BOTTOM), which are no run.
bool isUsable(const Elements& elements, MPI_Count count) {
  if (count < 0 || elements.datatype == MPI_DATATYPE_NULL) return false;
  if (elements.bytes(count) == 0) return true;
  return elements.buffer != MPI_IN_PLACE && (elements.buffer != nullptr || !elements.form.isRun);
}

// Whether the MPI refuses a block that this rank gives itself and takes where it lies: MPICH does so if the datatypes
// are the same, and counts in bytes of data. What it does not notice it carries out, as Open MPI does all: the rank's
// own data go through a copy. REQUIRES: the block is equally long in both.
bool isRefused(const Elements& own, MPI_Count count, const Elements& all, MPI_Count before) {
  if (kTakesBufferTwice || count == 0 || own.buffer == nullptr || own.datatype != all.datatype) return false;
  const auto place = reinterpret_cast<std::uintptr_t>(all.buffer) + static_cast<std::uintptr_t>(before) * all.form.size;
  return reinterpret_cast<std::uintptr_t>(own.buffer) == place;
}

constexpr const char* kDiffer = "each rank gives itself another number of bytes than it takes";

// In the place of where data would arrive.
struct Differing {
  void store() const { throw MpiError{MPI_ERR_TRUNCATE, kDiffer}; }
  void outliveTheCall() {}
};

}  // namespace

// Displacements belong to the counts; nothing is asked of them but to be there.
bool Accelerated::areBlocks(const Numbers& counts, const Numbers& displs) const {
  if (!counts.isGiven() || !displs.isGiven()) return false;
  for (int i = 0; i < ranks_; ++i) {
    if (counts[i] < 0) return false;
  }
  return true;
}

// This rank gives itself another number of bytes than it takes. MPI forbids that, but no MPI refuses it: the ranks
// communicate, and data that are too long for their place are cut off and reported. The other ranks may have called
// rightly, and are in Kolo then. A barrier tells: if they are, it fails on all ranks, and so does the communicator. If
// it does not, all ranks have called like this one. A nonblocking call can no longer be the MPI's then.
Outcome Accelerated::differ(std::size_t given, std::size_t taken) {
  const std::string what = "rank " + std::to_string(rank_) + " gives itself " + std::to_string(given) +
                           " bytes and takes " + std::to_string(taken) + ", which MPI forbids";
  auto barrier = [kolo = kolo_](const Call& call, const Nothing&, const auto&) {
    return call(koloBarrier, koloIbarrier, kolo);
  };
  if (later_ != nullptr) {
    complain(what);
    return carryOut(Nothing(), Differing(), std::move(barrier));
  }
  const Outcome outcome = carryOut(Nothing(), Nothing(), std::move(barrier));
  if (outcome.result() == koloSuccess) return Outcome::declined(kDiffer);
  complain(what + "; this ends Kolo's communicator on all ranks");
  return outcome;
}

Outcome Accelerated::tryBcast(void* buffer, MPI_Count count, MPI_Datatype datatype, int root, MPI_Comm) {
  const Elements all = elements(buffer, datatype);
  if (!isRoot(root) || !isUsable(all, count)) return Outcome::refused();
  Region data(all, count);
  if (rank_ == root) {
    data.load();
    data.discard();
  }
  return carryOut(
      Nothing(), std::move(data),
      [root, kolo = kolo_](const Call& call, const Nothing&, const Region& out) {
        return call(koloBroadcast, koloIbroadcast, out.data(), out.data(), out.bytes(), koloUint8, root, kolo);
      },
      rank_ == root);
}

Outcome Accelerated::tryAllgather(const void* sendbuf, MPI_Count sendcount, MPI_Datatype sendtype, void* recvbuf,
                                  MPI_Count recvcount, MPI_Datatype recvtype, MPI_Comm) {
  const bool isInPlace = sendbuf == MPI_IN_PLACE;
  const Elements all = elements(recvbuf, recvtype);
  const Elements own = isInPlace ? elements(all.at(rank_ * recvcount), recvtype) : elements(sendbuf, sendtype);
  if (isInPlace) sendcount = recvcount;
  if (!isUsable(all, recvcount) || !isUsable(own, sendcount)) return Outcome::refused();
  if (own.bytes(sendcount) != all.bytes(recvcount)) return differ(own.bytes(sendcount), all.bytes(recvcount));
  if (!isInPlace && isRefused(own, sendcount, all, rank_ * recvcount)) return Outcome::refused();
  Region from(own, sendcount, sendbuf == recvbuf);
  from.load();
  return carryOut(std::move(from), Region(all, recvcount * ranks_),
                  [kolo = kolo_](const Call& call, const Region& in, const Region& out) {
                    return call(koloAllGather, koloIallGather, in.data(), out.data(), in.bytes(), koloUint8, kolo);
                  });
}

// Kolo wants the same displacements on all ranks, MPI does not: so all ranks give none.
Outcome Accelerated::tryAllgatherv(const void* sendbuf, MPI_Count sendcount, MPI_Datatype sendtype, void* recvbuf,
                                   Numbers recvcounts, Numbers displs, MPI_Datatype recvtype, MPI_Comm) {
  if (!areBlocks(recvcounts, displs)) return Outcome::refused();
  const bool isInPlace = sendbuf == MPI_IN_PLACE;
  const Elements all = elements(recvbuf, recvtype);
  const MPI_Count mine = recvcounts[rank_];
  const Elements own = isInPlace ? elements(all.at(displs[rank_]), recvtype) : elements(sendbuf, sendtype);
  if (isInPlace) sendcount = mine;
  if (!isUsable(all, mine) || !isUsable(own, sendcount)) return Outcome::refused();
  if (own.bytes(sendcount) != all.bytes(mine)) return differ(own.bytes(sendcount), all.bytes(mine));
  if (!isInPlace && isRefused(own, sendcount, all, displs[rank_])) return Outcome::refused();
  Region from(own, sendcount, sendbuf == recvbuf);
  from.load();
  Blocks to(all, ranks_, recvcounts, displs, Blocks::Placing::kInARow);
  return carryOut(
      std::move(from), std::move(to), [kolo = kolo_](const Call& call, const Region& in, const Blocks& out) {
        return call(koloAllGatherv, koloIallGatherv, in.data(), out.data(), out.counts(), nullptr, koloUint8, kolo);
      });
}

Outcome Accelerated::tryGather(const void* sendbuf, MPI_Count sendcount, MPI_Datatype sendtype, void* recvbuf,
                               MPI_Count recvcount, MPI_Datatype recvtype, int root, MPI_Comm) {
  const bool isAtRoot = rank_ == root, isInPlace = isAtRoot && sendbuf == MPI_IN_PLACE;
  if (!isRoot(root)) return Outcome::refused();
  if (!isAtRoot) recvcount = 0;
  const Elements all = isAtRoot ? elements(recvbuf, recvtype) : elements(nullptr, MPI_BYTE);
  const Elements own = isInPlace ? elements(all.at(rank_ * recvcount), recvtype) : elements(sendbuf, sendtype);
  if (isInPlace) sendcount = recvcount;
  if (!isUsable(all, recvcount) || !isUsable(own, sendcount)) return Outcome::refused();
  const std::size_t bytes = own.bytes(sendcount);
  if (isAtRoot && bytes != all.bytes(recvcount)) return differ(bytes, all.bytes(recvcount));
  if (isAtRoot && !isInPlace && isRefused(own, sendcount, all, rank_ * recvcount)) return Outcome::refused();
  Region from(own, sendcount, sendbuf == recvbuf);
  from.load();
  return carryOut(
      std::move(from), Region(all, recvcount * ranks_),
      [bytes, root, kolo = kolo_](const Call& call, const Region& in, const Region& out) {
        return call(koloGather, koloIgather, in.data(), out.data(), bytes, koloUint8, root, kolo);
      },
      !isAtRoot);
}

Outcome Accelerated::tryGatherv(const void* sendbuf, MPI_Count sendcount, MPI_Datatype sendtype, void* recvbuf,
                                Numbers recvcounts, Numbers displs, MPI_Datatype recvtype, int root, MPI_Comm) {
  const bool isAtRoot = rank_ == root, isInPlace = isAtRoot && sendbuf == MPI_IN_PLACE;
  if (!isRoot(root) || (isAtRoot && !areBlocks(recvcounts, displs))) return Outcome::refused();
  if (!isAtRoot) {
    const Elements own = elements(sendbuf, sendtype);
    if (!isUsable(own, sendcount)) return Outcome::refused();
    Region from(own, sendcount);
    from.load();
    return carryOut(
        std::move(from), Nothing(),
        [root, kolo = kolo_](const Call& call, const Region& in, const Nothing&) {
          return call(koloGatherv, koloIgatherv, in.data(), in.bytes(), nullptr, nullptr, nullptr, koloUint8, root,
                      kolo);
        },
        true);
  }
  const Elements all = elements(recvbuf, recvtype);
  const Elements own = isInPlace ? elements(all.at(displs[rank_]), recvtype) : elements(sendbuf, sendtype);
  if (isInPlace) sendcount = recvcounts[rank_];
  if (!isUsable(all, recvcounts[rank_]) || !isUsable(own, sendcount)) return Outcome::refused();
  const std::size_t bytes = own.bytes(sendcount);
  if (bytes != all.bytes(recvcounts[rank_])) return differ(bytes, all.bytes(recvcounts[rank_]));
  if (!isInPlace && isRefused(own, sendcount, all, displs[rank_])) return Outcome::refused();
  Blocks to(all, ranks_, recvcounts, displs, Blocks::Placing::kFree);
  Region from(own, sendcount, !isInPlace && to.spans(own.buffer, bytes));
  from.load();
  return carryOut(std::move(from), std::move(to),
                  [bytes, root, kolo = kolo_](const Call& call, const Region& in, const Blocks& out) {
                    return call(koloGatherv, koloIgatherv, in.data(), bytes, out.data(), out.counts(), out.displs(),
                                koloUint8, root, kolo);
                  });
}

Outcome Accelerated::tryScatter(const void* sendbuf, MPI_Count sendcount, MPI_Datatype sendtype, void* recvbuf,
                                MPI_Count recvcount, MPI_Datatype recvtype, int root, MPI_Comm) {
  const bool isAtRoot = rank_ == root, isInPlace = isAtRoot && recvbuf == MPI_IN_PLACE;
  if (!isRoot(root)) return Outcome::refused();
  if (!isAtRoot) sendcount = 0;
  const Elements all = isAtRoot ? elements(sendbuf, sendtype) : elements(nullptr, MPI_BYTE);
  const Elements own = isInPlace ? elements(all.at(rank_ * sendcount), sendtype) : elements(recvbuf, recvtype);
  if (isInPlace) recvcount = sendcount;
  if (!isUsable(all, sendcount) || !isUsable(own, recvcount)) return Outcome::refused();
  const std::size_t bytes = own.bytes(recvcount);
  if (isAtRoot && bytes != all.bytes(sendcount)) return differ(all.bytes(sendcount), bytes);
  if (isAtRoot && !isInPlace && isRefused(own, recvcount, all, rank_ * sendcount)) return Outcome::refused();
  Region from(all, sendcount * ranks_), to(own, recvcount, sendbuf == recvbuf);
  from.load();
  if (isInPlace) to.discard();
  return carryOut(
      std::move(from), std::move(to),
      [bytes, root, kolo = kolo_](const Call& call, const Region& in, const Region& out) {
        return call(koloScatter, koloIscatter, in.data(), out.data(), bytes, koloUint8, root, kolo);
      },
      isAtRoot);
}

Outcome Accelerated::tryScatterv(const void* sendbuf, Numbers sendcounts, Numbers displs, MPI_Datatype sendtype,
                                 void* recvbuf, MPI_Count recvcount, MPI_Datatype recvtype, int root, MPI_Comm) {
  const bool isAtRoot = rank_ == root, isInPlace = isAtRoot && recvbuf == MPI_IN_PLACE;
  if (!isRoot(root) || (isAtRoot && !areBlocks(sendcounts, displs))) return Outcome::refused();
  if (!isAtRoot) {
    const Elements own = elements(recvbuf, recvtype);
    if (!isUsable(own, recvcount)) return Outcome::refused();
    return carryOut(Nothing(), Region(own, recvcount),
                    [root, kolo = kolo_](const Call& call, const Nothing&, const Region& out) {
                      return call(koloScatterv, koloIscatterv, nullptr, nullptr, nullptr, out.data(), out.bytes(),
                                  koloUint8, root, kolo);
                    });
  }
  const Elements all = elements(sendbuf, sendtype);
  const Elements own = isInPlace ? elements(all.at(displs[rank_]), sendtype) : elements(recvbuf, recvtype);
  if (isInPlace) recvcount = sendcounts[rank_];
  if (!isUsable(all, sendcounts[rank_]) || !isUsable(own, recvcount)) return Outcome::refused();
  const std::size_t bytes = own.bytes(recvcount);
  if (bytes != all.bytes(sendcounts[rank_])) return differ(all.bytes(sendcounts[rank_]), bytes);
  if (!isInPlace && isRefused(own, recvcount, all, displs[rank_])) return Outcome::refused();
  Blocks from(all, ranks_, sendcounts, displs, Blocks::Placing::kFree);
  Region to(own, recvcount, !isInPlace && from.spans(own.buffer, bytes));
  from.load();
  if (isInPlace) to.discard();
  return carryOut(
      std::move(from), std::move(to),
      [bytes, root, kolo = kolo_](const Call& call, const Blocks& in, const Region& out) {
        return call(koloScatterv, koloIscatterv, in.data(), in.counts(), in.displs(), out.data(), bytes, koloUint8,
                    root, kolo);
      },
      true);
}

Outcome Accelerated::tryAlltoall(const void* sendbuf, MPI_Count sendcount, MPI_Datatype sendtype, void* recvbuf,
                                 MPI_Count recvcount, MPI_Datatype recvtype, MPI_Comm) {
  const Elements all = elements(recvbuf, recvtype);
  if (!isUsable(all, recvcount)) return Outcome::refused();
  Region to(all, recvcount * ranks_);
  const std::size_t bytes = all.bytes(recvcount);
  if (sendbuf == MPI_IN_PLACE) {
    to.load();
    return carryOut(Nothing(), std::move(to),
                    [bytes, kolo = kolo_](const Call& call, const Nothing&, const Region& out) {
                      return call(koloAllToAll, koloIallToAll, out.data(), out.data(), bytes, koloUint8, kolo);
                    });
  }
  const Elements own = elements(sendbuf, sendtype);
  if (!isUsable(own, sendcount)) return Outcome::refused();
  if (own.bytes(sendcount) != bytes) return differ(own.bytes(sendcount), bytes);
  if (isRefused(own, sendcount, all, 0)) return Outcome::refused();
  Region from(own, sendcount * ranks_, sendbuf == recvbuf);
  from.load();
  return carryOut(std::move(from), std::move(to),
                  [bytes, kolo = kolo_](const Call& call, const Region& in, const Region& out) {
                    return call(koloAllToAll, koloIallToAll, in.data(), out.data(), bytes, koloUint8, kolo);
                  });
}

Outcome Accelerated::tryAlltoallv(const void* sendbuf, Numbers sendcounts, Numbers sdispls, MPI_Datatype sendtype,
                                  void* recvbuf, Numbers recvcounts, Numbers rdispls, MPI_Datatype recvtype, MPI_Comm) {
  const bool isInPlace = sendbuf == MPI_IN_PLACE;
  if (!areBlocks(recvcounts, rdispls) || (!isInPlace && !areBlocks(sendcounts, sdispls))) return Outcome::refused();
  const Elements all = elements(recvbuf, recvtype);
  const Elements own = isInPlace ? all : elements(sendbuf, sendtype);
  const MPI_Count mine = isInPlace ? recvcounts[rank_] : sendcounts[rank_];
  if (!isUsable(all, recvcounts[rank_]) || !isUsable(own, mine)) return Outcome::refused();
  if (own.bytes(mine) != all.bytes(recvcounts[rank_])) return differ(own.bytes(mine), all.bytes(recvcounts[rank_]));
  if (!isInPlace && sendcounts.isSameArray(recvcounts) && isRefused(own, 1, all, 0)) return Outcome::refused();
  const Numbers& counts = isInPlace ? recvcounts : sendcounts;
  const Numbers& displs = isInPlace ? rdispls : sdispls;
  return exchange(Blocks(own, ranks_, counts, displs, Blocks::Placing::kFree),
                  Blocks(all, ranks_, recvcounts, rdispls, Blocks::Placing::kFree));
}

// Blocks from each rank to each. In place they are the same.
Outcome Accelerated::exchange(Blocks&& from, Blocks&& to) {
  if (to.spans(from.data(), from.extent())) from.copy();
  from.load();
  return carryOut(std::move(from), std::move(to),
                  [kolo = kolo_](const Call& call, const Blocks& in, const Blocks& out) {
                    return call(koloAllToAllv, koloIallToAllv, in.data(), in.counts(), in.displs(), out.data(),
                                out.counts(), out.displs(), koloUint8, kolo);
                  });
}

// A rank's block from its displacement on. One without elements may have no datatype.
std::vector<Elements> Accelerated::elementsOfEach(const void* buffer, const Numbers& counts, const Numbers& displs,
                                                  const MPI_Datatype* datatypes) const {
  std::vector<Elements> each;
  each.reserve(static_cast<std::size_t>(ranks_));
  for (int i = 0; i < ranks_; ++i) {
    const auto at = reinterpret_cast<std::uintptr_t>(buffer) + static_cast<std::uintptr_t>(displs[i]);
    each.push_back(elements(reinterpret_cast<const void*>(at), counts[i] != 0 ? datatypes[i] : MPI_BYTE));
  }
  return each;
}

Outcome Accelerated::tryAlltoallw(const void* sendbuf, Numbers sendcounts, Numbers sdispls,
                                  const MPI_Datatype* sendtypes, void* recvbuf, Numbers recvcounts, Numbers rdispls,
                                  const MPI_Datatype* recvtypes, MPI_Comm) {
  const bool isInPlace = sendbuf == MPI_IN_PLACE;
  const auto areThere = [&](const Numbers& counts, const Numbers& displs, const MPI_Datatype* types) {
    return areBlocks(counts, displs) && types != nullptr;
  };
  if (!areThere(recvcounts, rdispls, recvtypes) || (!isInPlace && !areThere(sendcounts, sdispls, sendtypes))) {
    return Outcome::refused();
  }
  std::vector<Elements> all = elementsOfEach(recvbuf, recvcounts, rdispls, recvtypes);
  std::vector<Elements> own = isInPlace ? all : elementsOfEach(sendbuf, sendcounts, sdispls, sendtypes);
  const Numbers& counts = isInPlace ? recvcounts : sendcounts;
  for (int i = 0; i < ranks_; ++i) {
    if (!isUsable(all[static_cast<std::size_t>(i)], recvcounts[i]) ||
        !isUsable(own[static_cast<std::size_t>(i)], counts[i])) {
      return Outcome::refused();
    }
  }
  const auto mine = static_cast<std::size_t>(rank_);
  const std::size_t given = own[mine].bytes(counts[rank_]), taken = all[mine].bytes(recvcounts[rank_]);
  if (given != taken) return differ(given, taken);
  const bool isSame = sendbuf == recvbuf && sendtypes == recvtypes && sendcounts.isSameArray(recvcounts);
  if (!kTakesBufferTwice && isSame && sendbuf != nullptr) return Outcome::refused();
  return exchange(Blocks(std::move(own), counts, Blocks::Placing::kFree),
                  Blocks(std::move(all), recvcounts, Blocks::Placing::kFree));
}

}  // namespace kolo::mpi
