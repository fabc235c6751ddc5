#include "comm/requests.h"

#include <algorithm>
#include <utility>

#include "base/caller.h"
#include "comm/communicator.h"
#include "comm/in_turn.h"
#include "common/clock.h"
#include "common/float_mode.h"

namespace kolo::comm {
namespace {

constexpr std::size_t kMostSpare = 16;

}  // namespace

// ---- messages

void Requests::start(const Message* messages, std::size_t count, Request& request, bool isInside) {
  if (standsInLine()) {
    give(request, [&](Queued& queued) { queued.messages.assign(messages, messages + count); });
    return;
  }
  const Aside aside(turn_, isInside);
  if (aside) {
    startNow(messages, count, request);
    noteLook();
  } else {
    post(messages, count, request);
  }
  if (needsCare()) watch();
}

void Requests::startAt(std::uint64_t place, const Message* messages, std::size_t count, Request& request) {
  const StreamPlace end(*this);
  const InTurn served(turn_, place);
  startNow(messages, count, request);
  noteLook();
}

// Behind those that were started before, while another thread had the turn.
void Requests::startNow(const Message* messages, std::size_t count, Request& request) {
  const auto held = owner_.traffic().hold();
  takePost();
  begin(messages, count, request);
}

void Requests::begin(const Message* messages, std::size_t count, Request& request) {
  for (std::size_t i = 0; i < count; ++i) {
    if (owner_.failed()) {  // before, or by one of these, for which there was no memory
      ended(request, owner_.failure());
      continue;
    }
    try {
      owner_.messages().start(messages[i], request, i + 1 == count);
    } catch (const std::exception&) {
      owner_.messages().endLost(request, failByThrown(owner_));
    }
  }
}

// All of them or, where there is no memory, none.
void Requests::post(const Message* messages, std::size_t count, Request& request) {
  const Lock lock(mutex_);
  const std::size_t before = post_.size();
  post_.resize(before + count);
  for (std::size_t i = 0; i < count; ++i) post_[before + i] = {messages[i], &request};
  hasPost_.store(true, std::memory_order_relaxed);
}

// Under the turn, where the links are not held yet.
void Requests::holdAndTakePost() {
  if (!hasPost_.load(std::memory_order_relaxed)) return;
  const auto held = owner_.traffic().hold();
  takePost();
}

void Requests::startPosted() {
  std::vector<Posted> posted;
  {
    const Lock lock(mutex_);
    posted.swap(post_);
    hasPost_.store(false, std::memory_order_relaxed);
  }
  for (const Posted& each : posted) begin(&each.message, 1, *each.request);
  // The thread that takes them may leave the turn without a further look: the own thread is to know.
  needsCare_.store(true, std::memory_order_relaxed);
  watch();
}

// Under the turn: what the own thread is to know.
void Requests::noteLook() {
  looks_.store(looks_.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
  needsCare_.store(owner_.messages().needsCare(), std::memory_order_relaxed);
}

Status Requests::run(Held<Communicator>& communicator, const Message* messages, std::size_t count) {
  Requests& requests = communicator->requests();
  Request request(static_cast<std::uint32_t>(count));
  Status failure;
  if (!requests.standsInLine()) {
    const Aside aside(requests.turn_, communicator.isInside());
    if (aside) {
      requests.startNow(messages, count, request);
      try {
        failure = communicator->messages().attend(request, &aside, kNever);
      } catch (const std::exception&) {
        failure = failByThrown(*communicator);
      }
      requests.noteLook();
    } else {
      requests.post(messages, count, request);
    }
  } else {
    requests.give(request, [&](Queued& queued) { queued.messages.assign(messages, messages + count); });
  }
  if (!request.isOver()) {
    communicator.stepOut();
    requests.wait(request, kNever);
  } else if (requests.needsCare()) {
    requests.watch();
  }
  return failure.ok() ? request.status() : failure;
}

// ---- collectives

void Requests::start(const Operation& operation, Request& request) {
  give(request, [&](Queued& queued) { queued.operations.push_back(operation); });
}

void Requests::start(std::vector<Operation>& operations, Request& request) {
  give(request, [&](Queued& queued) { queued.operations.swap(operations); });
}

void Requests::start(std::function<Status()> step, Request& request) {
  give(request, [&](Queued& queued) { queued.step = std::move(step); });
}

void Requests::Queued::clear() {
  operations.clear();
  messages.clear();
  step = nullptr;
  place.reset();
  status = {};
}

// fill(Queued&) says what is given.
template <class Fill>
void Requests::give(Request& request, const Fill& fill) {
  Lock lock(mutex_);
  if (spare_.empty()) spare_.emplace_back();
  Queued& queued = spare_.front();
  queued.request = &request;
  fill(queued);
  const bool takesPlace = streamed_.load(std::memory_order_acquire) != 0 || !queued.messages.empty();
  if (!queued.messages.empty()) messagesInLine_.fetch_add(1, std::memory_order_relaxed);
  queue_.splice(queue_.end(), spare_, spare_.begin());
  waiting_.fetch_add(1, std::memory_order_relaxed);
  if (takesPlace) takePlaces(lock);
  wake(lock);
  if (isHurried_) added_.notify_one();
}

// For all that stands in the queue: one with a place behind one without would wait for it for ever, and it for that
// one.
void Requests::takePlaces(Lock&) {
  for (Queued& queued : queue_) {
    if (!queued.place.has_value()) queued.place = turn_.take();
    isHurried_ = true;
  }
}

std::uint64_t Requests::takeStreamPlace() {
  Lock lock(mutex_);
  takePlaces(lock);
  streamed_.fetch_add(1, std::memory_order_relaxed);
  if (isHurried_) added_.notify_one();
  return turn_.take();
}

void Requests::executeCollectives() {
  Lock lock(mutex_);
  while (!queue_.empty() || executing_ != 0) executeNext(lock);
}

// False if the request has nothing in the queue.
bool Requests::executeUpTo(const Request& request) {
  if (!hasCollectives()) return false;
  Lock lock(mutex_);
  const auto isIts = [&](const Queued& queued) { return queued.request == &request; };
  bool found = false;
  while (std::any_of(queue_.begin(), queue_.end(), isIts)) {
    executeNext(lock);
    found = true;
  }
  return found;
}

// Where another thread executes something, its end is waited for, and is all that is done.
void Requests::executeNext(Lock& lock) {
  if (executing_ == 0) {
    executeFirst(lock);
    return;
  }
  for (Patience patience = this->patience(); executing_ != 0;) {
    lock.unlock();
    rest(patience);
    lock.lock();
  }
}

void Requests::executeInside(const Request& request) {
  Lock lock(mutex_);
  const auto isIts = [&](const Queued& queued) { return queued.request == &request; };
  while (executing_ == 0 && std::any_of(queue_.begin(), queue_.end(), isIts) && !queue_.front().place.has_value()) {
    executeFirst(lock, true);
  }
  lock.unlock();
  if (needsCare()) watch();
}

// The place is taken under the lock, so that places have the order of the queue. isInside: it is the thread's already.
void Requests::executeFirst(Lock& lock, bool isInside) {
  Queue taken;
  taken.splice(taken.begin(), queue_, queue_.begin());
  Queued& first = taken.front();
  ++begun_;
  ++executing_;
  const std::uint64_t place = isInside ? Turn::kByBias : first.place.has_value() ? *first.place : turn_.reserve();
  lock.unlock();
  const auto run = [&] { return execute(first, place), Status(); };
  Status thrown;
  if (isInside) {
    thrown = orFail(owner_, run);
  } else {
    const InTurn served(turn_, place);
    thrown = orFail(owner_, run);
  }
  if (!thrown.ok()) first.status = std::move(thrown);
  waiting_.fetch_sub(1, std::memory_order_release);  // [in line] it is over: a thread that sees it may use its bias
  if (first.messages.empty()) ended(*first.request, std::move(first.status));
  first.clear();
  lock.lock();
  --executing_;
  if (spare_.size() < kMostSpare) spare_.splice(spare_.begin(), taken);
}

// Under the turn, which has been entered so.
void Requests::execute(Queued& queued, std::uint64_t entered) {
  const UsualFloatMode usual;  // the thread may be in a call that calculates nothing itself
  const MayWait asEver;
  const WithTimeout its(queued.request->timeoutMs());
  for (const Operation& operation : queued.operations) {
    Status status = owner_.backend().run(operation, nullptr);
    if (queued.status.ok()) queued.status = std::move(status);
  }
  if (queued.step) {
    const LendsTurn lends(turn_, entered);
    queued.status = queued.step();
  }
  if (!queued.messages.empty()) {
    struct Begun {
      std::atomic<std::uint32_t>& inLine;
      ~Begun() { inLine.fetch_sub(1, std::memory_order_release); }  // [in line]
    } const begun{messagesInLine_};
    startNow(queued.messages.data(), queued.messages.size(), *queued.request);
  }
  noteLook();
}

// ---- waiting

void Requests::wait(Request& request, std::int64_t untilNs) {
  const WithTimeout its(request.timeoutMs());
  executor::WaitState state;
  for (Patience patience = this->patience(); !request.isOver();) {
    if (untilNs == kNever && executeUpTo(request)) continue;
    if (hasCollectives()) hurry();
    {
      const Aside aside(turn_);
      if (aside) holdAndTakePost();
      if (aside.isBorrowed()) {
        if (owner_.messages().look(state)) patience = this->patience();
      } else if (aside && !owner_.messages().isIdle()) {
        (void)orFail(owner_, [&] { return owner_.messages().attend(request, &aside, untilNs); });
      }
      if (aside) noteLook();
    }
    const auto isOver = [&] { return request.isOver(); };
    if (patience.yields() ? owner_.waiter().polling().until(isOver) : isOver()) break;
    if (nowNs() >= untilNs) break;
    rest(patience);
  }
  if (needsCare()) watch();
}

// Of a thread that waits for what others execute.
Patience Requests::patience() const { return Patience(owner_.waiter().longestNapNs()); }

void Requests::rest(Patience& patience) const {
  patience.restOr([this] { return owner_.waiter().userProgress().make(); });
}

bool Requests::look() {
  if (hasCollectives()) hurry();
  if (!needsCare()) return false;
  executor::WaitState state;
  return lookAfterMessages(state);
}

bool Requests::lookAfterMessages(executor::WaitState& state) {
  const Aside aside(turn_);
  if (!aside) return false;
  bool moved = false;
  (void)orFail(owner_, [&] {
    holdAndTakePost();
    moved = owner_.messages().needsCare() && owner_.messages().look(state);
    return Status();
  });
  noteLook();
  return moved;
}

Status Requests::settle() {
  holdAndTakePost();
  Status status;
  if (owner_.failed()) {
    owner_.messages().endAll(owner_.failure());
  } else {
    status = owner_.messages().settle();
  }
  noteLook();
  return status;
}

bool Requests::settlesAtOnce() {
  holdAndTakePost();
  return owner_.messages().isIdle();
}

// ---- of several requests

namespace {

// The communicator is kept for the time of the look alone: it may be ended while others are waited for.
bool look(const Weak<Communicator>& place) {
  const Pin<Communicator> found = place.lock();
  return found && found->requests().look();
}

Status resultOf(const Request& request) { return request.isOver() ? request.status() : Status(koloInProgress, {}); }

}  // namespace

Status test(Request& request) {
  if (!request.isOver()) request.forEachPlace(look);
  return resultOf(request);
}

void hurry(const Request& request) {
  request.forEachPlace([](const Weak<Communicator>& place) {
    if (const Pin<Communicator> found = place.lock()) found->requests().hurry();
  });
}

Status prepareNotices(const Request& request) {
  Status status;
  if (request.isOver()) return status;
  request.forEachPlace([&](const Weak<Communicator>& place) {
    const Pin<Communicator> found = place.lock();
    if (found && status.ok()) status = found->requests().prepareNotices();
  });
  return status;
}

// The place of the first that is over; -1: the time has come.
int waitAny(std::span<Request* const> requests, std::int64_t untilNs) {
  std::vector<Weak<Communicator>> places;
  for (const Request* request : requests) {
    request->forEachPlace([&](const Weak<Communicator>& place) {
      if (std::find(places.begin(), places.end(), place) == places.end()) places.push_back(place);
    });
  }
  const auto isOver = [](const Request* request) { return request->isOver(); };
  const auto makeUsersProgress = [&] {
    return std::count_if(places.begin(), places.end(), [](const Weak<Communicator>& place) {
             const Pin<Communicator> found = place.lock();
             return found && found->waiter().userProgress().make();
           }) != 0;
  };
  for (Patience patience;;) {
    const auto first = std::find_if(requests.begin(), requests.end(), isOver);
    if (first != requests.end()) return static_cast<int>(first - requests.begin());
    if (nowNs() >= untilNs) return -1;
    if (std::count_if(places.begin(), places.end(), look) != 0) patience = Patience();
    patience.restOr(makeUsersProgress);
  }
}

Status wait(Request& request, std::int64_t untilNs) {
  if (request.isOver()) return request.status();
  if (request.hasOnePlace()) {
    if (untilNs == Requests::kNever) {
      if (const Inside<Communicator> place = request.firstPlace().enter()) place->requests().executeInside(request);
      if (request.isOver()) return request.status();
    }
    if (const Pin<Communicator> place = request.firstPlace().lock()) place->requests().wait(request, untilNs);
  }
  // If this thread executed one communicator's collectives, ranks that wait in another one could deadlock. The progress
  // threads execute them.
  Request* const one = &request;
  if (!request.isOver()) (void)waitAny({&one, 1}, untilNs);
  return resultOf(request);
}

}  // namespace kolo::comm
