#include "bootstrap/published.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "bootstrap/dial.h"
#include "bootstrap/other_users.h"
#include "bootstrap/process_info.h"

namespace kolo::bootstrap {
namespace {

constexpr std::string_view kIdMagic = "KOLOfile1";
constexpr std::string_view kFailureMagic = "KOLOnone2";
constexpr std::size_t kMostFileBytes = 4096;
constexpr std::size_t kMostReasonBytes = 2048;
constexpr int kOtherNames = 8;  // of a directory whose name another user has taken

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

// What both kinds of file begin with.
Encoder signedBy(std::string_view magic) {
  Encoder contents;
  contents.raw(magic)
      .number(static_cast<std::uint32_t>(::getpid()))
      .number(startTime(::getpid()))
      .number(processSpace());
  return contents;
}

std::string contentsOf(const koloUniqueId& id) {
  return signedBy(kIdMagic).raw({id.internal, sizeof id.internal}).take();
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

struct Published {
  std::uint32_t pid = 0;
  std::uint64_t started = 0;
  std::uint64_t space = 0;
  bool isFailure = false;
  koloUniqueId id{};
  int rank = 0;  // of a failure
  Status why;    // of a failure
};

// False: not a file of this version.
bool decode(const std::string& contents, Published& published) {
  Decoder decoder(contents);
  const std::string_view magic = decoder.raw(kIdMagic.size());
  published.pid = decoder.number<std::uint32_t>();
  published.started = decoder.number<std::uint64_t>();
  published.space = decoder.number<std::uint64_t>();
  published.isFailure = magic == kFailureMagic;
  if (published.isFailure) {
    published.rank = decoder.number<std::int32_t>();
    const auto code = decoder.number<std::int32_t>();
    const std::string why(decoder.text());
    if (code <= koloSuccess || code >= koloNumResults) return false;
    published.why = Status(static_cast<koloResult_t>(code), why);
  } else {
    const std::string_view bytes = decoder.raw(KOLO_UNIQUE_ID_BYTES);
    std::copy(bytes.begin(), bytes.end(), published.id.internal);
  }
  return decoder.done() && (published.isFailure || magic == kIdMagic);
}

// Of another container that is not known.
bool isLeftBehind(const Published& published) {
  return published.space == processSpace() && startTime(static_cast<int>(published.pid)) != published.started;
}

// In the order in which they are tried.
std::vector<std::string> namesOfDirectory() {
  std::string base = "/tmp";
  for (const char* const name : {"TMPDIR", "XDG_RUNTIME_DIR"}) {
    const char* const value = ::secure_getenv(name);
    if (value != nullptr && value[0] == '/' && ::access(value, W_OK | X_OK) == 0) base = value;
  }
  std::vector<std::string> names{meetingPlace(base, ::geteuid())};
  for (int next = 1; next <= kOtherNames; ++next) names.push_back(fmt::format("{}-{}", names.front(), next));
  return names;
}

}  // namespace

std::vector<std::string> privateDirectories() {
  std::vector<std::string> own;
  struct stat status {};
  for (const std::string& path : namesOfDirectory()) {
    if (::lstat(path.c_str(), &status) == 0 && checkOwnership(status, path, S_IFDIR, "").ok()) own.push_back(path);
  }
  return own;
}

Result<std::string> privateDirectory() {
  struct stat status {};
  std::string path;
  // What another user has made under that name is passed over.
  for (const std::string& name : namesOfDirectory()) {
    path = name;
    if (::mkdir(path.c_str(), 0700) != 0 && errno != EEXIST) return systemError(errno, "making the directory " + path);
    // Not following a link: somebody else's link could lead anywhere.
    if (::lstat(path.c_str(), &status) != 0) {
      if (errno == ENOENT) continue;  // another user has taken it away meanwhile
      return systemError(errno, "looking at the directory " + path);
    }
    if (status.st_uid == ::geteuid()) break;
  }
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

Status publish(const std::string& path, const koloUniqueId& id) { return writeWhole(path, contentsOf(id)); }

Status publishFailure(const std::string& path, int rank, const Status& why) {
  return writeWhole(path, encodeFailure(rank, why));
}

std::string encodeFailure(int rank, const Status& why) {
  const std::string_view reason = std::string_view(why.message()).substr(0, kMostReasonBytes);
  Encoder contents = signedBy(kFailureMagic);
  return contents.number(static_cast<std::int32_t>(rank))
      .number(static_cast<std::int32_t>(why.code()))
      .text(reason)
      .take();
}

std::optional<PublishedFailure> readFailure(const std::string& path) {
  const Result<std::string> contents = readOwnFile(path);
  Published published;
  if (!contents.ok() || !decode(contents.value(), published) || isLeftBehind(published)) return std::nullopt;
  return decodeFailure(contents.value());
}

// Its writer may be gone by now: it has given this to a rank that asked.
std::optional<PublishedFailure> decodeFailure(const std::string& contents) {
  Published published;
  if (!decode(contents, published) || !published.isFailure) return std::nullopt;
  return PublishedFailure{published.rank, published.why};
}

void retract(const std::string& path, const koloUniqueId& id) {
  const Result<std::string> now = readOwnFile(path);
  if (now.ok() && now.value() == contentsOf(id)) ::unlink(path.c_str());
}

// The file is closed before its process is looked for, which takes one more: a rank at its limit of open files would
// take every process for dead.
Result<koloUniqueId> readPublished(const std::string& path, Clock::time_point deadline) {
  KOLO_ASSIGN(const std::string contents, readOwnFile(path));
  Published published;
  if (!decode(contents, published)) return error(koloInProgress, "{} is not a rendezvous file of this version", path);
  if (isLeftBehind(published)) {
    return error(koloInProgress, "{} was left behind by process {}, which is dead; rank 0 has not replaced it", path,
                 published.pid);
  }
  if (published.isFailure) return published.why;
  if (published.space == processSpace()) return published.id;
  // Pids of another container mean nothing here: ask the hub itself.
  const Result<IdContents> id = decodeId(published.id);
  if (!id.ok()) return error(koloInProgress, "{} may have been left behind: {}", path, id.status().message());
  if (answers(id.value(), std::min(deadline, Clock::now() + std::chrono::seconds(1)))) return published.id;
  return error(koloInProgress, "the process that wrote {} does not answer", path);
}

}  // namespace kolo::bootstrap
