#include "comm/factory.h"

#include <algorithm>
#include <cstring>
#include <future>
#include <new>
#include <numeric>
#include <system_error>
#include <thread>

#include "base/settings.h"
#include "comm/blob.h"

namespace kolo::comm {
namespace {

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

// FNV-1a: keys of communicators need to be different, not secret.
std::uint64_t mix(std::uint64_t key, std::uint64_t value) {
  for (int i = 0; i < 8; ++i) key = (key ^ (value >> 8 * i & 255)) * 0x100000001b3u;
  return key;
}

// What `make` returns, also if it throws.
template <class Make>
auto withoutExceptions(Make&& make) -> decltype(make()) {
  try {
    return make();
  } catch (const std::bad_alloc&) {
    return error(koloOutOfMemory, "out of memory");
  } catch (const std::system_error& problem) {  // no thread
    return error(koloSystemError, "{}", problem.what());
  }
}

// This rank's part in making the communicator of a key. The other ranks wait for it in each step: if it cannot go on,
// they are told so, and why, instead of waiting until their time is over. rank: in the communicator; `make` may set it.
template <class Make>
Result<Owned> undertake(const std::shared_ptr<bootstrap::Control>& control, std::uint64_t key, const int& rank,
                        Make&& make) {
  Result<Owned> made = withoutExceptions(make);
  if (!made.ok()) {
    const Status& why = made.status();
    control->reportFailure(key, {why.code(), control->rank(), fmt::format("on rank {}: {}", rank, why.message())});
  }
  return made;
}

std::uint64_t keyOf(bootstrap::Control& control) {
  const std::string secret = control.derivedSecret("communicator key");
  std::uint64_t key = 0;
  std::memcpy(&key, secret.data(), std::min(sizeof key, secret.size()));
  return key;
}

}  // namespace

Result<Owned> createFromId(const koloUniqueId& id, int rank, int ranks, const Options& options) {
  KOLO_ASSIGN(std::shared_ptr<bootstrap::Control> joined, bootstrap::join(id, rank, ranks, initTimeoutMs()));
  const std::shared_ptr<bootstrap::Control> control = leavingAtTheEnd(std::move(joined));
  const std::uint64_t key = keyOf(*control);
  return undertake(control, key, rank, [&] {
    Membership membership{
        .control = control, .key = key, .members = {}, .rank = rank, .initTimeoutMs = initTimeoutMs()};
    membership.members.resize(static_cast<std::size_t>(ranks));
    std::iota(membership.members.begin(), membership.members.end(), 0);
    return Communicator::create(std::move(membership), options);
  });
}

Result<Owned> createFromEnvironment(const Options& options) {
  KOLO_ASSIGN(const bootstrap::LauncherJob job, bootstrap::readLauncher());
  KOLO_ASSIGN(const koloUniqueId id, bootstrap::rendezvous(job, initTimeoutMs()));
  return createFromId(id, job.rank, job.ranks, options);
}

Result<std::vector<Owned>> createAll(int ranks, const Options& options) {
  KOLO_ASSIGN(const koloUniqueId id, bootstrap::createUniqueId());
  std::vector<Result<Owned>> results;
  for (int rank = 0; rank < ranks; ++rank) results.emplace_back(Owned());
  std::vector<std::thread> threads;
  threads.reserve(results.size());
  // Nobody begins to join before there is a thread for each: the others would wait for the one that has none.
  std::promise<bool> begin;
  const std::shared_future<bool> begins = begin.get_future().share();
  const Status started = withoutExceptions([&]() -> Status {
    for (int rank = 0; rank < ranks; ++rank) {
      threads.emplace_back([&, rank] {
        Result<Owned>& result = results[static_cast<std::size_t>(rank)];
        if (begins.get()) result = withoutExceptions([&] { return createFromId(id, rank, ranks, options); });
      });
    }
    return {};
  });
  begin.set_value(started.ok());
  for (std::thread& thread : threads) thread.join();
  if (!started.ok())
    return error(started.code(), "rank {} of {} has no thread to be made in: {}", threads.size(), ranks,
                 started.message());
  std::vector<Owned> communicators;
  for (auto& result : results) {
    if (!result.ok()) return result.status();
    communicators.push_back(result.take());
  }
  return communicators;
}

Result<Owned> split(Communicator& parent, int color, int key, const koloConfig_t* config) {
  const std::uint64_t child = parent.nextChild();
  Result<Options> options = withoutExceptions([&] { return Options::make(config, &parent.options()); });
  BlobWriter mine;
  mine.put(color).put(key).put(static_cast<std::int32_t>(options.status().code())).putText(options.status().message());
  KOLO_ASSIGN(const std::vector<std::string> blobs, parent.membership().allGather(mine.text()));
  KOLO_TRY(options.status());
  const Membership& whole = parent.membership();
  const std::uint64_t childKey = mix(mix(whole.key, child), static_cast<std::uint64_t>(color));
  int childRank = parent.rank();
  return undertake(whole.control, childKey, childRank, [&]() -> Result<Owned> {
    std::vector<std::pair<int, int>> group;  // (key, parent's rank)
    for (int rank = 0; rank < parent.ranks(); ++rank) {
      BlobReader reader(blobs[static_cast<std::size_t>(rank)]);
      const int theirColor = reader.get<int>(), theirKey = reader.get<int>();
      if (theirColor == color) group.emplace_back(theirKey, rank);
      const auto code = static_cast<koloResult_t>(reader.get<std::int32_t>());
      if (code != koloSuccess) return error(code, "on rank {}: {}", rank, reader.getText());
    }
    if (color == KOLO_SPLIT_NOCOLOR) return Owned();
    std::sort(group.begin(), group.end());
    Membership membership{
        .control = whole.control, .key = childKey, .members = {}, .initTimeoutMs = whole.initTimeoutMs};
    for (std::size_t i = 0; i < group.size(); ++i) {
      membership.members.push_back(whole.members[static_cast<std::size_t>(group[i].second)]);
      if (group[i].second == parent.rank()) membership.rank = childRank = static_cast<int>(i);
    }
    if (config == nullptr || config->name == nullptr)
      options.value().name = fmt::format("{}/{}", parent.options().name, color);
    return Communicator::create(std::move(membership), options.value());
  });
}

Result<Owned> shrink(Communicator& parent, const std::vector<int>& excluded, const koloConfig_t* config) {
  const Membership& whole = parent.membership();
  const auto isIn = [&](int rank) { return std::find(excluded.begin(), excluded.end(), rank) == excluded.end(); };
  std::uint64_t key = mix(mix(whole.key, parent.nextChild()), ~std::uint64_t{0});
  int childRank = 0;
  for (int rank = 0; rank < parent.ranks(); ++rank) {
    if (!isIn(rank)) continue;
    key = mix(key, static_cast<std::uint64_t>(rank));
    if (rank < parent.rank()) ++childRank;
  }
  return undertake(whole.control, key, childRank, [&]() -> Result<Owned> {
    KOLO_ASSIGN(Options options, Options::make(config, &parent.options()));
    Membership membership{
        .control = whole.control, .key = key, .members = {}, .rank = childRank, .initTimeoutMs = whole.initTimeoutMs};
    for (int rank = 0; rank < parent.ranks(); ++rank) {
      if (isIn(rank)) membership.members.push_back(whole.members[static_cast<std::size_t>(rank)]);
    }
    if (config == nullptr || config->name == nullptr) options.name = parent.options().name + "/shrunk";
    return Communicator::create(std::move(membership), options);
  });
}

}  // namespace kolo::comm
