// A listening socket shared by the hubs of a process, and the strangers that have connected to it (network/acceptor.h).
// All they send is of fixed size, they are dropped after 5 s, and none of them is told anything before it has proved
// that it holds a job's secret.
//
// Thread safety: reactor thread only, except startHub.
#pragma once

#include <map>
#include <memory>
#include <set>

#include "bootstrap/hub.h"
#include "bootstrap/reactor.h"
#include "bootstrap/unique_id.h"
#include "network/acceptor.h"

namespace kolo::bootstrap {

// Starts a hub in this process and returns the contents of its id. Port 0: any. A port of the user's choice is an
// explicit root. only: as localAddresses(). Thread safety: any thread. Errors: koloSystemError (address:port and why),
// koloInvalidUsage (this process runs this very job already, or was forked).
Result<IdContents> startHub(const Secret& secret, std::uint16_t port, const std::optional<Address>& only = {});

// A connection to the hub of this job, if it is in this process. errnum is 0 on success; ECONNREFUSED: it is not here.
// Thread safety: any thread.
Socket connectToHubHere(const Secret& secret, int& errnum);

// Ends a job that is still forming, of so many ranks, whose hub is in this process, if it is: all its ranks but this
// one, which knows, are told why. False: it is not in this process. Thread safety: any thread.
bool failHub(const Secret& secret, int rank, int ranks, const Status& why);

// Runs the task when the hub of a job that failed to form, if it is in this process, has told all ranks, or waits for
// them no longer; at once if it is not. On this thread or the reactor's. Thread safety: any thread.
void whenTold(const Secret& secret, const std::function<void()>& task);

// Has the hub of a job, if it is in this process, read what a rank of this process has sent to it, and tell other
// processes (Hub::readHere). False: it is not, or does not have the rank. Reactor thread only.
bool readInHubHere(const Secret& secret, int rank);

class Listener;
// A standby (standby.h): of a rank until it has left, or of a hub. It is closed with this object, or with the hub that
// it has. Thread safety: reactor thread only, except the destructor.
class Standby {
 public:
  struct Opened {
    std::shared_ptr<Standby> standby;  // null: there can be none
    std::string lack;                  // why, or why other places do not reach it
  };
  // Reach: other places reach it, too, at the port that the process has for all its standbys, and for hubs of ids that
  // it has made. Of a rank: one more port is held for its data until settle(); where KOLO_PORT_RANGE has not both, it
  // takes none.
  enum class Reach : std::uint8_t { kHere, kEverywhere, kEverywhereOfRank };
  static Opened open(Reactor& reactor, Reach reach);
  Standby(Reactor& reactor, std::string name, const std::shared_ptr<Listener>& listener);
  ~Standby();
  Standby(const Standby&) = delete;
  Standby& operator=(const Standby&) = delete;

  const std::string& name() const { return name_; }
  // 0: other places do not reach it.
  std::uint16_t port() const;
  // Where these do, if that is one address alone.
  std::string address() const;
  // That address is one that the user has written out. (An interface may have a name that it has in all containers.)
  bool isAtGivenAddress() const;
  // All ranks have joined. isWide: the others need to reach it.
  void settle(bool isWide);
  // Leads ranks that hold this secret to a hub of this process.
  void leadTo(const Secret& secret, const std::shared_ptr<Hub>& hub);
  // Makes the hub that the job has from now on, if it is not here yet.
  Status succeed(const Secret& secret, const Succession& succession);

 private:
  Status openToOthers(Reach reach);
  void closeToOthers();

  Reactor& reactor_;
  const std::string name_;
  const Tag tag_;
  const std::weak_ptr<Listener> listener_;
  std::weak_ptr<Listener> others_;
  Socket forData_;
};

class Listener final : public Source, private network::Acceptor::Owner, public std::enable_shared_from_this<Listener> {
 public:
  Listener(Reactor& reactor, std::uint16_t port, LocalAddresses local)
      : reactor_(reactor), port_(port), local_(std::move(local)) {}
  Status start(Socket socket);

  std::uint16_t port() const { return port_; }
  const LocalAddresses& local() const { return local_; }
  // koloInvalidUsage if a hub of this job is alive here.
  Status addHub(const Secret& secret);
  // One that is reached by another listener, or by another secret, too.
  void addHub(const Secret& secret, const std::shared_ptr<Hub>& hub) { hubs_[tagOf(secret)] = {hub, secret}; }
  void dropHub(const Hub* hub);
  // A standby that is open, with a hub or without. Standbys have tags of their own.
  void addStandby(const Tag& tag) { standbys_.insert(tag); }
  void dropStandby(const Tag& tag) { standbys_.erase(tag); }
  bool hasStandbys() const { return !standbys_.empty(); }
  bool empty() const { return hubs_.empty() && standbys_.empty(); }
  // The hub of a job; null: it is not here.
  std::shared_ptr<Hub> hubOf(const Tag& tag) const;
  // The hub's end of a connection whose other end is to have `rank`. False: errno says why.
  bool connectHere(Socket& rank);
  // Closes the socket and drops the strangers.
  void close();

  void onReadable() override;
  void onWritable() override {}
  bool hasOutput() const override { return false; }
  bool isAwaited() const override;
  void giveUp() override {}  // who wants to join waits until there is memory, or its time is over
  void onEnd() override;

 private:
  class Candidate;
  struct Served {
    std::shared_ptr<Hub> hub;
    Secret secret{};  // of those that come to it
  };
  std::unique_ptr<network::Stranger> welcome(Socket socket) override;
  std::string refusal(int errnum) override;
  void hasRefused(int errnum) override;
  bool watch(int fd) override { return reactor_.add(fd, shared_from_this()).ok(); }
  void forget(int fd) override { reactor_.remove(fd); }
  void awaitNext();

  Reactor& reactor_;
  network::Acceptor acceptor_{*this, std::chrono::seconds(5)};
  Reactor::TimerId timer_ = 0;  // of the acceptor's next time
  bool wasPaused_ = false;
  std::uint16_t port_;
  LocalAddresses local_;
  std::map<Tag, Served> hubs_;
  std::set<Tag> standbys_;
};

}  // namespace kolo::bootstrap
