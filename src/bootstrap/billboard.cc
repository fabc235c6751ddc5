#include "bootstrap/billboard.h"

#include <fcntl.h>
#include <sodium.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <array>

#include "base/descriptor.h"
#include "bootstrap/process_info.h"

namespace kolo::bootstrap {
namespace {

constexpr char kName[] = "kolo-billboard";
constexpr std::size_t kFewestRanks = 8;                             // with fewer, little is sent
constexpr std::size_t kWorthSharing = 1024;                         // bytes of a frame
constexpr std::uint64_t kRoomOfRank = 4096, kMostRoom = 64u << 20;  // a few results of exchanges

// Each key seals one frame, so the nonce need not differ.
constexpr std::array<unsigned char, crypto_secretbox_NONCEBYTES> kNonce{};
static_assert(Billboard::kKeyBytes == crypto_secretbox_KEYBYTES);

const unsigned char* bytesOf(std::string_view bytes) { return reinterpret_cast<const unsigned char*>(bytes.data()); }
unsigned char* bytesOf(std::string& bytes) { return reinterpret_cast<unsigned char*>(bytes.data()); }

// Behind RLIMIT_FSIZE, which the program may lower, a write would kill the process by SIGXFSZ.
bool writeAt(int fd, std::string_view bytes, std::uint64_t at) {
  rlimit limit{};
  if (getrlimit(RLIMIT_FSIZE, &limit) != 0 || at + bytes.size() > limit.rlim_cur) return false;
  while (!bytes.empty()) {
    const ssize_t wrote = ::pwrite(fd, bytes.data(), bytes.size(), static_cast<off_t>(at));
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote <= 0) return false;
    bytes.remove_prefix(static_cast<std::size_t>(wrote));
    at += static_cast<std::uint64_t>(wrote);
  }
  return true;
}

bool readAt(int fd, std::string& bytes, std::uint64_t at) {
  for (std::size_t have = 0; have < bytes.size();) {
    const ssize_t got = ::pread(fd, bytes.data() + have, bytes.size() - have, static_cast<off_t>(at + have));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return false;
    have += static_cast<std::size_t>(got);
  }
  return true;
}

}  // namespace

std::unique_ptr<Billboard> Billboard::make(std::size_t ranks) {
  if (ranks < kFewestRanks) return nullptr;
  Socket file(clearOfStandard(::memfd_create(kName, MFD_CLOEXEC)));
  if (!file.valid()) return nullptr;
  std::unique_ptr<Billboard> billboard(new Billboard(std::move(file), std::min(ranks * kRoomOfRank, kMostRoom)));
  billboard->nonce_.resize(kNonceBytes);
  randombytes_buf(billboard->nonce_.data(), kNonceBytes);
  return writeAt(billboard->file_.fd(), billboard->nonce_, 0) ? std::move(billboard) : nullptr;
}

SharedFrame Billboard::invitation() const {
  return shared(frame(Frame::kBillboard, static_cast<std::int32_t>(::getpid()), static_cast<std::int32_t>(file_.fd()))
                    .raw(nonce_));
}

Billboard::ReaderPtr Billboard::addReader() {
  auto reader = std::make_shared<Reader>();
  readers_.push_back(reader);
  return reader;
}

void Billboard::dropRead() {
  std::uint64_t unread = last_ + 1;
  std::erase_if(readers_, [&](const std::weak_ptr<Reader>& each) {
    const ReaderPtr reader = each.lock();
    if (reader != nullptr && reader->read < reader->told) unread = std::min(unread, reader->read + 1);
    return reader == nullptr;
  });
  while (!entries_.empty() && entries_.front().number < unread) entries_.pop_front();
}

SharedFrame Billboard::put(const SharedFrame& frame, const std::vector<ReaderPtr>& readers) {
  const std::uint64_t bytes = frame->size() + crypto_secretbox_MACBYTES;
  const auto reading = readers.size() - static_cast<std::size_t>(std::count(readers.begin(), readers.end(), nullptr));
  if (frame->size() < kWorthSharing || bytes > room_ || reading < 2) return nullptr;
  dropRead();
  const std::uint64_t left = room_ - end_ % room_;
  const std::uint64_t begin = left < bytes ? end_ + left : end_;
  const std::uint64_t oldest = entries_.empty() ? begin : entries_.front().begin;
  if (begin + bytes - oldest > room_) return nullptr;
  std::string key(kKeyBytes, '\0'), sealed(bytes, '\0');
  randombytes_buf(key.data(), key.size());
  crypto_secretbox_easy(bytesOf(sealed), bytesOf(*frame), frame->size(), kNonce.data(), bytesOf(key));
  if (!writeAt(file_.fd(), sealed, kNonceBytes + begin % room_)) return nullptr;
  const std::uint64_t number = last_ + 1;
  SharedFrame place =
      shared(bootstrap::frame(Frame::kOnBillboard, number, begin % room_, static_cast<std::uint32_t>(bytes)).raw(key));
  entries_.push_back({number, begin});  // the last that may find no memory
  for (const ReaderPtr& each : readers) {
    if (each != nullptr) each->told = number;
  }
  last_ = number;
  end_ = begin + bytes;
  written_ += bytes;
  return place;
}

bool BillboardView::open(Decoder& invitation) {
  const auto pid = invitation.number<std::int32_t>();
  const auto fd = invitation.number<std::int32_t>();
  const std::string nonce(invitation.raw(Billboard::kNonceBytes));
  file_.close();
  if (!invitation.done()) return false;
  // Whose name it is before it is opened: opening another file might wait, or do something.
  const std::string path = fmt::format("/proc/{}/fd/{}", pid, fd);
  std::array<char, 64> target{};
  const ssize_t length = ::readlink(path.c_str(), target.data(), target.size());
  if (length <= 0 || !std::string_view(target.data(), static_cast<std::size_t>(length)).starts_with("/memfd:kolo-"))
    return false;
  Socket file(clearOfStandard(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY)));
  std::string begin(nonce.size(), '\0');
  if (!file.valid() || !readAt(file.fd(), begin, 0) || begin != nonce) return false;
  file_ = std::move(file);
  return true;
}

bool BillboardView::read(Decoder& place, std::uint64_t& number, std::string& frame) const {
  number = place.number<std::uint64_t>();
  const auto at = place.number<std::uint64_t>();
  const auto bytes = place.number<std::uint32_t>();
  const std::string_view key = place.raw(Billboard::kKeyBytes);
  if (!place.done() || !file_.valid() || bytes <= crypto_secretbox_MACBYTES || at > kMostRoom) return false;
  if (bytes > kMaxFrameBytes + crypto_secretbox_MACBYTES) return false;
  std::string sealed(bytes, '\0');
  if (!readAt(file_.fd(), sealed, Billboard::kNonceBytes + at)) return false;
  frame.resize(bytes - crypto_secretbox_MACBYTES);
  return crypto_secretbox_open_easy(bytesOf(frame), bytesOf(sealed), sealed.size(), kNonce.data(), bytesOf(key)) == 0;
}

}  // namespace kolo::bootstrap
