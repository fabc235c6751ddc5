// Handing the id from rank 0 to the others.
//
// On one host it goes through a file in a directory that only this user can write or read:
//   $XDG_RUNTIME_DIR or $TMPDIR or /tmp, /kolo-UID (0700) / HASH.id (0600)
// where HASH names the job and how many jobs of that name this process has been in before. Rank 0 makes it appear
// whole, by rename, and removes it when its attempt to join is over. The file says which process made it, so what a
// crashed job left behind is not taken for the news of the next one. Ranks of different users do not meet there: whoever
// could read the file could join. Those who waited in vain are told so.
//
// Over several hosts the secret is derived, by all ranks, from KOLO_SECRET and the job's name.
#include "bootstrap/rendezvous.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <thread>

#include "base/log.h"
#include "base/settings.h"
#include "bootstrap/control.h"
#include "bootstrap/dial.h"
#include "bootstrap/listener.h"
#include "bootstrap/other_users.h"

namespace kolo::bootstrap {
namespace {

constexpr std::string_view kFileMagic = "KOLOfile1";
constexpr std::size_t kMostFileBytes = 512;
constexpr auto kFirstPause = std::chrono::milliseconds(1);
constexpr auto kLongestPause = std::chrono::milliseconds(20);

// Which job of its name each rank of this process is at, and what waits for the end of its join.
struct Book {
  struct Pending {
    std::string jobName;
    std::string directory;  // where the file is; empty with a root
    std::string file;
    Clock::time_point since{};
    bool publisher = false;  // rank 0, which removes the file
    std::string rootName;    // of the root's host, where its addresses come from a name
  };
  std::mutex mutex;
  std::map<std::pair<std::string, int>, int> jobsBefore;   // (name, rank)
  std::map<std::pair<std::string, int>, Pending> pending;  // (bytes of the id, rank)
};

Book& book() {
  static auto* const instance = new Book;  // never destroyed: ranks may be joining while the process exits
  return *instance;
}

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

// What may be known of ranks that did not come, after waiting for them since then. Ranks of a job do not all start at once.
std::string explainAbsence(const std::string& directory, const std::string& file, Clock::time_point since) {
  constexpr auto kStartApart = std::chrono::seconds(30);
  return explainUsers(directory, file, std::chrono::ceil<std::chrono::seconds>(Clock::now() - since) + kStartApart);
}

// Owns a file descriptor that is not a socket.
class File {
 public:
  explicit File(int fd) : fd_(fd) {}
  ~File() {
    if (fd_ >= 0) ::close(fd_);
  }
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  int fd() const { return fd_; }

