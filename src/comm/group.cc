#include "comm/group.h"

#include <algorithm>
#include <thread>
#include <tuple>

#include "base/caller.h"
#include "base/log.h"
#include "base/of_thread.h"

namespace kolo::comm {
namespace {

// One communicator's share of a group.
struct Batch {
  Weak<Communicator> communicator;   // either may be destroyed, by another thread, while the group is open
  Target target;
  std::vector<Message> messages;
  std::vector<Operation> operations;
  // From the end of the group on, where the batch does not run at once.
  Pin<Communicator> pinned;
  Pin<Stream> pinnedStream;
  std::uint64_t place = 0;

  void add(const Message& message) { messages.push_back(message); }
  void add(const Operation& operation) { operations.push_back(operation); }
};

// The thread's open group.
struct Group {
  Status refused;
  std::vector<Batch> batches;   // the first `used`, in the order in which communicators were first mentioned; the rest is storage
  std::size_t used = 0;         // of earlier groups, used again: small groups are as frequent as small messages
  std::vector<std::function<Status()>> initialisations;

  ~Group();
};

// At a fixed place in the thread's memory, and without a constructor to be run: every call inside a group comes here.
[[gnu::tls_model("initial-exec")]] thread_local constinit Group* opened = nullptr;

Group::~Group() {
  opened = nullptr;
  if (used != 0) log::warn("a thread ended inside a group; its operations are dropped: expected koloGroupEnd");
}

[[gnu::noinline]] Group& openFirst() {
  opened = &ofThread<Group>();
  return *opened;
}

Group& group() { return opened != nullptr ? *opened : openFirst(); }

Batch& batchFor(const Weak<Communicator>& communicator, const Target& target) {
  Group& open = group();
  for (std::size_t i = 0; i < open.used; ++i) {
    if (open.batches[i].communicator == communicator) return open.batches[i];
  }
  if (open.used == open.batches.size()) open.batches.emplace_back();
  Batch& batch = open.batches[open.used++];
  batch.communicator = communicator;
  batch.target = target;
  batch.messages.clear();   // a group that ended by an exception has left them
  batch.operations.clear();
  return batch;
}

// A group's collectives on one communicator are executed in an order that does not depend on the caller's, so that ranks
// that list the same operations in different orders still meet. Equal ones keep the order in which they were called.
void sortCollectives(std::vector<Operation>& operations) {
  if (operations.size() < 2) return;
  std::stable_sort(operations.begin(), operations.end(), [](const Operation& a, const Operation& b) {
    const auto key = [](const Operation& operation) {
      const bool ownCount = operation.vector;   // may differ between ranks
      return std::tuple(operation.collective, operation.datatype, operation.op, operation.root, ownCount,
                        ownCount ? 0 : operation.count);
    };
    return key(a) < key(b);
  });
}

// Under the turn. gpuStream: of a communicator on GPUs.
Status runNow(Communicator& communicator, const Operation& operation, void* gpuStream) {
  return communicator.isOnGpu() ? communicator.enqueue({}, {operation}, gpuStream) : communicator.run(operation);
}
Status runNow(Communicator& communicator, const Message& message, void* gpuStream) {
  if (communicator.isOnGpu()) return communicator.enqueue({message}, {}, gpuStream);
  if (communicator.failed()) return communicator.failure();
  if (!caller.mayWait) return Status(koloInProgress, {});
  communicator.messages().start(message, true);
  return communicator.messages().finish();
}
// Messages first start, then progress whenever a collective waits, then end: so neither kind can hold up the other.
Status runNow(Communicator& communicator, Batch& batch, void* gpuStream) {
  if (communicator.failed()) return communicator.failure();
  const MayWait asEver;
  if (communicator.isOnGpu()) {
    sortCollectives(batch.operations);
    return communicator.enqueue(batch.messages, batch.operations, gpuStream);
  }
  for (const Message& message : batch.messages) communicator.messages().start(message, batch.messages.size() == 1 && batch.operations.empty());
  Status first;
  sortCollectives(batch.operations);
  for (const Operation& operation : batch.operations) {
    Status status = communicator.run(operation);
    if (first.ok()) first = std::move(status);
  }
  if (!batch.messages.empty()) {
    Status status = communicator.messages().finish();
    if (first.ok()) first = std::move(status);
  }
  return first;
}

// In the next turn, which is the caller's already where it is inside by its bias.
template <class What>
Status runInNextTurn(const Held<Communicator>& communicator, What& what, void* gpuStream) {
  if (communicator.isInside()) return runNow(*communicator, what, gpuStream);
  const InTurn served(communicator->turn());
  return runNow(*communicator, what, gpuStream);
}

Status runBatch(Batch& batch) {
  const InTurn served(batch.pinned->turn(), batch.place);
  return runNow(*batch.pinned, batch, batch.target.gpuStream);
}

Status wasDestroyed(const char* what) {
  return error(koloInvalidHandle, "a {} that the group uses was destroyed before koloGroupEnd; nothing of the group was run",
               what);
}

// A group with one communicator and no stream, as most are.
Status runAtOnce(Batch& batch) {
  const Held<Communicator> communicator(batch.communicator);
  Status status = communicator ? runInNextTurn(communicator, batch, batch.target.gpuStream) : wasDestroyed("communicator");
  batch.messages.clear();
  batch.operations.clear();
  return status;
}

Status pin(Batch& batch) {
  batch.pinned = batch.communicator.lock();
  batch.pinnedStream = batch.target.stream.lock();
  if (!batch.pinned) return wasDestroyed("communicator");
  return batch.pinnedStream || !batch.target.stream ? Status() : wasDestroyed("stream");
}

// Batches of different communicators run side by side, so no order among them can deadlock: the last of those on the host here, the
// others on their communicators' workers. A launch on a GPU does not wait, and belongs to the caller's thread: it may be capturing. In
// one stream launches are one after the other, so they go in an order that all ranks have alike.
Status runBatches(Batch* batches, std::size_t count) {
  Batch* const end = batches + count;
  Batch* const onHost = std::stable_partition(batches, end, [](const Batch& batch) { return batch.pinned->isOnGpu(); });
  std::stable_sort(batches, onHost, [](const Batch& a, const Batch& b) { return a.pinned->key() < b.pinned->key(); });
  Status first;
  const auto note = [&](Status status) {
    if (first.ok()) first = std::move(status);
  };
  {
    const GpuRank::Visit visit(batches != onHost ? batches->pinned->gpu() : nullptr);
    for (Batch* batch = batches; batch != onHost; ++batch) note(runBatch(*batch));
  }
  for (Batch* batch = onHost; batch + 1 < end; ++batch) {
    batch->pinned->worker().enqueue([batch] { return runBatch(*batch); });
  }
  if (onHost != end) note(runBatch(end[-1]));
  for (Batch* batch = onHost; batch + 1 < end; ++batch) note(batch->pinned->worker().synchronize());
  return first;
}

Status runInitialisations(const std::vector<std::function<Status()>>& initialisations) {
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

template <class What>
Status submitEither(const Held<Communicator>& communicator, const Target& target, const What& what) {
  if (caller.openGroups > 0) {
    Batch& batch = batchFor(communicator.weak(), target);
    if (batch.target != target) {
      return error(koloInvalidUsage, "a group uses two streams with one communicator ({}); expected one",
                   communicator->options().name);
    }
    batch.add(what);
    return {};
  }
  if (!target.stream) return runInNextTurn(communicator, what, target.gpuStream);
  const Pin<Stream> pinnedStream = target.stream.lock();
  const Pin<Communicator> pinned = communicator.weak().lock();
  if (!pinnedStream || !pinned) {
    return error(koloInvalidHandle, "the {} was destroyed during the call", pinned ? "stream" : "communicator");
  }
  const std::uint64_t place = pinned->turn().take();
  pinnedStream->enqueue([pinned, place, what] {
    const InTurn served(pinned->turn(), place);
    return runNow(*pinned, what, nullptr);
  });
  return {};
}

// Those of one stream together, the NULL stream last and here.
Status runInParts(std::vector<Batch>& batches) {
  for (Batch& batch : batches) KOLO_TRY(pin(batch));
  for (Batch& batch : batches) batch.place = batch.pinned->turn().take();
  std::stable_sort(batches.begin(), batches.end(),
                   [](const Batch& a, const Batch& b) { return std::greater<>()(a.pinnedStream.get(), b.pinnedStream.get()); });
  std::size_t begin = 0;
  while (begin < batches.size() && batches[begin].pinnedStream) {
    const Pin<Stream> stream = std::exchange(batches[begin].pinnedStream, {});
    auto part = std::make_shared<std::vector<Batch>>();
    part->push_back(std::move(batches[begin++]));
    for (; begin < batches.size() && batches[begin].pinnedStream.get() == stream.get(); ++begin) {
      part->push_back(std::move(batches[begin]));
      part->back().pinnedStream = {};   // a task does not hold its own stream
    }
    stream->enqueue([part] { return runBatches(part->data(), part->size()); });
  }
  return runBatches(batches.data() + begin, batches.size() - begin);
}

}  // namespace

Status submit(const Held<Communicator>& communicator, const Target& target, const Operation& operation) {
  return submitEither(communicator, target, operation);
}

Status submit(const Held<Communicator>& communicator, const Target& target, const Message& message) {
  return submitEither(communicator, target, message);
}

void groupStart() { ++caller.openGroups; }

void groupRefuse(const Status& status) {
  if (caller.openGroups > 0 && group().refused.ok()) group().refused = status;
}

void groupDefer(std::function<Status()> initialisation) { group().initialisations.push_back(std::move(initialisation)); }

Status groupEnd() {
  if (caller.openGroups == 0) return error(koloInvalidUsage, "koloGroupEnd without koloGroupStart");
  if (--caller.openGroups > 0) return {};
  Group& ended = group();
  const std::size_t used = std::exchange(ended.used, 0);
  if (used == 1 && !ended.batches.front().target.stream && ended.refused.ok() && ended.initialisations.empty()) {
    return runAtOnce(ended.batches.front());
  }
  std::vector<Batch> batches = std::exchange(ended.batches, {});
  const std::vector<std::function<Status()>> initialisations = std::exchange(ended.initialisations, {});
  KOLO_TRY(std::exchange(ended.refused, Status()));
  KOLO_TRY(runInitialisations(initialisations));
  batches.resize(used);
  return runInParts(batches);
}

}  // namespace kolo::comm
