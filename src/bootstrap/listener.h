// A listening socket shared by the hubs of a process, and the strangers that have connected to it but proved nothing
// yet.
//
// Strangers cost little and disturb nobody: all they send is of fixed size, they are dropped after 5 s, their number is
// bounded, and none of them is told anything before it has proved that it holds a job's secret. A stranger that has
// said nothing yet has its place until so many newer ones have come: a rank speaks at once, so that any number of idle
// connections keeps no rank out. One that has named a job of this process is no longer pushed out by those.
//
// Thread safety: reactor thread only, except startHub.
#pragma once

#include <list>
#include <map>
#include <memory>

#include "bootstrap/greeting.h"
#include "bootstrap/hub.h"
#include "bootstrap/reactor.h"
#include "bootstrap/unique_id.h"

namespace kolo::bootstrap {

// Starts a hub in this process and returns the contents of its id. Port 0: any. A port of the user's choice is an
// explicit root. Thread safety: any thread. Errors: koloSystemError (address:port and why), koloInvalidUsage (this
// process runs this very job already, or was forked).
Result<IdContents> startHub(const Secret& secret, std::uint16_t port);

// A connection to the hub of this job, if it is in this process. errnum is 0 on success; ECONNREFUSED: it is not here.
// Thread safety: any thread.
Socket connectToHubHere(const Secret& secret, int& errnum);

// Ends a job that is still forming, of so many ranks, whose hub is in this process, if it is: all its ranks but this
// one, which knows, are told why. False: it is not in this process. Thread safety: any thread.
bool failHub(const Secret& secret, int rank, int ranks, const Status& why);

// Runs the task when the hub of a job that failed to form, if it is in this process, has told all ranks, or waits for
// them no longer; at once if it is not. On this thread or the reactor's. Thread safety: any thread.
void whenTold(const Secret& secret, const std::function<void()>& task);

// Tells the hub of a job, if it is in this process, what a rank of this process is about to return to its program;
// other processes have been told when this returns (Hub::hostReports). Reactor thread only.
void tellHubHere(const Secret& secret, int rank, const std::string& failure);

class Stranger;

class Listener final : public Source, public std::enable_shared_from_this<Listener> {
 public:
  Listener(Reactor& reactor, Socket socket, std::uint16_t port, LocalAddresses local);

  std::uint16_t port() const { return port_; }
  const LocalAddresses& local() const { return local_; }
  // koloInvalidUsage if a hub of this job is alive here.
  Status addHub(const Secret& secret);
  bool empty() const { return hubs_.empty(); }
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
  void onEnd() override;

 private:
  friend class Stranger;
  using Strangers = std::list<std::shared_ptr<Stranger>>;  // oldest first

  void pause();
  void refuseForFiles();
  bool makeRoom();
  bool dropSilent();
  void welcome(Socket socket);
  // The stranger has said which job it belongs to.
  void hasGreeted(const Stranger* stranger);
  // The stranger is gone, or became a member.
  void forget(const Stranger* stranger);
  void dropHub(const Tag& tag, const Hub* hub);

  Reactor& reactor_;
  Socket socket_;
  Socket spare_;  // given up for a moment, to tell ranks that there are no descriptors
  std::uint16_t port_;
  LocalAddresses local_;
  std::map<Tag, std::shared_ptr<Hub>> hubs_;
  bool exhausted_ = false;  // out of descriptors, and said so
  Strangers silent_;
  Strangers greeted_;
};

// A connection during the handshake.
class Stranger final : public Source, public std::enable_shared_from_this<Stranger> {
 public:
  Stranger(Listener& listener, Socket socket);
  Status start();
  Clock::time_point since() const { return since_; }
  void drop();

  void onReadable() override;
  void onWritable() override {}
  bool hasOutput() const override { return false; }

 private:
  void becomeMember();

  Listener* listener_;  // lives longer: it drops its strangers when it closes
  Socket socket_;
  Clock::time_point since_ = Clock::now();
  Reactor::TimerId timer_ = 0;
  Greeting greeting_;
};

}  // namespace kolo::bootstrap
