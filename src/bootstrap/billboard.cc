#include "bootstrap/billboard.h"

#include <fcntl.h>
#include <sodium.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <utility>

#include "base/descriptor.h"
#include "base/insist.h"
#include "bootstrap/process_info.h"

namespace kolo::bootstrap {
namespace {

constexpr char kName[] = "kolo-billboard";
constexpr std::size_t kFewestRanks = 8;                             // with fewer, little is sent
constexpr std::size_t kMostPosted = kMaxFrameBytes - 64;            // in a frame
constexpr std::uint64_t kRoomOfRank = 4096, kMostRoom = 64u << 20;  // a few results of exchanges

// No rank waits for longer for a keeper that does nothing.
constexpr std::chrono::milliseconds kLongestPost{250};

std::uint64_t roomFor(std::size_t ranks) { return std::min(ranks * kRoomOfRank, kMostRoom); }

// Where a frame begins that is added. Positions count on and on; the remainder by the room is the place.
std::uint64_t nextPlace(std::uint64_t end, std::uint64_t bytes, std::uint64_t room) {
  const std::uint64_t left = room == 0 ? 0 : room - end % room;
  return left < bytes ? end + left : end;
}

// Behind a process and the number of its file.
bool readNonce(Decoder& invitation, std::string& nonce) {
  (void)invitation.raw(2 * sizeof(std::int32_t));
  nonce = invitation.raw(BillboardFile::kNonceBytes);
  return invitation.done();
}

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

std::unique_ptr<BillboardFile> BillboardFile::make(std::uint64_t room) {
  if (room > kMostRoom) return nullptr;
  Socket file(clearOfStandard(::memfd_create(kName, MFD_CLOEXEC)));
  if (!file.valid()) return nullptr;
  std::unique_ptr<BillboardFile> made(new BillboardFile(std::move(file), room));
  made->nonce_.resize(kNonceBytes);
  randombytes_buf(made->nonce_.data(), kNonceBytes);
  return writeAt(made->file_.fd(), made->nonce_, 0) ? std::move(made) : nullptr;
}

std::string BillboardFile::invitation() const {
  return Encoder()
      .number(static_cast<std::int32_t>(::getpid()))
      .number(static_cast<std::int32_t>(file_.fd()))
      .raw(nonce_)
      .take();
}

bool BillboardFile::write(std::string_view bytes, std::uint64_t at) const {
  return at <= room_ && bytes.size() <= room_ - at && writeAt(file_.fd(), bytes, kNonceBytes + at);
}

bool BillboardFile::add(std::string_view bytes, std::uint64_t& number) {
  number = ++last_;
  const std::uint64_t begin = nextPlace(end_, bytes.size(), room_);
  end_ = begin + bytes.size();
  return room_ != 0 && write(bytes, begin % room_);
}

void Sheet::seal() {
  if (!sealed.empty()) return;
  std::string to(frame->size() + crypto_secretbox_MACBYTES, '\0');
  key.resize(Billboard::kKeyBytes);
  randombytes_buf(key.data(), key.size());
  crypto_secretbox_easy(bytesOf(to), bytesOf(*frame), frame->size(), kNonce.data(), bytesOf(key));
  post = shared(bootstrap::frame(Frame::kPost).raw(to));
  sealed = std::move(to);
}

std::shared_ptr<Billboard> Billboard::make(std::size_t ranks) {
  if (ranks < kFewestRanks) return nullptr;
  auto made = std::make_shared<Billboard>(nullptr, roomFor(ranks), nullptr);
  made->file_ = BillboardFile::make(made->room_);
  if (made->file_ == nullptr) return nullptr;
  Decoder words(made->invitation_ = made->file_->invitation());
  return readNonce(words, made->nonce_) ? made : nullptr;
}

std::shared_ptr<Billboard> Billboard::askFor(Reactor& reactor, std::size_t ranks, std::shared_ptr<Channel> keeper) {
  if (ranks < kFewestRanks) return nullptr;
  auto made = std::make_shared<Billboard>(&reactor, roomFor(ranks), std::move(keeper));
  made->keeper_->send(frame(Frame::kKeepBillboard, made->room_).take());
  return made;
}

bool Billboard::onKept(Decoder& decoder) {
  const std::string words(decoder.rest());
  if (!invitation_.empty() || !readNonce(decoder, nonce_)) return false;
  invitation_ = words;
  return true;
}

SharedFrame Billboard::invitation() const {
  return invitation_.empty() ? nullptr : shared(frame(Frame::kBillboard).raw(invitation_));
}

Billboard::ReaderPtr Billboard::addReader(std::shared_ptr<Channel> channel) {
  auto reader = std::make_shared<Reader>(Reader{std::move(channel)});
  readers_.push_back(reader);
  return reader;
}

// A keeper that was slow is asked again when it has answered all.
bool Billboard::isOpen() const {
  const bool isKept = keeper_ != nullptr && !invitation_.empty() && !isBroken_;
  return file_ != nullptr || (isKept && (posts_.empty() || posts_.front().told != nullptr));
}

void Billboard::dropRead() {
  std::uint64_t unread = last_ + 1;
  std::erase_if(readers_, [&](const std::weak_ptr<Reader>& each) {
    const ReaderPtr reader = each.lock();
    if (reader != nullptr && reader->read < reader->told) unread = std::min(unread, reader->read + 1);
    return reader == nullptr;
  });
  while (!entries_.empty() && entries_.front().number < unread && !entries_.front().isOnItsWay) entries_.pop_front();
}

LaterFrame Billboard::put(Sheet& sheet, const std::vector<ReaderPtr>& readers) {
  const std::uint64_t bytes = sheet.frame->size() + crypto_secretbox_MACBYTES;
  const auto reading = readers.size() - static_cast<std::size_t>(std::count(readers.begin(), readers.end(), nullptr));
  if (!isOpen() || sheet.frame->size() < kWorthSharing || bytes > std::min<std::uint64_t>(room_, kMostPosted) ||
      reading < 2)
    return nullptr;
  dropRead();
  const std::uint64_t begin = nextPlace(end_, bytes, room_);
  const std::uint64_t oldest = entries_.empty() ? begin : entries_.front().begin;
  if (begin + bytes - oldest > room_) return nullptr;
  sheet.seal();
  const std::uint64_t number = last_ + 1, at = begin % room_;
  std::list<Post> posts(1);
  Post& post = posts.front();
  post = {number, sheet.frame, nullptr, std::make_shared<SharedFrame>(), {}};
  post.place = shared(frame(Frame::kOnBillboard, number, at, static_cast<std::uint32_t>(bytes)).raw(sheet.key));
  std::copy_if(readers.begin(), readers.end(), std::back_inserter(post.readers), [](const auto& each) { return each; });
  std::list<Entry> entries{{number, begin, file_ == nullptr}};
  const LaterFrame told = post.told;
  if (file_ == nullptr) keeper_->sendAhead(sheet.post);
  else if (!file_->write(sheet.sealed, at)) return nullptr;
  entries_.splice(entries_.end(), entries);  // from here on nothing throws
  last_ = number;
  end_ = begin + bytes;
  written_ += bytes;
  if (file_ != nullptr) {
    for (const ReaderPtr& each : post.readers) each->told = number;
    *told = post.place;
  } else {
    posts_.splice(posts_.end(), posts);
    watchTime();
  }
  return told;
}

void Billboard::tell(Post& post, const SharedFrame& frame) {
  const LaterFrame told = std::exchange(post.told, nullptr);
  if (told == nullptr) return;
  *told = frame;
  for (const ReaderPtr& each : post.readers) (void)insist([&] { each->channel->resume(told); });
}

bool Billboard::onPosted(Decoder& decoder) {
  const auto number = decoder.number<std::uint64_t>();
  const bool isThere = decoder.number<std::uint8_t>() != 0;
  if (!decoder.done() || posts_.empty() || posts_.front().number != number) return false;
  std::list<Post> answered;
  answered.splice(answered.end(), posts_, posts_.begin());
  Post& post = answered.front();
  isBroken_ = isBroken_ || !isThere;
  for (Entry& each : entries_) each.isOnItsWay = each.isOnItsWay && each.number != number;
  for (const ReaderPtr& each : post.readers) {
    if (isThere && post.told != nullptr) each->told = number;
  }
  tell(post, isThere ? post.place : post.frame);
  return true;
}

void Billboard::hurry() {
  for (Post& each : posts_) tell(each, each.frame);
}

void Billboard::close() {
  hurry();
  keeper_ = nullptr;
  posts_.clear();
}

// The ranks do not wait for a keeper that is stopped, or whose host is silent: that takes nothing from the connection,
// and answers nothing.
void Billboard::watchTime() {
  if (timer_ != 0 || posts_.empty() || posts_.front().told == nullptr) return;
  progress_ = progress();
  const auto end = [weak = weak_from_this()] {
    const std::shared_ptr<Billboard> self = weak.lock();
    if (self == nullptr) return;
    self->timer_ = 0;
    if (self->progress() == self->progress_) self->hurry();
    else self->watchTime();
  };
  if (!insist([&] { timer_ = reactor_->at(Clock::now() + kLongestPost, end); })) hurry();
}

bool BillboardView::open(Decoder& invitation) {
  const auto pid = invitation.number<std::int32_t>();
  const auto fd = invitation.number<std::int32_t>();
  const std::string nonce(invitation.raw(BillboardFile::kNonceBytes));
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
  nonce_ = nonce;
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
  if (!readAt(file_.fd(), sealed, BillboardFile::kNonceBytes + at)) return false;
  frame.resize(bytes - crypto_secretbox_MACBYTES);
  return crypto_secretbox_open_easy(bytesOf(frame), bytesOf(sealed), sealed.size(), kNonce.data(), bytesOf(key)) == 0;
}

}  // namespace kolo::bootstrap
