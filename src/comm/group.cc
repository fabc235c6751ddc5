#include "comm/group.h"

#include <algorithm>
#include <thread>

#include "base/log.h"

namespace kolo::comm {
namespace {

// One communicator's share of a group, with its place in the communicator's order.
struct Batch {
  Weak<Communicator> communicator;   // either may be destroyed, by another thread, while the group is open
  Weak<Stream> stream;
  Pin<Communicator> pinned;          // from the end of the group on
  Pin<Stream> pinnedStream;
  std::uint64_t place = 0;
  std::vector<Operation> operations;
};

// Groups that the thread has open. Apart from the rest and at a fixed place, because every operation looks at it.
[[gnu::tls_model("initial-exec")]] thread_local int depth = 0;

struct Group {
  Status refused;
  std::vector<Batch> batches;   // in the order in which communicators were first mentioned
  std::vector<std::function<Status()>> initialisations;
  // Storage of the last group, used again by the next: small groups are as frequent as small messages.
  std::vector<Batch> spareBatches;
  std::vector<Operation> spareOperations;

  ~Group() {
    if (!batches.empty()) log::warn("a thread ended inside a group; its operations are dropped: expected koloGroupEnd");
  }
};

Group& group() {
  thread_local Group instance;
  return instance;
}

Batch& batchFor(Group& open, const Pin<Communicator>& communicator, const Pin<Stream>& stream) {
  for (Batch& batch : open.batches) {
    if (batch.communicator.isSame(communicator.weak())) return batch;
  }
  if (open.batches.capacity() == 0) open.batches = std::move(open.spareBatches);
  open.batches.push_back({communicator.weak(), stream.weak(), {}, {}, 0, std::move(open.spareOperations)});
  open.spareOperations.clear();
  return open.batches.back();
}

void keepStorage(Group& open, std::vector<Batch>& batches) {
  for (Batch& batch : batches) {
    batch.pinned = {};
    batch.operations.clear();
    if (batch.operations.capacity() > open.spareOperations.capacity()) open.spareOperations = std::move(batch.operations);
  }
  batches.clear();
  open.spareBatches = std::move(batches);
}

bool isMessage(const Operation& operation) { return operation.collective == device::Collective::kSendRecv; }

// A group's collectives on one communicator are executed in an order that does not depend on the caller's, so that ranks
// that list the same operations in different orders still meet. Equal ones keep the order in which they were called.
void sortCollectives(std::vector<Operation>& operations) {
  if (operations.size() < 2) return;
  std::stable_sort(operations.begin(), operations.end(), [](const Operation& a, const Operation& b) {
    const auto key = [](const Operation& operation) {
      const bool ownCount = operation.counts != nullptr;   // may differ between ranks
      return std::tuple(operation.collective, operation.datatype, operation.op, operation.root, ownCount,
                        ownCount ? 0 : operation.count);
    };
    return key(a) < key(b);
  });
}

Status runNow(Communicator& communicator, const Operation& operation) {
  if (operation.collective != device::Collective::kSendRecv) return communicator.run(operation);
  if (communicator.failed()) return communicator.failure();
  communicator.messages().start(operation);
  return communicator.messages().finish();
}

Status runInTurn(Communicator& communicator, std::uint64_t place, const Operation& operation) {
  const InTurn served(communicator.turn(), place);
  return runNow(communicator, operation);
}

// Messages first start, then progress whenever a collective waits, then end: so neither kind can hold up the other.
Status runInOrder(Communicator& communicator, std::vector<Operation>& operations) {
  if (communicator.failed()) return communicator.failure();
  std::size_t messages = 0;
  for (const Operation& operation : operations) {
    if (!isMessage(operation)) continue;
    communicator.messages().start(operation);
    ++messages;
  }
  Status first;
  if (messages < operations.size()) {
    std::erase_if(operations, isMessage);
    sortCollectives(operations);
    for (const Operation& operation : operations) {
      Status status = communicator.run(operation);
      if (first.ok()) first = std::move(status);
    }
  }
  if (messages != 0) {
    Status status = communicator.messages().finish();
    if (first.ok()) first = std::move(status);
  }
  return first;
}

Status runBatch(Batch& batch) {
  const InTurn served(batch.pinned->turn(), batch.place);
  return runInOrder(*batch.pinned, batch.operations);
}

Status pin(Batch& batch) {
  batch.pinned = batch.communicator.lock();
  batch.pinnedStream = batch.stream.lock();
  if (batch.pinned && (batch.pinnedStream || !batch.stream)) return {};
  return error(koloInvalidHandle, "a {} that the group uses was destroyed before koloGroupEnd; nothing of the group was run",
               batch.pinned ? "stream" : "communicator");
}

// Batches of different communicators run side by side, so no order among them can deadlock: the last here, the others on
// their communicators' workers.
Status runBatches(Batch* batches, std::size_t count) {
  for (std::size_t i = 0; i + 1 < count; ++i) {
    batches[i].pinned->worker().enqueue([batch = &batches[i]] { return runBatch(*batch); });
  }
  Status first = count == 0 ? Status() : runBatch(batches[count - 1]);
  for (std::size_t i = 0; i + 1 < count; ++i) {
    Status status = batches[i].pinned->worker().synchronize();
    if (first.ok()) first = std::move(status);
  }
  return first;
}

Status runInitialisations(std::vector<std::function<Status()>>& initialisations) {
  std::vector<Status> results(initialisations.size());
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < initialisations.size(); ++i) {
    threads.emplace_back([&, i] { results[i] = initialisations[i](); });
  }
  for (std::thread& thread : threads) thread.join();
  for (Status& status : results) {
    if (!status.ok()) return std::move(status);
  }
  return {};
}

}  // namespace

