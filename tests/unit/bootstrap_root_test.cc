// Ranks that look for rank 0 at a root of the user's choice, where something else listens.
#include <arpa/inet.h>
#include <poll.h>

#include <atomic>
#include <future>
#include <list>
#include <memory>
#include <regex>
#include <vector>

#include "bootstrap/listener.h"
#include "bootstrap_child.h"
#include "support/deadline.h"
#include "support/settings_scope.h"

using namespace kolo;
using namespace kolo::bootstrap;
using namespace std::chrono_literals;

namespace {

// A service that is not Kolo, at a port of all addresses. Its end closes the connections that it has kept.
class Service {
 public:
  enum class Manner { kTalks, kGreetsAndWaits, kCloses, kIsSilent };

  explicit Service(Manner manner) : manner_(manner), listener_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    const int yes = 1;
    (void)::setsockopt(listener_.fd(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    sockaddr_storage storage;
    socklen_t bytes = Address{}.fill(0, storage);  // also at 127.0.0.2, and so on
    auto* const name = reinterpret_cast<sockaddr*>(&storage);
    REQUIRE(::bind(listener_.fd(), name, bytes) == 0);
    REQUIRE(::listen(listener_.fd(), 16) == 0);
    REQUIRE(::getsockname(listener_.fd(), name, &bytes) == 0);
    port_ = ntohs(reinterpret_cast<sockaddr_in*>(name)->sin_port);
    thread_ = std::thread([this] { run(); });
  }
  ~Service() {
    isOver_ = true;
    thread_.join();
  }
  std::uint16_t port() const { return port_; }
  int visits() const { return visits_; }

 private:
  void run() {
    std::list<Socket> kept;
    for (pollfd one{listener_.fd(), POLLIN, 0}; !isOver_;) {
      if (::poll(&one, 1, 5) <= 0) continue;
      Socket client(::accept4(listener_.fd(), nullptr, nullptr, SOCK_CLOEXEC));
      ++visits_;
      const std::string words = manner_ == Manner::kTalks ? "HTTP/1.1 400 Bad Request\r\n" + std::string(300, 'x')
                                : manner_ == Manner::kGreetsAndWaits ? "220 mail ESMTP\r\n"
                                                                     : "";
      (void)!::send(client.fd(), words.data(), words.size(), MSG_NOSIGNAL);
      if (manner_ != Manner::kCloses) kept.push_back(std::move(client));
    }
    listener_.close();
  }

  Manner manner_;
  Socket listener_;
  std::uint16_t port_ = 0;
  std::atomic<int> visits_{0};
  std::atomic<bool> isOver_{false};
  std::thread thread_;
};

LauncherJob jobAt(std::uint16_t port, int rank) {
  LauncherJob job;
  job.launcher = "kolo";
  job.rank = rank;
  job.ranks = 2;
  job.jobName = fmt::format("root {}", port);
  job.root = fmt::format("127.0.0.1:{}", port);
  return job;
}

Result<ControlPtr> joinAt(std::uint16_t port, int rank, int timeoutMs) {
  const Result<koloUniqueId> id = rendezvous(jobAt(port, rank), timeoutMs);
  return id.ok() ? join(id.value(), rank, 2, timeoutMs) : Result<ControlPtr>(id.status());
}

struct Foreign {
  Service::Manner manner;
  const char* said;
};
const std::vector<Foreign> kForeigners = {
    {Service::Manner::kTalks,
     "is not Kolo: something else listens there, and answered \"HTTP/1.1 400 Bad Request..xxx"},
    {Service::Manner::kGreetsAndWaits, "is not Kolo: something else listens there, and answered \"220 mail ESMTP..\""},
    {Service::Manner::kCloses, "closed the connection during the handshake"},
    {Service::Manner::kIsSilent, "connected, but the process that listens there has said nothing"}};

// What is left of the limit when the search begins: on a busy machine it begins some milliseconds late.
int waitedMs(const std::string& message) {
  std::smatch found;
  return std::regex_search(message, found, std::regex(R"(within (\d+) ms \(KOLO_INIT_TIMEOUT_MS\))"))
             ? std::stoi(found[1])
             : -1;
}

}  // namespace

TEST_CASE("a rank that meets something else at the root's address waits for rank 0 to listen there", "[bootstrap]") {
  for (const Foreign& each : kForeigners) {
    auto service = std::make_unique<Service>(each.manner);
    const std::uint16_t port = service->port();
    Result<ControlPtr> one = error(koloInternalError, "unset");
    std::thread early([&] { one = joinAt(port, 1, kPatienceMs); });
    // More than one try, where an answer ends one.
    const int least = each.manner == Service::Manner::kIsSilent ? 1 : 3;
    for (const auto limit = Clock::now() + 10s; service->visits() < least && Clock::now() < limit;) {
      std::this_thread::sleep_for(5ms);
    }
    CHECK(service->visits() >= least);
    service.reset();
    const Result<ControlPtr> zero = joinAt(port, 0, kPatienceMs);
    early.join();
    INFO(each.said << ": " << zero.status().message() << " " << one.status().message());
    REQUIRE(zero.ok());
    REQUIRE(one.ok());
    leaveAll({zero.value(), one.value()});
  }
}

TEST_CASE("where something else has the root's port rank 0 takes the next one, and the others find it", "[bootstrap]") {
  for (const Foreign& each : kForeigners) {
    if (each.manner == Service::Manner::kIsSilent) continue;  // its answer is waited for
    const Service service(each.manner);
    std::future<Result<ControlPtr>> one =
        std::async(std::launch::async, [&] { return joinAt(service.port(), 1, kPatienceMs); });
    const Result<ControlPtr> zero = joinAt(service.port(), 0, kPatienceMs);
    const Result<ControlPtr> found = one.get();
    INFO(each.said << ": " << zero.status().message() << " " << found.status().message());
    REQUIRE(zero.ok());
    REQUIRE(found.ok());
    leaveAll({zero.value(), found.value()});
  }
}

TEST_CASE("a second rank 0 of one job is refused, and takes no other port", "[bootstrap]") {
  std::uint16_t port = 0;
  { Result<Socket> probe = listenOn({}, 0, port); }
  const Result<koloUniqueId> id = rendezvous(jobAt(port, 1), kPatienceMs);
  REQUIRE(id.ok());
  Child first("hub at the root", 0, 2, hex(id.value()));
  REQUIRE(first.line() == "listens");
  const Status second = joinAt(port, 0, kPatienceMs).status();
  CHECK(second.code() == koloSystemError);
  CHECK(contains(second.message(), "Address already in use"));
}

TEST_CASE("of two jobs of one name and two secrets at one root the second takes the next port", "[bootstrap]") {
  std::uint16_t port = 0;
  { Result<Socket> probe = listenOn({}, 0, port); }
  Result<koloUniqueId> id = error(koloInternalError, "unset");
  {
    const test::SettingsScope one(std::vector<std::pair<const char*, std::string>>{{"KOLO_SECRET", "one"}});
    id = rendezvous(jobAt(port, 1), kPatienceMs);
  }
  REQUIRE(id.ok());
  Child first("hub at the root", 0, 2, hex(id.value()));
  REQUIRE(first.line() == "listens");
  const test::SettingsScope two(std::vector<std::pair<const char*, std::string>>{{"KOLO_SECRET", "two"}});
  ControlPtr controls[2];
  onThreads(2, [&](int rank) {
    Result<ControlPtr> joined = joinAt(port, rank, kPatienceMs);
    if (joined.ok()) controls[rank] = joined.take();
  });
  REQUIRE((controls[0] != nullptr && controls[1] != nullptr));
  leaveAll({controls[0], controls[1]});
}

TEST_CASE("a rank that waits in vain says what listens at the root, who named it, and how long it waited",
          "[bootstrap]") {
  constexpr int kLimitMs = 2000;  // in which a service has answered, on a busy machine too
  struct End {
    Status status;
    Clock::duration after;
  };
  std::vector<std::unique_ptr<Service>> services;  // side by side, for each rank waits as long as it may
  std::vector<std::future<End>> ends;
  for (const Foreign& each : kForeigners) {
    services.push_back(std::make_unique<Service>(each.manner));
    ends.push_back(std::async(std::launch::async, [port = services.back()->port()] {
      const auto since = Clock::now();
      Status status = joinAt(port, 1, kLimitMs).status();
      return End{std::move(status), Clock::now() - since};
    }));
  }
  for (std::size_t i = 0; i < kForeigners.size(); ++i) {
    const End end = ends[i].get();
    INFO(end.status.message());
    CHECK(end.status.code() == koloUnreachable);
    CHECK(end.after >= std::chrono::milliseconds(kLimitMs - 200));
    CHECK_TOOK(20s, end.after);
    for (const std::string& part : {std::string(kForeigners[i].said), fmt::format("127.0.0.1:{}", services[i]->port()),
                                    std::string("by KOLO_ROOT")}) {
      CHECK(contains(end.status.message(), part));
    }
    CHECK(waitedMs(end.status.message()) <= kLimitMs);
    CHECK(waitedMs(end.status.message()) > kLimitMs / 2);
  }
}

TEST_CASE("a rank that waits in vain says what listened at the root before it went away", "[bootstrap]") {
  IdContents contents;
  contents.explicitRoot = true;
  contents.places.push_back({kLoopback});
  std::vector<Foreign> foreigners = kForeigners;
  std::erase_if(foreigners, [](const Foreign& each) { return each.manner == Service::Manner::kIsSilent; });
  std::vector<std::unique_ptr<Service>> services;  // side by side, for each is looked for as long as may be
  std::vector<std::future<Status>> dials;
  for (const Foreign& each : foreigners) {
    services.push_back(std::make_unique<Service>(each.manner));
    contents.port = services.back()->port();
    dials.push_back(std::async(std::launch::async, [contents] { return dial(contents, Clock::now() + 4s).status(); }));
  }
  for (std::size_t i = 0; i < foreigners.size(); ++i) {
    // The second visit comes when the first has had its answer.
    while (services[i]->visits() < 2 && dials[i].wait_for(1ms) == std::future_status::timeout) {
    }
    services[i].reset();
  }
  for (std::size_t i = 0; i < foreigners.size(); ++i) {
    const Foreign& each = foreigners[i];
    const Status status = dials[i].get();
    INFO(each.said << ": " << status.message());
    CHECK(contains(status.message(), "Connection refused"));
    CHECK(contains(status.message(), std::string(each.said)) == (each.manner != Service::Manner::kCloses));
  }
}

TEST_CASE("of several addresses that say nothing none is waited for longer than joining may take", "[bootstrap]") {
  IdContents contents;
  contents.explicitRoot = true;
  for (unsigned char i = 1; i <= 3; ++i) contents.places.push_back({Address{.bytes = {127, 0, 0, i}}});
  auto service = std::make_unique<Service>(Service::Manner::kIsSilent);
  contents.port = service->port();
  std::future<Status> dialling =
      std::async(std::launch::async, [&] { return dial(contents, Clock::now() + 300ms).status(); });
  CHECK(dialling.wait_for(10s) == std::future_status::ready);
  service.reset();  // which ends the wait
  const Status status = dialling.get();
  CHECK(status.code() == koloUnreachable);
  CHECK(contains(status.message(), "127.0.0.3"));
}

TEST_CASE("a rank that comes to the root while the job's former run is ending waits for the next run", "[bootstrap]") {
  IdContents contents;
  contents.explicitRoot = true;
  contents.places.push_back({kLoopback});
  { Result<Socket> probe = listenOn({}, 0, contents.port); }
  const koloUniqueId id = encodeId(contents);
  REQUIRE(startHub(contents.secret, contents.port).ok());
  const std::vector<ControlPtr> former = joinAll(id, 2);
  former[1]->leave();
  // Rank 0 of the former run is there, and may be for long.
  const Status tooEarly = join(id, 1, 2, 300).status();
  CHECK(tooEarly.code() == koloUnreachable);
  CHECK(contains(tooEarly.message(), "it ends, is over"));
  std::future<Result<ControlPtr>> one = std::async(std::launch::async, [&] { return join(id, 1, 2, kPatienceMs); });
  former[0]->leave();
  REQUIRE(startHub(contents.secret, contents.port).ok());
  const Result<ControlPtr> zero = join(id, 0, 2, kPatienceMs);
  const Result<ControlPtr> next = one.get();
  INFO(zero.status().message() << " " << next.status().message());
  REQUIRE(zero.ok());
  REQUIRE(next.ok());
  leaveAll({zero.value(), next.value()});
}
