// Ranks, as threads, that make communicators from each other while a step of it fails on one of them.
//
// Thread safety: a Makers belongs to one thread; it runs a thread for each rank.
#pragma once

#include <atomic>
#include <catch2/catch.hpp>
#include <chrono>
#include <functional>
#include <memory>
#include <new>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "bootstrap/control.h"
#include "comm/factory.h"
#include "comm/subgroups.h"

namespace kolo::test {

// A rank's control plane, by which one of its exchanges fails. Used by one thread, and its callbacks by the reactor's.
class FaultyControl final : public bootstrap::Control {
 public:
  enum class Fault {
    kLocal,       // this rank cannot go on: what precedes the exchange has failed,
    kThrown,      // or has thrown
    kUnanswered,  // the others hear its part, and it does not hear theirs
    kLate,        // it comes there when release() says so
    kDeath        // it dies there, as far as the others see
  };
  explicit FaultyControl(std::shared_ptr<bootstrap::Control> inner)
      : inner_(std::move(inner)), rank_(inner_->rank()), ranks_(inner_->ranks()) {}

  // At the number-th exchange from now on.
  void failAt(Fault fault, int number) {
    fault_ = fault;
    left_ = number;
  }
  // From now on the rank takes no subscription: it throws.
  void refuseSubscriptions(bool refuses) { refuses_ = refuses; }
  // Whether it waits for release(). Any thread.
  bool isHeld() const { return isHeld_.load(); }
  void release() { isHeld_.store(false); }
  // Whether there has been such an exchange; fails none any more.
  bool hasFailed() {
    const bool failed = left_ == 0;
    left_ = -1;
    return failed;
  }

  int rank() const override { return rank_; }
  int ranks() const override { return ranks_; }
  std::string derivedSecret(std::string_view label) const override {
    return inner_ != nullptr ? inner_->derivedSecret(label) : "";
  }
  Result<std::vector<std::string>> allGather(std::uint64_t key, std::uint64_t sequence, const std::vector<int>& members,
                                             int index, std::string_view mine, int timeoutMs,
                                             bootstrap::Interrupt* interrupt) override {
    if (left_ > 0 && --left_ == 0) {
      if (fault_ == Fault::kDeath) inner_.reset();  // without a farewell
      if (fault_ == Fault::kThrown) throw std::bad_alloc();
      if (fault_ == Fault::kLate) {
        for (isHeld_.store(true); isHeld_.load();) std::this_thread::sleep_for(std::chrono::milliseconds(1));
        return inner_->allGather(key, sequence, members, index, mine, timeoutMs, interrupt);
      }
      if (fault_ == Fault::kUnanswered) {
        KOLO_TRY(inner_->allGather(key, sequence, members, index, mine, timeoutMs, interrupt).status());
        return error(koloInProgress, "no answer in this step");
      }
      return error(koloSystemError, "a fault in this step");
    }
    if (inner_ == nullptr) return error(koloSystemError, "this rank is dead");
    return inner_->allGather(key, sequence, members, index, mine, timeoutMs, interrupt);
  }
  void subscribe(std::uint64_t key, const std::vector<int>& members,
                 std::function<void(const bootstrap::Failure&)> onFailure,
                 std::function<std::string(int, std::string_view)> onQuestion, std::uint64_t family) override {
    if (refuses_) throw std::bad_alloc();
    if (inner_ != nullptr) inner_->subscribe(key, members, std::move(onFailure), std::move(onQuestion), family);
  }
  void unsubscribe(std::uint64_t key) override {
    if (inner_ != nullptr) inner_->unsubscribe(key);
  }
  void reportFailure(std::uint64_t key, const bootstrap::Failure& failure, std::uint64_t family) override {
    if (inner_ != nullptr) inner_->reportFailure(key, failure, family);
  }
  std::shared_ptr<bootstrap::Answer> ask(std::uint64_t key, int rank, std::string_view question) override {
    return inner_ != nullptr ? inner_->ask(key, rank, question) : nullptr;
  }
  void leave() override {
    if (inner_ != nullptr) inner_->leave();
  }

 private:
  std::shared_ptr<bootstrap::Control> inner_;
  const int rank_, ranks_;
  Fault fault_ = Fault::kLocal;
  bool refuses_ = false;
  std::atomic<bool> isHeld_{false};
  int left_ = -1;  // exchanges up to the one that fails; 0: it has; -1: none does
};

// The ranks of a job, each with a communicator of all of them.
class Makers {
 public:
  static constexpr int kPatienceMs = 20000;

  Makers(int ranks, comm::Options options)
      : options_(std::move(options)), controls_(static_cast<std::size_t>(ranks)), whole_(controls_.size()) {
    Result<koloUniqueId> id = bootstrap::createUniqueId();
    REQUIRE(id.ok());
    std::vector<Status> statuses(controls_.size());
    forEach([&](int rank) {
      const auto at = static_cast<std::size_t>(rank);
      Result<std::shared_ptr<bootstrap::Control>> joined = bootstrap::join(id.value(), rank, ranks, kPatienceMs);
      if (!joined.ok()) return void(statuses[at] = joined.status());
      controls_[at] = std::make_shared<FaultyControl>(joined.take());
      comm::Membership membership{
          .control = controls_[at], .key = 1, .members = {}, .rank = rank, .initTimeoutMs = kPatienceMs};
      membership.members.resize(controls_.size());
      std::iota(membership.members.begin(), membership.members.end(), 0);
      Result<comm::Owned> made = comm::Communicator::create(std::move(membership), options_);
      statuses[at] = made.status();
      if (made.ok()) whole_[at] = made.take();
    });
    for (const Status& status : statuses) {
      INFO(status.message());
      REQUIRE(status.ok());
    }
  }
  ~Makers() {
    forEach([&](int rank) {
      whole_[static_cast<std::size_t>(rank)].reset();
      controls_[static_cast<std::size_t>(rank)]->leave();
    });
  }
  Makers(const Makers&) = delete;

