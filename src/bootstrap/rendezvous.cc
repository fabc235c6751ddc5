// Handing the id from rank 0 to the others.
//
// On one host it goes through a file in a directory that only this user can write or read:
//   $XDG_RUNTIME_DIR or $TMPDIR or /tmp, /kolo-UID (0700) / HASH.id (0600)
// where HASH names the job and how many jobs of that name this process has been in before. Rank 0 removes it when its
// attempt to join is over; after a failure, when all ranks know of that. A rank 0 that cannot go on, and has no socket
// to say so by, writes that into the file; another rank writes it into a file that is named by the id, for rank 0 to
// take. Where no file can be written, as on a full disk, both use a name of the kernel's instead (notice.h). Ranks of
// different users do not meet there: a user that could read the file could join. Ranks that waited in
// vain are told so.
//
// Over several hosts the secret is derived, by all ranks, from KOLO_SECRET and the job's name.
#include "bootstrap/rendezvous.h"

#include <unistd.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <thread>

#include "base/log.h"
#include "base/settings.h"
#include "bootstrap/control.h"
#include "bootstrap/dial.h"
#include "bootstrap/job_secret.h"
#include "bootstrap/last_words.h"
#include "bootstrap/listener.h"
#include "bootstrap/notice.h"
#include "bootstrap/other_users.h"
#include "bootstrap/published.h"

