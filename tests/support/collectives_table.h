// The collectives, one row each: how one is called, with one signature for all, and what a rank gives and gets, as
// kolo.h says it. The library's own rows (src/common/collectives.h) are not read here.
#pragma once

#include <kolo/kolo.h>

#include <cstddef>
#include <vector>

namespace kolo::test {

struct Arguments {
  const void* send = nullptr;
  void* recv = nullptr;
  size_t count = 0;
  koloDataType_t datatype = koloInt32;
  koloRedOp_t op = koloSum;
  int root = 0;
  koloComm_t comm = nullptr;
  koloStream_t stream = nullptr;
};

struct Collective {
  const char* name;
  koloResult_t (*call)(const Arguments&);
  bool reduces;
  bool hasRoot;
  bool sendDivided;  // sendbuf holds a block for each rank (on the root, where there is one)
  bool recvDivided;
  bool rootGives = false;  // with a root: it gives, and the others give nothing; else it alone gets something

  bool isDivided() const { return sendDivided || recvDivided; }
  bool gives(bool isRoot) const { return !hasRoot || !rootGives || isRoot; }
  bool gets(bool isRoot) const { return !hasRoot || rootGives || isRoot; }
};

inline const std::vector<Collective>& collectives() {
  using A = const Arguments&;
  static const std::vector<Collective> table = {
      {"all_reduce", [](A a) { return koloAllReduce(a.send, a.recv, a.count, a.datatype, a.op, a.comm, a.stream); },
       true, false, false, false},
      {"reduce", [](A a) { return koloReduce(a.send, a.recv, a.count, a.datatype, a.op, a.root, a.comm, a.stream); },
       true, true, false, false},
      {"broadcast", [](A a) { return koloBroadcast(a.send, a.recv, a.count, a.datatype, a.root, a.comm, a.stream); },
       false, true, false, false, true},
      {"all_gather", [](A a) { return koloAllGather(a.send, a.recv, a.count, a.datatype, a.comm, a.stream); }, false,
       false, false, true},
      {"reduce_scatter",
       [](A a) { return koloReduceScatter(a.send, a.recv, a.count, a.datatype, a.op, a.comm, a.stream); }, true, false,
       true, false},
      {"all_to_all", [](A a) { return koloAllToAll(a.send, a.recv, a.count, a.datatype, a.comm, a.stream); }, false,
       false, true, true},
      {"gather", [](A a) { return koloGather(a.send, a.recv, a.count, a.datatype, a.root, a.comm, a.stream); }, false,
       true, false, true},
      {"scatter", [](A a) { return koloScatter(a.send, a.recv, a.count, a.datatype, a.root, a.comm, a.stream); }, false,
       true, true, false, true},
  };
  return table;
}

// A barrier, which moves nothing, is not in the table.
inline bool isBarrier(koloCollective_t collective) { return collective == koloCollectiveBarrier; }
inline const Collective& rowOf(koloCollective_t collective) {
  return collectives()[static_cast<std::size_t>(collective)];
}
inline koloResult_t call(koloCollective_t collective, const Arguments& arguments) {
  return isBarrier(collective) ? koloBarrier(arguments.comm, arguments.stream) : rowOf(collective).call(arguments);
}

}  // namespace kolo::test
