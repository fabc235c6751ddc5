// The collectives with one signature, so that tests can loop over them.
#pragma once

#include <kolo/kolo.h>

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
};

inline const std::vector<Collective>& collectives() {
  using A = const Arguments&;
  static const std::vector<Collective> table = {
      {"all_reduce", [](A a) { return koloAllReduce(a.send, a.recv, a.count, a.datatype, a.op, a.comm, a.stream); },
       true, false, false, false},
      {"reduce", [](A a) { return koloReduce(a.send, a.recv, a.count, a.datatype, a.op, a.root, a.comm, a.stream); },
       true, true, false, false},
      {"broadcast", [](A a) { return koloBroadcast(a.send, a.recv, a.count, a.datatype, a.root, a.comm, a.stream); },
       false, true, false, false},
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
       true, true, false},
  };
  return table;
}

}  // namespace kolo::test
