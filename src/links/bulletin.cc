#include "links/bulletin.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cerrno>
#include <climits>
#include <cstring>
#include <optional>

#include "base/caller.h"

namespace kolo::links {
namespace {

constexpr std::size_t kWord = sizeof(device::Counter);
using Code = std::int32_t;  // of a result, before the text: the reason of the rank that has given up

// One order of all such accesses. Of two threads that each store one counter and then load the one that the other has
// stored, at least one sees the other's store.
std::atomic_ref<std::uint64_t> inOneOrder(device::Counter& counter) { return std::atomic_ref(counter.value); }

// The half of the number that the kernel compares; ranks of all processes sleep on it.
std::uint32_t* futexOf(device::Counter& number) {
  auto* const halves = reinterpret_cast<std::uint32_t*>(&number.value);
  return std::endian::native == std::endian::little ? halves : halves + 1;
}

// After what the sleepers wait for has been stored in one order.
void wakeSleepers(Bulletin& bulletin, Bulletin::Entry& entry) {
  if (inOneOrder(bulletin.sleepers).load() == 0) return;  // [sleep]
  (void)syscall(SYS_futex, futexOf(entry.number), FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

bool hasGivenUp(Bulletin& bulletin, std::uint64_t number) {
  return inOneOrder(bulletin.givenUp.number).load() >= number;
}

// Until the number is posted, or has changed, or the rank goes, or the time is over. A rank that leaves or gives up
// between the look and the system call is found when the time is over. A system that knows no futex sleeps for a
// moment.
void sleepUntilPosted(Bulletin& bulletin, std::uint64_t number, int us) {
  Bulletin::Entry& entry = bulletin.entries[number % bulletin.entries.size()];
  inOneOrder(bulletin.sleepers).fetch_add(1);  // [sleep] before the look
  const std::uint64_t seen = inOneOrder(entry.number).load();
  const timespec limit{us / 1'000'000, us % 1'000'000 * 1000L};
  if (seen != number && inOneOrder(bulletin.left).load() == 0 && !hasGivenUp(bulletin, number)) {
    const WhileLent lent;
    const long slept =
        syscall(SYS_futex, futexOf(entry.number), FUTEX_WAIT, static_cast<std::uint32_t>(seen), &limit, nullptr, 0);
    if (slept != 0 && (errno == ENOSYS || errno == EPERM)) {
      const timespec nap{0, 50'000};
      nanosleep(&nap, nullptr);
    }
  }
  inOneOrder(bulletin.sleepers).fetch_sub(1);
}

// A reader that sees the number sees the text; one whose text was overwritten meanwhile sees that.
void write(Bulletin::Entry& entry, std::uint64_t number, std::string_view text) {
  device::storeRelaxed(entry.number, 0);
  device::fence();  // [overwritten] before the new text
  device::storeRelaxed(entry.bytes, text.size());
  for (std::size_t at = 0; at < text.size(); at += kWord) {
    std::uint64_t word = 0;
    std::memcpy(&word, text.data() + at, std::min(kWord, text.size() - at));
    device::storeRelaxed(entry.text[at / kWord], word);
  }
  inOneOrder(entry.number).store(number);  // [posted] after the text; [sleep] before the sleepers are counted
}

// The text that stands under this number; nothing if another one does, or came meanwhile.
std::optional<std::string> read(const Bulletin::Entry& entry, std::uint64_t number) {
  if (device::loadAcquire(entry.number) != number) return std::nullopt;  // [posted] before the text
  std::string text(std::min<std::size_t>(device::loadRelaxed(entry.bytes), Bulletin::kTextBytes), '\0');
  for (std::size_t at = 0; at < text.size(); at += kWord) {
    const std::uint64_t word = device::loadRelaxed(entry.text[at / kWord]);
    std::memcpy(text.data() + at, &word, std::min(kWord, text.size() - at));
  }
  device::fence();  // [overwritten] after the text
  if (device::loadRelaxed(entry.number) != number) return std::nullopt;
  return text;
}

Status hasGivenUpBecause(const Bulletin& bulletin, int rank) {
  const std::uint64_t number = device::loadRelaxed(bulletin.givenUp.number);
  const std::optional<std::string> text = read(bulletin.givenUp, number);
  Code code = koloRemoteError;
  if (!text || text->size() < sizeof code) return error(koloRemoteError, "rank {} has given up on this", rank);
  std::memcpy(&code, text->data(), sizeof code);
  return error(failureCode(code), "rank {} has given up on this: {}", rank, text->substr(sizeof code));
}

// Errors: the number will not be posted. A rank posts numbers in order, and posts nothing behind what it has given up
// on. So the number is looked for once more behind what tells that: if it is not there then, it never will be.
Status whyNothingComes(const Bulletin& bulletin, int rank, std::uint64_t number) {
  const bool hasLeft = device::loadAcquire(bulletin.left) != 0;                                        // [gone]
  const bool hasGivenUp = device::loadAcquire(bulletin.givenUp.number) >= number;                      // [posted]
  const auto isLater = [&](const auto& entry) { return device::loadAcquire(entry.number) > number; };  // [posted]
  const bool isAhead = std::any_of(bulletin.entries.begin(), bulletin.entries.end(), isLater);
  if (!hasLeft && !hasGivenUp && !isAhead) return {};
  if (device::loadAcquire(bulletin.entries[number % bulletin.entries.size()].number) == number) return {};
  if (hasGivenUp) return hasGivenUpBecause(bulletin, rank);
  if (isAhead) return error(koloRemoteError, "rank {} has gone on to what comes after this", rank);
  return error(koloRemoteError, "rank {} has destroyed its communicator", rank);
}

}  // namespace

void Bulletin::clear() {
  for (Entry& entry : entries) entry.number.value = 0;
  givenUp.number.value = left.value = sleepers.value = 0;
}

// Without taking memory: this rank may have none left.
void Bulletin::giveUp(std::uint64_t number, const Status& why) {
  std::array<char, kTextBytes> text{};
  const Code code = why.code();
  const std::size_t bytes = std::min(why.message().size(), text.size() - sizeof code);
  std::memcpy(text.data(), &code, sizeof code);
  std::memcpy(text.data() + sizeof code, why.message().data(), bytes);
  write(givenUp, number, {text.data(), sizeof code + bytes});
  for (Entry& entry : entries) wakeSleepers(*this, entry);
}

void Bulletin::leave() {
  inOneOrder(left).store(1);  // [gone] after what was posted; [sleep] before the sleepers are counted
  for (Entry& entry : entries) wakeSleepers(*this, entry);
}

Result<std::vector<std::string>> exchange(const std::vector<Bulletin*>& bulletins, int rank, std::uint64_t number,
                                          std::string_view mine, const BulletinWait& wait) {
  Bulletin& own = *bulletins[static_cast<std::size_t>(rank)];
  Bulletin::Entry& entry = own.entries[number % own.entries.size()];
  write(entry, number, mine);
  wakeSleepers(own, entry);
  std::vector<std::string> texts(bulletins.size());
  for (std::size_t i = 0; i < bulletins.size(); ++i) {
    if (static_cast<int>(i) == rank) {
      texts[i] = mine;
      continue;
    }
    Bulletin& other = *bulletins[i];
    for (;;) {
      if (std::optional<std::string> text = read(other.entries[number % other.entries.size()], number)) {
        texts[i] = std::move(*text);
        break;
      }
      KOLO_TRY(whyNothingComes(other, static_cast<int>(i), number));
      KOLO_ASSIGN(const int us, wait());
      if (us > 0) sleepUntilPosted(other, number, us);
    }
  }
  return texts;
}

std::vector<int> absentees(const std::vector<Bulletin*>& bulletins, std::uint64_t number) {
  std::vector<int> missing;
  for (std::size_t rank = 0; rank < bulletins.size(); ++rank) {
    const Bulletin& bulletin = *bulletins[rank];
    const Bulletin::Entry& entry = bulletin.entries[number % bulletin.entries.size()];
    if (device::loadAcquire(entry.number) != number) missing.push_back(static_cast<int>(rank));  // [posted]
  }
  return missing;
}

}  // namespace kolo::links
