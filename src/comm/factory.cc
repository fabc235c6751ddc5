#include "comm/factory.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <system_error>

#include "base/quiet_thread.h"
#include "base/settings.h"
#include "comm/agreement.h"
#include "comm/child.h"

namespace kolo::comm {
namespace {

// In so many shrinks more than this rank has another one taken part, at most. One that proposes more would use up the
// numbers.
constexpr std::uint64_t kMostAhead = std::uint64_t{1} << 20;

int initTimeoutMs() { return static_cast<int>(settings::integer("KOLO_INIT_TIMEOUT_MS")); }

// This rank's part in a job: says goodbye when the last communicator that uses it is gone.
struct Job {
  explicit Job(std::shared_ptr<bootstrap::Control> joined) : control(std::move(joined)) {}
  ~Job() { control->leave(); }
  std::shared_ptr<bootstrap::Control> control;
};

std::shared_ptr<bootstrap::Control> leavingAtTheEnd(std::shared_ptr<bootstrap::Control> control) {
  auto job = std::make_shared<Job>(std::move(control));
  bootstrap::Control* const raw = job->control.get();
  return {std::move(job), raw};
}

std::uint64_t keyOf(bootstrap::Control& control) {
  const std::string secret = control.derivedSecret("communicator key");
  std::uint64_t key = 0;
  std::memcpy(&key, secret.data(), std::min(sizeof key, secret.size()));
  return key;
}

}  // namespace

// FNV-1a: keys of communicators need to be different, not secret.
std::uint64_t mixKeys(std::uint64_t key, std::uint64_t value) {
  for (int i = 0; i < 8; ++i) key = (key ^ (value >> 8 * i & 255)) * 0x100000001b3u;
  return key;
}

Result<Owned> createFromId(const koloUniqueId& id, int rank, int ranks, const Result<Options>& options,
                           const std::shared_ptr<bootstrap::Interrupt>& joining,
                           const std::shared_ptr<bootstrap::Interrupt>& making) {
  if (!options.ok()) return bootstrap::decline(id, rank, ranks, initTimeoutMs(), options.status());
  Result<std::shared_ptr<bootstrap::Control>> joined =
      withoutExceptions([&] { return bootstrap::join(id, rank, ranks, initTimeoutMs(), joining.get()); });
  if (joined.status().code() == koloOutOfMemory)  // the others would wait for this rank
    return bootstrap::decline(id, rank, ranks, initTimeoutMs(), joined.status());
  KOLO_TRY(joined.status());
  const std::shared_ptr<bootstrap::Control> control = leavingAtTheEnd(joined.take());
  Membership membership{.control = control,
                        .key = keyOf(*control),
                        .members = {},
                        .rank = rank,
                        .initTimeoutMs = initTimeoutMs(),
                        .interrupt = making};
  return undertake(membership, [&] {
    membership.members.resize(static_cast<std::size_t>(ranks));
    std::iota(membership.members.begin(), membership.members.end(), 0);
    return Communicator::create(std::move(membership), options.value());
  });
}

// A rank whose options are wrong looks for the others all the same, to tell them.
Result<Owned> createFromEnvironment(const Result<Options>& options) {
  const Result<bootstrap::LauncherJob> job = bootstrap::readLauncher();
  if (!options.ok() && (!job.ok() || job.value().ranks == 1)) return options.status();
  KOLO_TRY(job.status());
  const auto toTell = static_cast<int>(bootstrap::kLastWordsTime.count());
  const int timeoutMs = options.ok() ? initTimeoutMs() : std::min(initTimeoutMs(), toTell);
  const Result<koloUniqueId> id = bootstrap::rendezvous(job.value(), timeoutMs);
  KOLO_TRY(options.ok() || id.ok() ? id.status() : options.status());
  return createFromId(id.value(), job.value().rank, job.value().ranks, options);
}

Result<std::vector<Owned>> createAll(int ranks, const Options& options) {
  KOLO_ASSIGN(const koloUniqueId id, bootstrap::createUniqueId(true));
  std::vector<Result<Owned>> results;
  for (int rank = 0; rank < ranks; ++rank) results.emplace_back(Owned());
  try {
    runSideBySide(results.size(), [&](std::size_t rank) {
      results[rank] = withoutExceptions([&] { return createFromId(id, static_cast<int>(rank), ranks, options); });
    });
  } catch (const std::system_error& why) {
    return noThread(why, "making {} ranks needs a thread for each", ranks);
  }
  std::vector<Owned> communicators;
  for (auto& result : results) {
    if (!result.ok()) return result.status();
    communicators.push_back(result.take());
  }
  return communicators;
}

// The parent may have failed: the child shares nothing with it. Ranks may have taken part in different numbers of
// shrinks that came to nothing, so the largest number that one proposes counts.
Result<Owned> shrink(Communicator& parent, const std::vector<int>& excluded, const koloConfig_t* config) {
  Result<Options> options = withoutExceptions([&] { return Options::make(config, &parent.options()); });
  const std::uint64_t own = parent.children().shrinks + 1;
  KOLO_ASSIGN(Agreement agreement,
              agree(parent, excluded, {.purpose = Statement::kShrink, .verdict = options.status(), .value = own}));
  for (std::size_t i = 0; i < agreement.statements.size(); ++i) {
    const std::uint64_t number = agreement.statements[i].value;
    if (number == 0 || number > own + kMostAhead) {
      return error(koloRemoteError, "rank {} of {} proposes {} as the number of its next shrink, expected 1 to {}",
                   agreement.ranks[i], parent.options().name, number, own + kMostAhead);
    }
    parent.children().shrinks = std::max(parent.children().shrinks, number);
  }
  std::uint64_t key = mixKeys(mixKeys(parent.membership().key, parent.children().shrinks), ~std::uint64_t{0});
  for (const int rank : agreement.ranks) key = mixKeys(key, static_cast<std::uint64_t>(rank));
  // A rank that gives up has told the hub so behind all exchanges that it has completed: those end well for all.
  Child child(parent, key, parent.failureState().interruptFor(agreement.ranks));
  child.setMembers(std::move(agreement.ranks));
  return undertake(child.membership(), [&] {
    if (config == nullptr || config->name == nullptr) options.value().name = parent.options().name + "/shrunk";
    return child.make(options.value());
  });
}

}  // namespace kolo::comm
