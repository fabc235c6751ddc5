// Gloo's side of tools/compare-network: collectives and messages, with kolo-perf's method (method.h).
//
// SPDX-License-Identifier: Apache-2.0
//
// Usage: gloo_bench RANK RANKS FOLDER INTERFACE SIZES NAMES
//        NAMES: all_reduce, all_gather, all_to_all, one_way, ping_pong
// FOLDER: empty, seen by all ranks; they find each other there. Sizes are bytes, counted as kolo-perf counts them. Rank
// 0 prints a line for each measurement: name, size asked for, bytes moved, malloc, microseconds of a call. All-reduces
// are measured by the ring and by the cube, and the faster is printed.
#include <gloo/allgather.h>
#include <gloo/allreduce.h>
#include <gloo/alltoall.h>
#include <gloo/barrier.h>
#include <gloo/math.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/file_store.h>
#include <gloo/transport/tcp/device.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <functional>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

struct call_t {
  std::function<void()> once;
};
using function_t = void (*)(const call_t*);

#include "method.h"

namespace {

std::shared_ptr<gloo::rendezvous::Context> context;
int rank, ranks;

}  // namespace

static void wait_for_all() {
  gloo::BarrierOptions options(context);
  gloo::barrier(options);
}

static void maxima(double* own, double* all, int count) {
  gloo::AllreduceOptions options(context);
  options.setInput(own, static_cast<size_t>(count));
  options.setOutput(all, static_cast<size_t>(count));
  options.setReduceFunction(static_cast<void (*)(void*, const void*, const void*, size_t)>(&gloo::max<double>));
  gloo::allreduce(options);
}

namespace {

struct Buffers {
  std::vector<float> send, recv;
};

double time(std::function<void()> once) {
  const call_t call{std::move(once)};
  return measure([](const call_t* c) { c->once(); }, &call);
}

double allReduce(Buffers& buffers, size_t count, gloo::AllreduceOptions::Algorithm algorithm) {
  return time([&, algorithm, count] {
    gloo::AllreduceOptions options(context);
    options.setInput(buffers.send.data(), count);
    options.setOutput(buffers.recv.data(), count);
    options.setAlgorithm(algorithm);
    options.setReduceFunction(static_cast<void (*)(void*, const void*, const void*, size_t)>(&gloo::sum<float>));
    gloo::allreduce(options);
  });
}

double allGather(Buffers& buffers, size_t count) {
  return time([&, count] {
    gloo::AllgatherOptions options(context);
    options.setInput(buffers.send.data(), count);
    options.setOutput(buffers.recv.data(), count * static_cast<size_t>(ranks));
    gloo::allgather(options);
  });
}

double allToAll(Buffers& buffers, size_t count) {
  return time([&, count] {
    gloo::AlltoallOptions options(context);
    options.setInput(buffers.send.data(), count * static_cast<size_t>(ranks));
    options.setOutput(buffers.recv.data(), count * static_cast<size_t>(ranks));
    gloo::alltoall(options);
  });
}

double messages(Buffers& buffers, size_t count, bool isBack) {
  const auto out = context->createUnboundBuffer(buffers.send.data(), count * sizeof(float));
  const auto in = context->createUnboundBuffer(buffers.recv.data(), count * sizeof(float));
  const auto send = [&] {
    out->send(1 - rank, 7);
    out->waitSend();
  };
  const auto receive = [&] {
    in->recv(1 - rank, 7);
    in->waitRecv();
  };
  return time([&] {
    if (rank == 0) send();
    if (rank == 1 || isBack) receive();
    if (rank == 1 && isBack) send();
  });
}

void run(const std::string& name, size_t asked) {
  const size_t blocks = name == "all_gather" || name == "all_to_all" ? static_cast<size_t>(ranks) : 1;
  const size_t count = std::max<size_t>(asked / sizeof(float) / blocks, 1);
  Buffers buffers{std::vector<float>(count * blocks), std::vector<float>(count * blocks)};
  double us = 0;
  if (name == "all_reduce") {
    us = std::min(allReduce(buffers, count, gloo::AllreduceOptions::Algorithm::RING),
                  allReduce(buffers, count, gloo::AllreduceOptions::Algorithm::BCUBE));
  } else if (name == "all_gather") {
    us = allGather(buffers, count);
  } else if (name == "all_to_all") {
    us = allToAll(buffers, count);
  } else {
    us = messages(buffers, count, name == "ping_pong");
  }
  if (rank == 0) std::printf("%s %zu %zu malloc %.4f\n", name.c_str(), asked, count * blocks * sizeof(float), us);
}

std::vector<std::string> words(const char* text) {
  std::vector<std::string> found;
  std::istringstream stream(text);
  for (std::string word; std::getline(stream, word, ',');) found.push_back(word);
  return found;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 7) return std::fprintf(stderr, "usage: gloo_bench RANK RANKS FOLDER INTERFACE SIZES NAMES\n"), 2;
  try {
    rank = std::atoi(argv[1]);
    ranks = std::atoi(argv[2]);
    auto store = std::make_shared<gloo::rendezvous::FileStore>(argv[3]);
    gloo::transport::tcp::attr where;
    where.iface = argv[4];
    auto device = gloo::transport::tcp::CreateDevice(where);
    context = std::make_shared<gloo::rendezvous::Context>(rank, ranks);
    context->setTimeout(std::chrono::minutes(2));
    context->connectFullMesh(store, device);
    for (const std::string& name : words(argv[6])) {
      for (const std::string& size : words(argv[5])) run(name, std::strtoull(size.c_str(), nullptr, 10));
    }
    wait_for_all();
    context.reset();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "gloo_bench: rank %d: %s\n", rank, error.what());
    return 2;
  }
  return 0;
}
