#include "comm/group.h"

#include <algorithm>
#include <chrono>
#include <exception>
#include <optional>
#include <span>
#include <system_error>
#include <thread>
#include <tuple>

#include "base/caller.h"
#include "base/log.h"
#include "base/of_thread.h"
#include "base/quiet_thread.h"
#include "comm/factory.h"
#include "comm/in_turn.h"

namespace kolo::comm {
namespace {

// One communicator's share of a group.
struct Batch {
  Weak<Communicator> communicator;  // either may be destroyed, by another thread, while the group is open
  Target target;
  std::vector<Message> messages;
  std::vector<Operation> operations;
  // From the end of the group on, where the batch does not run at once.
  Pin<Communicator> pinned;
  Pin<Stream> pinnedStream;
  std::uint64_t place = 0;
  int timeoutMs = -1;              // as its caller has set
  std::unique_ptr<Stream> worker;  // while it runs beside others,
  Stream::Prepared task;           // and what it does there

  void add(const Message& message) { messages.push_back(message); }
  void add(const Operation& operation) { operations.push_back(operation); }
};

// The thread's open group.
struct Group {
  Status refused;
  std::vector<Batch>
      batches;  // the first `used`, in the order in which communicators were first mentioned; the rest is storage
  std::size_t used = 0;  // of earlier groups, used again: small groups are as frequent as small messages
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
  batch.messages.clear();  // a group that ended by an exception has left them
  batch.operations.clear();
  return batch;
}

// A group's collectives on one communicator are executed in an order that does not depend on the caller's, so that
// ranks that list the same operations in different orders still meet. Equal ones keep the order in which they were
// called.
void sortCollectives(std::vector<Operation>& operations) {
  if (operations.size() < 2) return;
  std::stable_sort(operations.begin(), operations.end(), [](const Operation& a, const Operation& b) {
    const auto key = [](const Operation& operation) {
      const bool ownCount = operation.vector || operation.list != nullptr;  // may differ between ranks
      return std::tuple(operation.collective, operation.datatype, operation.op, operation.root, ownCount,
                        ownCount ? 0 : operation.count);
    };
    return key(a) < key(b);
  });
}

// Under the turn. stream: of the device, where calls do not wait.
Status runNow(Communicator& communicator, Batch& batch, void* stream) {
  sortCollectives(batch.operations);
  return communicator.backend().runGroup(batch.messages, batch.operations, stream);
}

Status runBatch(Batch& batch) {
  const WithTimeout its(batch.timeoutMs);
  if (batch.operations.empty())
    return batch.pinned->backend().runMessagesAt(batch.place, batch.messages, batch.target.gpuStream);
  return atStreamPlace(*batch.pinned, batch.place,
                       [&](Communicator& its) { return runNow(its, batch, batch.target.gpuStream); });
}

Status wasDestroyed(const char* what) {
  return error(koloInvalidHandle,
               "a {} that the group uses was destroyed before koloGroupEnd; nothing of the group was run", what);
}

// A group with one communicator and no stream, as most are.
Status runAtOnce(Batch& batch) {
  Held<Communicator> communicator(batch.communicator);
  Status status =
      !communicator ? wasDestroyed("communicator")
      : batch.operations.empty()
          ? communicator->backend().runMessages(communicator, batch.messages, batch.target.gpuStream)
          : inNextTurn(communicator, [&](Communicator& its) { return runNow(its, batch, batch.target.gpuStream); });
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

// Others wait behind the places of batches that do not run. Each place is given up when its turn comes, whichever comes
// first: another group that gives up its places at the same time may have them in another order.
void giveUpPlaces(std::span<Batch> batches) {
  for (std::size_t given = 0; given < batches.size();) {
    const std::size_t before = given;
    for (Batch& batch : batches) {
      if (!batch.pinned || !batch.pinned->turn().isNext(batch.place)) continue;
      {
        const StreamPlace end(batch.pinned->requests());
        const InTurn served(batch.pinned->turn(), batch.place);
      }
      batch.pinned = {};
      ++given;
    }
    if (given == before) std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
}

// A thread for each batch but the last, which the calling thread runs itself.
Status borrowWorkers(Batch* begin, Batch* end) {
  try {
    for (Batch* batch = begin; batch + 1 < end; ++batch) {
      batch->worker = batch->pinned->workers().borrow();
      batch->task = Stream::prepare([batch](std::uint64_t) { return runBatch(*batch); });
    }
    return {};
  } catch (const std::exception& why) {
    const Status none = noThread(why, "a group over {} communicators needs a thread for each but one", end - begin);
    return error(none.code(), "{}; nothing of the group was run", none.message());
  }
}

// Batches of different communicators run side by side, so no order among them can deadlock: the last of those on the
// host here, the others on workers. A launch on a GPU does not wait, and belongs to the caller's thread: it may be
// capturing. In one stream launches are one after the other, so they go in an order that all ranks have alike.
Status runBatches(Batch* batches, std::size_t count) {
  Batch* const end = batches + count;
  Batch* const waiting =
      std::stable_partition(batches, end, [](const Batch& batch) { return !batch.pinned->backend().waits(); });
  std::stable_sort(batches, waiting, [](const Batch& a, const Batch& b) {
    return a.pinned->membership().key < b.pinned->membership().key;
  });
  Status first;
  const auto note = [&](Status status) {
    if (first.ok()) first = std::move(status);
  };
  if (Status borrowed = borrowWorkers(waiting, end); !borrowed.ok()) {
    giveUpPlaces({batches, count});
    return borrowed;
  }
  {
    std::optional<Backend::Visit> visit;
    if (batches != waiting) visit.emplace(batches->pinned->backend());
    for (Batch* batch = batches; batch != waiting; ++batch) note(runBatch(*batch));
  }
  for (Batch* batch = waiting; batch + 1 < end; ++batch) batch->worker->enqueue(std::move(batch->task));
  if (waiting != end) note(withoutExceptions([&] { return runBatch(end[-1]); }));  // the others are still at it
  for (Batch* batch = waiting; batch + 1 < end; ++batch) {
    note(batch->worker->synchronize());
    batch->pinned->workers().giveBack(std::move(batch->worker));
  }
  return first;
}

Status runInitialisations(const std::vector<std::function<Status()>>& initialisations) {
  std::vector<Status> results(initialisations.size());
  try {
    runSideBySide(results.size(), [&](std::size_t i) { results[i] = withoutExceptions(initialisations[i]); });
  } catch (const std::system_error& why) {
    return noThread(why, "making {} communicators in a group needs a thread for each", results.size());
  }
  for (Status& status : results) {
    if (!status.ok()) return std::move(status);
  }
  return {};
}

Status run(Held<Communicator>& communicator, const Message& message, const Target& target) {
  return communicator->backend().runMessage(communicator, message, target.gpuStream);
}
Status run(Held<Communicator>& communicator, const Operation& operation, const Target& target) {
  if (!caller.mayWait && communicator->requests().hasCollectives())
    return Status(koloInProgress, {});  // they come first
  return inNextTurn(communicator, [&](Communicator& its) { return its.backend().run(operation, target.gpuStream); });
}

void start(Held<Communicator>& communicator, const Message& message, Request& request) {
  communicator->requests().start(&message, 1, request, communicator.isInside());
}
void start(Held<Communicator>& communicator, const Operation& operation, Request& request) {
  communicator->requests().start(operation, request);
}

// On a stream's thread, at a place in the communicator's turn.
Status runAt(Communicator& communicator, std::uint64_t place, const Operation& operation) {
  return atStreamPlace(communicator, place, [&](Communicator& its) { return its.backend().run(operation, nullptr); });
}
Status runAt(Communicator& communicator, std::uint64_t place, const Message& message) {
  return communicator.backend().runMessagesAt(place, {&message, 1}, nullptr);
}

template <class What>
Status submitEither(Held<Communicator>& communicator, const Target& target, const What& what) {
  if (caller.openGroups > 0) {
    Batch& batch = batchFor(communicator.weak(), target);
    if (batch.target != target) {
      return error(koloInvalidUsage, "a group uses two streams with one communicator ({}); expected one",
                   communicator->options().name);
    }
    batch.add(what);
    return {};
  }
  if (target.request != nullptr) {
    target.request->addPlace(communicator.weak());
    start(communicator, what, *target.request);
    return {};
  }
  if (!target.stream) return run(communicator, what, target);
  return enqueueTask(communicator, target,
                     [what](Communicator& its, std::uint64_t place) { return runAt(its, place, what); });
}

// The batches of one stream run together. The batches of the NULL stream come last, and run here.
Status runInParts(std::vector<Batch>& batches) {
  for (Batch& batch : batches) KOLO_TRY(pin(batch));
  std::stable_sort(batches.begin(), batches.end(), [](const Batch& a, const Batch& b) {
    return std::greater<>()(a.pinnedStream.get(), b.pinnedStream.get());
  });
  // What needs memory comes before the first place is taken: others wait behind that until it is used.
  struct Part {
    Pin<Stream> stream;
    std::shared_ptr<std::vector<Batch>> batches = std::make_shared<std::vector<Batch>>();
    Stream::Prepared task =
        Stream::prepare([its = batches](std::uint64_t) { return runBatches(its->data(), its->size()); });
  };
  std::vector<Part> parts;
  std::size_t begin = 0;
  for (; begin < batches.size() && batches[begin].pinnedStream; ++begin) {
    Pin<Stream> stream = std::exchange(batches[begin].pinnedStream, {});  // a task does not hold its own stream
    if (parts.empty() || parts.back().stream.get() != stream.get()) parts.push_back({std::move(stream)});
    parts.back().batches->push_back(std::move(batches[begin]));
  }
  const auto takePlaces = [](std::span<Batch> those) {
    for (Batch& batch : those) {
      batch.place = batch.pinned->requests().takeStreamPlace();
      batch.timeoutMs = caller.timeoutMs;
    }
  };
  const std::span<Batch> here(batches.data() + begin, batches.size() - begin);
  for (const Part& part : parts) takePlaces(*part.batches);
  takePlaces(here);
  for (Part& part : parts) part.stream->enqueue(std::move(part.task));
  parts.clear();  // streams may end while this waits
  return runBatches(here.data(), here.size());
}

}  // namespace

Status submit(Held<Communicator>& communicator, const Target& target, const Operation& operation) {
  return submitEither(communicator, target, operation);
}

Status submit(Held<Communicator>& communicator, const Target& target, const Message& message) {
  return submitEither(communicator, target, message);
}

void groupStart() {
  (void)group();  // its memory comes first: an open group needs none to end
  ++caller.openGroups;
}

void groupRefuse(const Status& status) {
  if (caller.openGroups > 0 && group().refused.ok()) group().refused = status;
}

void groupDefer(std::function<Status()> initialisation) {
  group().initialisations.push_back(std::move(initialisation));
}

// What is on one communicator: its messages at once, its collectives in the order of all of the communicator's.
// Other parts may have begun, so what finds no memory ends its parts and the communicator, and throws nothing.
void start(Batch& batch, Request& request) {
  Requests& requests = batch.pinned->requests();
  const auto begin = [&](std::size_t parts, const auto& step) {
    try {
      if (parts != 0) step();
    } catch (const std::exception&) {
      const Status why = failByThrown(*batch.pinned);
      for (std::size_t i = 0; i < parts; ++i) requests.ended(request, why);
    }
  };
  begin(batch.messages.size(), [&] { requests.start(batch.messages.data(), batch.messages.size(), request, false); });
  begin(batch.operations.empty() ? 0 : 1, [&] {
    sortCollectives(batch.operations);
    requests.start(batch.operations, request);
  });
  batch.messages.clear();
  batch.pinned = {};
}

Status groupEnd(Request& request) {
  if (caller.openGroups == 0) return error(koloInvalidUsage, "koloIgroupEnd without koloGroupStart");
  if (caller.openGroups > 1) {
    return error(koloInvalidUsage, "{} groups are open: expected koloGroupEnd for all but the outermost one",
                 caller.openGroups);
  }
  --caller.openGroups;
  Group& ended = group();
  std::vector<Batch> storage = std::exchange(ended.batches, {});
  const std::span<Batch> batches(storage.data(), std::exchange(ended.used, 0));
  const bool initialises = !std::exchange(ended.initialisations, {}).empty();
  KOLO_TRY(std::exchange(ended.refused, Status()));
  if (initialises) return error(koloInvalidUsage, "the group makes communicators: expected koloGroupEnd");
  std::size_t parts = 0;
  for (Batch& batch : batches) {
    KOLO_TRY(pin(batch));
    KOLO_TRY(batch.pinned->backend().checkRequest());
    if (batch.target.stream)
      return error(koloInvalidUsage, "the group uses a stream: expected a NULL stream in all of its calls");
    parts += batch.messages.size() + (batch.operations.empty() ? 0 : 1);
  }
  for (const Batch& batch : batches) request.addPlace(batch.communicator);
  request.expect(static_cast<std::uint32_t>(std::max<std::size_t>(parts, 1)));
  for (Batch& batch : batches) start(batch, request);
  if (parts == 0) (void)request.end({});
  ended.batches = std::move(storage);  // for the next group
  return {};
}

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