namespace kolo::bootstrap {
namespace {

constexpr auto kFirstRest = std::chrono::milliseconds(1);
constexpr auto kLongestRest = std::chrono::milliseconds(20);

// Which job of its name each rank of this process is at, and what waits for the end of its join.
struct Book {
  struct Pending {
    std::string jobName;
    std::string directory;  // where the file is; empty with a root
    std::string file;
    Clock::time_point since{};
    bool publisher = false;  // rank 0, which removes the file
    Root root;               // empty where ranks meet by the file
  };
  std::mutex mutex;
  std::map<std::pair<std::string, int>, int> jobsBefore;   // (name, rank)
  std::map<std::pair<std::string, int>, Pending> pending;  // (bytes of the id, rank)
};

Book& book() {
  static auto* const instance = new Book;  // never destroyed: ranks may be joining while the process exits
  return *instance;
}

// How long a rank stays that has no socket, and tells the others by the file alone. Of a rank 0 no reader says that it
// has read.
constexpr auto kUnheardWordsTime = std::chrono::seconds(3);
constexpr auto kWordPause = std::chrono::milliseconds(10);

std::string numberedName(const LauncherJob& job) {
  Book& all = book();
  const std::lock_guard lock(all.mutex);
  return fmt::format("{}#{}", job.jobName, all.jobsBefore[{job.jobName, job.rank}]);
}

void remember(const koloUniqueId& id, const LauncherJob& job, Book::Pending pending) {
  Book& all = book();
  const std::lock_guard lock(all.mutex);
  pending.jobName = job.jobName;
  all.pending[{std::string(id.internal, sizeof id.internal), job.rank}] = std::move(pending);
}

// What may be known of ranks that did not come, after waiting for them since then. Ranks of a job do not all start at
// once.
std::string explainAbsence(const std::string& directory, const std::string& file, Clock::time_point since) {
  constexpr auto kStartApart = std::chrono::seconds(30);
  return explainUsers(directory, file, std::chrono::ceil<std::chrono::seconds>(Clock::now() - since) + kStartApart);
}

// Where rank 0, or another rank, leaves word if no file can be written.
std::string noticeOf(const std::string& file, bool isOfRank0) {
  return fmt::format("kolo-{}-{}-{}", ::geteuid(), file, isOfRank0 ? "rank 0" : "other");
}

std::optional<PublishedFailure> failureAt(const std::string& notice) {
  const std::optional<std::string> words = readNotice(notice);
  return words.has_value() ? decodeFailure(*words) : std::nullopt;
}

// Of this user's directories the first one where rank 0 has left something. koloInProgress: none, and why.
Result<koloUniqueId> lookAround(std::string& directory, const std::string& file, Clock::time_point deadline) {
  Result<koloUniqueId> own = readPublished(directory + "/" + file, deadline);
  if (own.status().code() != koloInProgress) return own;
  for (const std::string& other : privateDirectories()) {
    Result<koloUniqueId> id = readPublished(other + "/" + file, deadline);
    if (id.status().code() == koloInProgress) continue;
    directory = other;
    return id;
  }
  return own;
}

// directory: where this rank looks first; then where it has found the file.
Result<koloUniqueId> fetch(std::string& directory, const std::string& file, int timeoutMs) {
  const auto start = Clock::now();
  const auto deadline = start + std::chrono::milliseconds(timeoutMs);
  for (Clock::duration pause = kFirstRest;; pause = std::min<Clock::duration>(pause * 2, kLongestRest)) {
    Result<koloUniqueId> id = lookAround(directory, file, deadline);
    if (id.ok() || id.status().code() != koloInProgress) return id;
    if (const auto failure = failureAt(noticeOf(file, true)); failure.has_value()) return failure->why;
    if (Clock::now() + pause >= deadline) {
      return error(koloTimeout, "waited {} ms (KOLO_INIT_TIMEOUT_MS) for rank 0: {}. {}", timeoutMs,
                   id.status().message(), explainAbsence(directory, file, start));
    }
    std::this_thread::sleep_for(pause);
  }
}

Status saidBy(int rank, const char* what, const Status& why) {
  return error(koloRemoteError, "rank {} (pid {} on {}) {}: {}", rank, ::getpid(), hostName(), what, why.message());
}

// This rank 0 cannot run the hub: the other ranks are told why.
void giveUp(const Status& why, const LauncherJob& job, int timeoutMs, LastWords words) {
  const auto limit = timeToTell(why, job.rank, kLastWordsTime, timeoutMs);
  words.tell(saidBy(job.rank, "cannot go on", why), job.ranks - 1, Clock::now() + limit);
}

// Where even sockets cannot be had the words stand in the file. False: nothing can be written there.
bool giveUpThroughFile(const Status& why, const LauncherJob& job, int timeoutMs, const std::string& path) {
  Secret secret;
  randombytes_buf(secret.data(), secret.size());
  Result<LastWords> words = LastWords::listen(secret, 0, loopbackHere());
  const Status written = words.ok() ? publish(path, encodeId(words.value().id()))
                                    : publishFailure(path, job.rank, saidBy(job.rank, "cannot go on", why));
  if (!written.ok()) return false;
  if (words.ok()) giveUp(why, job, timeoutMs, words.take());
  else std::this_thread::sleep_for(timeToTell(why, job.rank, kUnheardWordsTime, timeoutMs));
  ::unlink(path.c_str());
  return true;
}

// This rank can have no file, and so cannot go on.
Status giveUpWithoutFile(const Status& why, const LauncherJob& job, int timeoutMs, const std::string& file) {
  Status told =
      error(why.code(),
            "{}; the ranks of one host meet by a file there: XDG_RUNTIME_DIR or TMPDIR names another directory, or "
            "KOLO_ROOT a port to meet at",
            why.message());
  const bool isOfRank0 = job.rank == 0;
  const auto limit = timeToTell(told, job.rank, isOfRank0 ? kLastWordsTime : kUnheardWordsTime, timeoutMs);
  (void)giveNotice(noticeOf(file, isOfRank0), encodeFailure(job.rank, saidBy(job.rank, "cannot go on", told)),
                   isOfRank0 ? job.ranks - 1 : 1, Clock::now() + limit);
  return told;
}

Result<koloUniqueId> throughFile(const LauncherJob& job, int timeoutMs) {
  if (job.localRanks > 0 && job.localRanks < job.ranks) {
    return error(
        koloInvalidEnvironment,
        "environment variable KOLO_ROOT is not set, but {} says that {} of {} ranks are on this host: expected "
        "host:port of rank 0",
        job.launcher, job.localRanks, job.ranks);
  }
  const std::string file = fileName(numberedName(job));
  const Result<std::string> directory = privateDirectory();
  if (!directory.ok()) return giveUpWithoutFile(directory.status(), job, timeoutMs, file);
  Book::Pending pending{.directory = directory.value(), .file = file, .since = Clock::now()};
  const std::string path = directory.value() + "/" + file;
  if (job.rank != 0) {
    Result<koloUniqueId> id = fetch(pending.directory, file, timeoutMs);
    if (id.status().code() == koloSystemError) return giveUpWithoutFile(id.status(), job, timeoutMs, file);
    if (id.ok()) remember(id.value(), job, std::move(pending));
    return id;
  }
  Result<koloUniqueId> id = createUniqueId(true);
  const Status published = id.ok() ? publish(path, id.value()) : Status();
  if (!published.ok()) return giveUpWithoutFile(published, job, timeoutMs, file);
  if (!id.ok())
    return giveUpThroughFile(id.status(), job, timeoutMs, path) ? id.status()
                                                                : giveUpWithoutFile(id.status(), job, timeoutMs, file);
  pending.publisher = true;
  remember(id.value(), job, std::move(pending));
  return id;
}

// "host:5000", "[fd00::2]:5000"
Status splitRoot(const LauncherJob& job, std::string& host, std::uint16_t& port) {
  const std::string& root = job.root;
  const std::size_t colon = root.rfind(':');
  const Result<std::int64_t> number = settings::parseInteger(
      colon == std::string::npos ? std::string_view() : std::string_view(root).substr(colon + 1));
  host = root.substr(0, colon);
  if (host.size() >= 2 && host.front() == '[' && host.back() == ']') host = host.substr(1, host.size() - 2);
  if (host.empty() || !number.ok() || number.value() < 1 || number.value() > 65535) {
    return error(koloInvalidEnvironment, "the root (by {}) is \"{}\", expected host:port", job.rootFrom, root);
  }
  port = static_cast<std::uint16_t>(number.value());
  return {};
}

// At which rank 0 listens: that of the root, if it is of this host alone; nothing: any.
std::optional<Address> addressOfRoot(const std::string& host) {
  if (!isOfThisHost(host)) return std::nullopt;
  const std::optional<Address> literal = network::parseAddress(host);
  return literal.has_value() ? literal : loopbackHere();
}

Secret agreedSecret(const LauncherJob& job) {
  return givenSecret(tagOf(expand({}, "kolo job tag: " + numberedName(job) + " at " + job.root)));
}

// Whether this very job has a rank 0 at that port of this host.
bool isRunningAt(const Secret& secret, std::uint16_t port, const std::optional<Address>& only) {
  const Result<LocalAddresses> local = localAddresses(only);
  if (!local.ok()) return false;
  IdContents there = contentsOfId(secret, local.value(), true);
  there.port = port;
  return answers(there, Clock::now() + std::chrono::seconds(1));
}

// Something else has the root's port: `taken`.
Result<IdContents> hubAtNextPort(const Status& taken, const Secret& secret, int port,
                                 const std::optional<Address>& only) {
  for (int next = port + 1; next <= lastRootPort(port); ++next) {
    Result<IdContents> hub = startHub(secret, static_cast<std::uint16_t>(next), only);
    if (!hub.ok()) continue;
    log::warn("{}; rank 0 listens at port {} instead, where the other ranks look, too", taken.message(), next);
    return hub;
  }
  return taken;
}

Result<IdContents> hubAtRoot(const LauncherJob& job, const Secret& secret, const std::string& host, std::uint16_t port,
                             int timeoutMs) {
  const std::optional<Address> only = addressOfRoot(host);
  Result<IdContents> hub = startHub(secret, port, only);
  if (hub.status().code() == koloSystemError && !isRunningAt(secret, port, only))
    hub = hubAtNextPort(hub.status(), secret, port, only);
  if (hub.ok()) return hub;
  if (Result<LastWords> words = LastWords::listen(secret, port, only); words.ok())
    giveUp(hub.status(), job, timeoutMs, words.take());
  return hub;
}

Result<IdContents> hubBeyondRoot(const LauncherJob& job, const Secret& secret, const std::string& host,
                                 std::uint16_t port, int timeoutMs) {
  IdContents contents;
  contents.explicitRoot = true;
  contents.port = port;
  contents.secret = secret;
  const Result<std::vector<Address>> found = resolve(host, Clock::now() + std::chrono::milliseconds(timeoutMs));
  if (!found.ok()) {
    return error(koloUnreachable, "rank {} has looked for rank 0 at {} (by {}) for {} ms (KOLO_INIT_TIMEOUT_MS): {}",
                 job.rank, job.root, job.rootFrom, timeoutMs, found.status().message());
  }
  for (const Address& address : found.value()) contents.places.push_back({address});
  return contents;
}

// The hub cannot know that this is a rank, but its user is told that somebody came without the secret.
Status comeWithoutSecret(const Status& why, const LauncherJob& job, const Secret& secret, const std::string& host,
                         std::uint16_t port, int timeoutMs) {
  if (job.rank == 0) return why;
  const auto limit = timeToTell(why, job.rank, kUnheardWordsTime, timeoutMs);
  const auto limitMs = std::chrono::ceil<std::chrono::milliseconds>(limit);
  const Result<IdContents> hub = hubBeyondRoot(job, secret, host, port, static_cast<int>(limitMs.count()));
  if (hub.ok()) (void)dial(hub.value(), Clock::now() + limit);
  return why;
}

Result<koloUniqueId> throughRoot(const LauncherJob& job, int timeoutMs) {
  std::string host;
  std::uint16_t port = 0;
  KOLO_TRY(splitRoot(job, host, port));
  // Without a secret no other host is to reach a job of this host, so its ranks meet where none does.
  const bool mayBeLocal = !hasGivenSecret() && settings::text("KOLO_INTERFACE").empty();
  if (mayBeLocal && isOnOneHost(job)) host = "localhost";
  const Secret secret = agreedSecret(job);
  if (!isOfThisHost(host)) {
    const Status status = demandSecret(fmt::format("other hosts reach {} (by {})", job.root, job.rootFrom));
    if (!status.ok()) return comeWithoutSecret(status, job, secret, host, port, timeoutMs);
  }
  if (!hasGivenSecret() && job.rank == 0) {
    log::warn("KOLO_SECRET is not set: whoever can reach {}:{} and guesses the job's name may join or disturb this job",
              host, port);
  }
  KOLO_ASSIGN(const IdContents contents, job.rank == 0 ? hubAtRoot(job, secret, host, port, timeoutMs)
                                                       : hubBeyondRoot(job, secret, host, port, timeoutMs));
  const koloUniqueId id = encodeId(contents);
  Root root{job.root, job.rootFrom, network::parseAddress(host).has_value() ? std::string() : host};
  remember(id, job, {.root = std::move(root)});
  return id;
}

}  // namespace

Result<koloUniqueId> rendezvous(const LauncherJob& job, int timeoutMs) {
  KOLO_TRY(initialiseCrypto());
  if (job.ranks < 1 || job.rank < 0 || job.rank >= job.ranks) {
    return error(koloInvalidRank, "rank {} of {}, expected 0..{}", job.rank, job.ranks, job.ranks - 1);
  }
  if (job.ranks == 1) return createUniqueId(true);
  return job.root.empty() ? throughFile(job, timeoutMs) : throughRoot(job, timeoutMs);
}

Clock::duration timeToTell(const Status& why, int rank, Clock::duration limit, int timeoutMs) {
  limit = std::min<Clock::duration>(limit, std::chrono::milliseconds(timeoutMs));
  log::warn("rank {} cannot go on: {}. It tells the others, for {} ms at most, before it returns", rank, why.message(),
            std::chrono::ceil<std::chrono::milliseconds>(limit).count());
  return limit;
}

Root rootOf(const koloUniqueId& id, int rank) {
  Book& all = book();
  const std::lock_guard lock(all.mutex);
  const auto found = all.pending.find({std::string(id.internal, sizeof id.internal), rank});
  return found != all.pending.end() ? found->second.root : Root();
}

namespace {

// By what a rank of this job leaves word for rank 0: a file, or a name where none can be written. Empty: the ranks do
// not meet by files.
struct WordPlace {
  std::string path;
  std::string notice;
};

std::optional<WordPlace> wordPlace(const koloUniqueId& id, int rank) {
  Book& all = book();
  const std::string bytes(id.internal, sizeof id.internal);
  const std::lock_guard lock(all.mutex);
  const auto found = all.pending.find({bytes, rank});
  if (found == all.pending.end() || found->second.directory.empty()) return std::nullopt;
  return WordPlace{found->second.directory + "/" + fileName("word for the hub of " + bytes),
                   noticeOf(found->second.file, false)};
}

}  // namespace

void leaveWord(const koloUniqueId& id, int rank, const Status& why, int timeoutMs) {
  const std::optional<WordPlace> place = wordPlace(id, rank);
  if (!place.has_value()) return;
  const Status words = saidBy(rank, "cannot take part", why);
  const auto until = Clock::now() + timeToTell(why, rank, kUnheardWordsTime, timeoutMs);
  if (!publishFailure(place->path, rank, words).ok())
    return (void)giveNotice(place->notice, encodeFailure(rank, words), 1, until);
  while (::access(place->path.c_str(), F_OK) == 0 && Clock::now() < until) std::this_thread::sleep_for(kWordPause);
  ::unlink(place->path.c_str());
}

std::optional<PublishedFailure> takeWord(const koloUniqueId& id, int rank) {
  const std::optional<WordPlace> place = wordPlace(id, rank);
  if (!place.has_value()) return std::nullopt;
  std::optional<PublishedFailure> word = readFailure(place->path);
  if (!word.has_value()) return failureAt(place->notice);
  ::unlink(place->path.c_str());
  return word;
}

Status finishRendezvous(const koloUniqueId& id, const Secret& secret, int rank, Status joined) {
  Book& all = book();
  Book::Pending pending;
  {
    const std::lock_guard lock(all.mutex);
    const auto node = all.pending.extract({std::string(id.internal, sizeof id.internal), rank});
    if (node.empty()) return joined;
    pending = std::move(node.mapped());
    // Only a job that formed counts: its ranks all know that it did, so they keep numbering alike.
    if (joined.ok()) ++all.jobsBefore[{pending.jobName, rank}];
  }
  if (pending.publisher) {
    const std::string path = pending.directory + "/" + pending.file;
    if (joined.ok() || joined.code() == koloTimeout) {
      ::unlink(path.c_str());
    } else {
      whenTold(secret, [path, id] { retract(path, id); });
    }
  }
  if (joined.code() != koloTimeout || pending.directory.empty()) return joined;
  return error(koloTimeout, "{}. {}", joined.message(), explainAbsence(pending.directory, pending.file, pending.since));
}

}  // namespace kolo::bootstrap