  int ranks() const { return static_cast<int>(controls_.size()); }
  FaultyControl& control(int rank) { return *controls_[static_cast<std::size_t>(rank)]; }
  comm::Communicator& whole(int rank) { return *whole_[static_cast<std::size_t>(rank)]; }

  // On a thread for each rank.
  template <class Function>
  void forEach(const Function& function) {
    std::vector<std::thread> threads;
    for (int rank = 0; rank < ranks(); ++rank) threads.emplace_back([&function, rank] { function(rank); });
    for (std::thread& thread : threads) thread.join();
  }
  // What becomes of it when each rank makes a communicator; those that are made are gone again.
  using Make = std::function<Result<comm::Owned>(comm::Communicator& whole)>;
  std::vector<Status> make(const Make& how, const std::function<void(int rank)>& before = nullptr) {
    std::vector<Status> statuses(controls_.size());
    forEach([&](int rank) {
      if (before != nullptr) before(rank);
      statuses[static_cast<std::size_t>(rank)] = how(whole(rank)).status();
    });
    return statuses;
  }
  static Result<comm::Owned> split(comm::Communicator& whole) { return comm::split(whole, 0, 0, nullptr); }
  // Without anybody left out, which makes a communicator by no exchange of the whole one.
  static Result<comm::Owned> shrink(comm::Communicator& whole) { return comm::shrink(whole, {}, nullptr); }
  // Of all, the last one first.
  static Result<comm::Owned> group(comm::Communicator& whole) {
    std::vector<int> ranks;
    for (int rank = whole.ranks(); rank-- > 0;) ranks.push_back(rank);
    KOLO_ASSIGN(comm::NewGroup made,
                comm::createGroup(whole, ranks, comm::groupOptions(whole, ranks, {}, nullptr, nullptr), 0));
    return std::move(made.made);
  }

 private:
  comm::Options options_;
  std::vector<std::shared_ptr<FaultyControl>> controls_;
  std::vector<comm::Owned> whole_;
};

// All failed, and those to whom the fault did not happen name the rank to which it did.
inline void expectAllNamed(const std::vector<Status>& statuses, int culprit) {
  const std::string name = "rank " + std::to_string(culprit);
  for (std::size_t rank = 0; rank < statuses.size(); ++rank) {
    INFO("rank " << rank << ": " << statuses[rank].message());
    CHECK(!statuses[rank].ok());
    if (static_cast<int>(rank) != culprit) CHECK(statuses[rank].message().find(name) != std::string::npos);
  }
}

inline void expectAllMade(const std::vector<Status>& statuses) {
  for (std::size_t rank = 0; rank < statuses.size(); ++rank) {
    INFO("rank " << rank << ": " << statuses[rank].message());
    CHECK(statuses[rank].ok());
  }
}

// How communicators are made, and at which exchange a fault of one rank alone may end that: the first of a split tells
// all ranks' colors, that of a group tells who has come, and nothing precedes it that could fail so. Ranks that share
// memory need no other. By which exchange a death ends nothing: a shrink goes on without those who have not come.
struct Way {
  const char* name;
  Makers::Make make;
  int first;
  bool shares;
  int outlived;
};
inline Way bySplit() { return {"split", Makers::split, 2, true, 0}; }
inline Way byShrink() { return {"shrink", Makers::shrink, 1, false, 1}; }
inline Way byGroup() { return {"group", Makers::group, 2, true, 0}; }

// Makes communicators, the fault being at the first exchange of making one, then at the second, and so on.
inline void failAtEachExchange(const Way& way, const comm::Options& options, int ranks, int culprit) {
  using Fault = FaultyControl::Fault;
  int steps = 0;
  for (bool failed = true; failed; steps += failed) {
    Makers survivors(ranks, options);
    for (const Fault fault : {Fault::kLocal, Fault::kThrown}) {
      const int step = way.first + steps;
      INFO(way.name << ", step " << step << (fault == Fault::kLocal ? " fails" : " throws") << " on rank " << culprit);
      survivors.control(culprit).failAt(fault, step);
      const std::vector<Status> statuses = survivors.make(way.make);
      failed = survivors.control(culprit).hasFailed();
      failed ? expectAllNamed(statuses, culprit) : expectAllMade(statuses);
    }
    INFO(way.name << ", after step " << way.first + steps);
    expectAllMade(survivors.make(way.make));  // what they were made from has not suffered
  }
  const bool needsNoMore = way.shares && options.transports == "shm";
  CHECK((needsNoMore ? steps == 0 : steps >= 3));
  for (int step = 1; step < way.first + steps; ++step) {
    INFO(way.name << ", rank " << culprit << " dies in step " << step);
    Makers mortals(ranks, options);
    mortals.control(culprit).failAt(Fault::kDeath, step);
    std::vector<Status> statuses = mortals.make(way.make);
    if (step > way.outlived) {
      expectAllNamed(statuses, culprit);
    } else {
      statuses.erase(statuses.begin() + culprit);
      expectAllMade(statuses);
    }
  }
}

}  // namespace kolo::test