 private:
  int fd_;
};

Status checkOwnership(const struct stat& status, const std::string& path, mode_t kind, std::string_view what) {
  if ((status.st_mode & S_IFMT) != kind || status.st_uid != ::geteuid() || (status.st_mode & 077) != 0) {
    return error(koloSystemError,
                 "{} is not {} of user {} alone (owner {}, mode {:o}): remove it, or set XDG_RUNTIME_DIR or TMPDIR",
                 path, what, ::geteuid(), status.st_uid, status.st_mode & 07777);
  }
  return {};
}

// The private directory, made if it does not exist.
Result<std::string> privateDirectory() {
  std::string base = "/tmp";
  for (const char* const name : {"TMPDIR", "XDG_RUNTIME_DIR"}) {
    const char* const value = std::getenv(name);
    if (value != nullptr && value[0] == '/' && ::access(value, W_OK | X_OK) == 0) base = value;
  }
  const std::string path = meetingPlace(base, ::geteuid());
  if (::mkdir(path.c_str(), 0700) != 0 && errno != EEXIST) return systemError(errno, "making the directory " + path);
  struct stat status {};
  // Not following a link: somebody else's link could lead anywhere.
  if (::lstat(path.c_str(), &status) != 0) return systemError(errno, "looking at the directory " + path);
  KOLO_TRY(checkOwnership(status, path, S_IFDIR, "a directory"));
  // Its time is all that other users see of it: that a rank of this user has come by.
  (void)::utimensat(AT_FDCWD, path.c_str(), nullptr, AT_SYMLINK_NOFOLLOW);
  return path;
}

std::string fileName(const std::string& numbered) {
  unsigned char hash[16];
  crypto_generichash(hash, sizeof hash, reinterpret_cast<const unsigned char*>(numbered.data()), numbered.size(),
                     nullptr, 0);
  char hex[2 * sizeof hash + 1];
  sodium_bin2hex(hex, sizeof hex, hash, sizeof hash);
  return std::string(hex) + ".id";
}

Status writeWhole(const std::string& path, std::string_view bytes) {
  const std::string temporary = fmt::format("{}.{}.{}", path, ::getpid(), randombytes_random());
  {
    const File file(::open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
    if (file.fd() < 0) return systemError(errno, "making " + temporary);
    if (::write(file.fd(), bytes.data(), bytes.size()) != static_cast<ssize_t>(bytes.size())) {
      const int errnum = errno;
      ::unlink(temporary.c_str());
      return systemError(errnum, "writing " + temporary);
    }
  }
  if (::rename(temporary.c_str(), path.c_str()) == 0) return {};
  const int errnum = errno;
  ::unlink(temporary.c_str());
  return systemError(errnum, "renaming " + temporary);
}

std::string fileContents(const koloUniqueId& id) {
  return Encoder()
      .raw(kFileMagic)
      .number(static_cast<std::uint32_t>(::getpid()))
      .number(startTime(::getpid()))
      .number(pidNamespace())
      .raw({id.internal, sizeof id.internal})
      .take();
}

// What is published; koloInProgress: nothing yet.
Result<std::string> readOwnFile(const std::string& path) {
  const File file(::open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC));
  if (file.fd() < 0 && errno == ENOENT) return error(koloInProgress, "rank 0 has not published the job in {}", path);
  struct stat status {};
  if (file.fd() < 0 || ::fstat(file.fd(), &status) != 0) return systemError(errno, "opening " + path);
  KOLO_TRY(checkOwnership(status, path, S_IFREG, "a file"));
  char buffer[kMostFileBytes];
  const ssize_t got = ::read(file.fd(), buffer, sizeof buffer);
  if (got < 0) return systemError(errno, "reading " + path);
  return std::string(buffer, static_cast<std::size_t>(got));
}

// koloInProgress: nothing (useful) there yet, and why. The file is closed before its process is looked for, which takes one more: a rank at its limit
// of open files would take every process for dead.
Result<koloUniqueId> readPublished(const std::string& path, Clock::time_point deadline) {
  KOLO_ASSIGN(const std::string published, readOwnFile(path));
  Decoder decoder(published);
  const bool ours = decoder.raw(kFileMagic.size()) == kFileMagic;
  const auto pid = decoder.number<std::uint32_t>();
  const auto started = decoder.number<std::uint64_t>();
  const auto space = decoder.number<std::uint64_t>();
  const std::string_view bytes = decoder.raw(KOLO_UNIQUE_ID_BYTES);
  if (!ours || !decoder.done()) return error(koloInProgress, "{} is not a rendezvous file of this version", path);
  koloUniqueId id;
  std::memcpy(id.internal, bytes.data(), sizeof id.internal);
  if (space == pidNamespace()) {
    if (startTime(static_cast<int>(pid)) == started) return id;
    return error(koloInProgress, "{} was left behind by process {}, which is dead; rank 0 has not replaced it", path,
                 pid);
  }
  // Pids of another container mean nothing here: ask the hub itself.
  KOLO_ASSIGN(const IdContents contents, decodeId(id));
  if (answers(contents, std::min(deadline, Clock::now() + std::chrono::seconds(1)))) return id;
  return error(koloInProgress, "the process that wrote {} does not answer", path);
}

Result<koloUniqueId> fetch(const std::string& directory, const std::string& file, int timeoutMs) {
  const std::string path = directory + "/" + file;
  const auto start = Clock::now();
  const auto deadline = start + std::chrono::milliseconds(timeoutMs);
  for (Clock::duration pause = kFirstPause;; pause = std::min<Clock::duration>(pause * 2, kLongestPause)) {
    Result<koloUniqueId> id = readPublished(path, deadline);
    if (id.ok() || id.status().code() != koloInProgress) return id;
    if (Clock::now() + pause >= deadline) {
      return error(koloTimeout, "waited {} ms (KOLO_INIT_TIMEOUT_MS) for rank 0: {}. {}", timeoutMs, id.status().message(),
                   explainAbsence(directory, file, start));
    }
    std::this_thread::sleep_for(pause);
  }
}

Result<koloUniqueId> throughFile(const LauncherJob& job, int timeoutMs) {
  if (job.localRanks > 0 && job.localRanks < job.ranks) {
    return error(
        koloInvalidEnvironment,
        "environment variable KOLO_ROOT is not set, but {} says that {} of {} ranks are on this host: expected "
        "host:port of rank 0",
        job.launcher, job.localRanks, job.ranks);
  }
  KOLO_ASSIGN(const std::string directory, privateDirectory());
  Book::Pending pending{.directory = directory, .file = fileName(numberedName(job)), .since = Clock::now()};
  if (job.rank != 0) {
    KOLO_ASSIGN(const koloUniqueId id, fetch(directory, pending.file, timeoutMs));
    remember(id, job, std::move(pending));
    return id;
  }
  KOLO_ASSIGN(const koloUniqueId id, createUniqueId());
  KOLO_TRY(writeWhole(directory + "/" + pending.file, fileContents(id)));
  pending.publisher = true;
  remember(id, job, std::move(pending));
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

Secret agreedSecret(const LauncherJob& job) {
  const std::string given = settings::text("KOLO_SECRET");
  if (given.empty() && job.rank == 0) {
    log::warn("KOLO_SECRET is not set: whoever can reach {} and guesses the job's name may join or disturb this job",
              job.root);
  }
  const Secret empty{};
  const Secret base = expand(empty, "kolo root secret: " + given);
  return expand(base, numberedName(job) + " at " + job.root);
}

Result<koloUniqueId> throughRoot(const LauncherJob& job, int timeoutMs) {
  std::string host;
  IdContents contents;
  KOLO_TRY(splitRoot(job, host, contents.port));
  const Secret secret = agreedSecret(job);
  if (job.rank == 0) {
    KOLO_ASSIGN(contents, startHub(secret, contents.port));
  } else {
    contents.explicitRoot = true;
    contents.secret = secret;
    Result<std::vector<Address>> found = resolve(host, kMaxAddresses, Clock::now() + std::chrono::milliseconds(timeoutMs));
    if (!found.ok()) {
      return error(koloUnreachable, "rank {} has looked for rank 0 at {} (by {}) for {} ms (KOLO_INIT_TIMEOUT_MS): {}", job.rank, job.root,
                   job.rootFrom, timeoutMs, found.status().message());
    }
    contents.addresses = found.take();
  }
  const koloUniqueId id = encodeId(contents);
  Address literal;
  remember(id, job, {.rootName = parseAddress(host, literal) ? std::string() : host});
  return id;
}

}  // namespace

Result<koloUniqueId> rendezvous(const LauncherJob& job, int timeoutMs) {
  KOLO_TRY(initialiseCrypto());
  if (job.ranks < 1 || job.rank < 0 || job.rank >= job.ranks) {
    return error(koloInvalidRank, "rank {} of {}, expected 0..{}", job.rank, job.ranks, job.ranks - 1);
  }
  if (job.ranks == 1) return createUniqueId();
  return job.root.empty() ? throughFile(job, timeoutMs) : throughRoot(job, timeoutMs);
}

std::string rootNameOf(const koloUniqueId& id, int rank) {
  Book& all = book();
  const std::lock_guard lock(all.mutex);
  const auto found = all.pending.find({std::string(id.internal, sizeof id.internal), rank});
  return found != all.pending.end() ? found->second.rootName : std::string();
}

Status finishRendezvous(const koloUniqueId& id, int rank, Status joined) {
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
  if (pending.publisher) ::unlink((pending.directory + "/" + pending.file).c_str());
  if (joined.code() != koloTimeout || pending.directory.empty()) return joined;
  return error(koloTimeout, "{}. {}", joined.message(), explainAbsence(pending.directory, pending.file, pending.since));
}

}  // namespace kolo::bootstrap