Status submit(const Pin<Communicator>& communicator, const Pin<Stream>& stream, const Operation& operation) {
  if (depth > 0) {
    Batch& batch = batchFor(group(), communicator, stream);
    if (!batch.stream.isSame(stream.weak())) {
      return error(koloInvalidUsage, "a group uses two streams with one communicator ({}); expected one",
                   communicator->options().name);
    }
    batch.operations.push_back(operation);
    return {};
  }
  const std::uint64_t place = communicator->turn().take();
  if (!stream) return runInTurn(*communicator, place, operation);
  stream->enqueue([communicator, place, operation] { return runInTurn(*communicator, place, operation); });
  return {};
}

void groupStart() { ++depth; }

bool groupIsOpen() { return depth > 0; }

void groupRefuse(const Status& status) {
  if (depth > 0 && group().refused.ok()) group().refused = status;
}

void groupDefer(std::function<Status()> initialisation) {
  group().initialisations.push_back(std::move(initialisation));
}

Status groupEnd() {
  if (depth == 0) return error(koloInvalidUsage, "koloGroupEnd without koloGroupStart");
  if (--depth > 0) return {};
  Group& open = group();
  std::vector<Batch> ended = std::exchange(open.batches, {});
  std::vector<std::function<Status()>> initialisations = std::exchange(open.initialisations, {});
  KOLO_TRY(std::exchange(open.refused, Status()));
  KOLO_TRY(runInitialisations(initialisations));
  for (Batch& batch : ended) KOLO_TRY(pin(batch));
  for (Batch& batch : ended) batch.place = batch.pinned->turn().take();
  // Those of one stream together, the NULL stream last and here.
  if (ended.size() > 1) {
    std::stable_sort(ended.begin(), ended.end(),
                     [](const Batch& a, const Batch& b) { return std::greater<>()(a.pinnedStream.get(), b.pinnedStream.get()); });
  }
  std::size_t begin = 0;
  while (begin < ended.size() && ended[begin].pinnedStream) {
    const Pin<Stream> stream = std::exchange(ended[begin].pinnedStream, {});
    auto batches = std::make_shared<std::vector<Batch>>();
    batches->push_back(std::move(ended[begin++]));
    for (; begin < ended.size() && ended[begin].pinnedStream.get() == stream.get(); ++begin) {
      batches->push_back(std::move(ended[begin]));
      batches->back().pinnedStream = {};   // a task does not hold its own stream
    }
    stream->enqueue([batches] { return runBatches(batches->data(), batches->size()); });
  }
  Status status = runBatches(ended.data() + begin, ended.size() - begin);
  keepStorage(open, ended);
  return status;
}

}  // namespace kolo::comm
