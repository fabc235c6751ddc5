#include "comm/factory.h"

#include <algorithm>
#include <cstring>
#include <numeric>
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

std::uint64_t keyOf(bootstrap::Control& control) {
  const std::string secret = control.derivedSecret("communicator key");
  std::uint64_t key = 0;
  std::memcpy(&key, secret.data(), std::min(sizeof key, secret.size()));
  return key;
}

}  // namespace

Result<Owned> createFromId(const koloUniqueId& id, int rank, int ranks, const Options& options) {
  KOLO_ASSIGN(std::shared_ptr<bootstrap::Control> control, bootstrap::join(id, rank, ranks, initTimeoutMs()));
  Membership membership;
  membership.key = keyOf(*control);
  membership.control = leavingAtTheEnd(std::move(control));
  membership.members.resize(static_cast<std::size_t>(ranks));
  std::iota(membership.members.begin(), membership.members.end(), 0);
  membership.rank = rank;
  membership.initTimeoutMs = initTimeoutMs();
  return Communicator::create(std::move(membership), options);
}

Result<Owned> createFromEnvironment(const Options& options) {
  KOLO_ASSIGN(const bootstrap::LauncherJob job, bootstrap::readLauncher());
  KOLO_ASSIGN(const koloUniqueId id, bootstrap::rendezvous(job, initTimeoutMs()));
  return createFromId(id, job.rank, job.ranks, options);
}

Result<std::vector<Owned>> createAll(int ranks, const Options& options) {
  KOLO_ASSIGN(const koloUniqueId id, bootstrap::createUniqueId());
  std::vector<std::optional<Result<Owned>>> results(static_cast<std::size_t>(ranks));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] { results[static_cast<std::size_t>(rank)] = createFromId(id, rank, ranks, options); });
  }
  for (std::thread& thread : threads) thread.join();
  std::vector<Owned> communicators;
  for (auto& result : results) {
    if (!result->ok()) return result->status();
    communicators.push_back(result->take());
  }
  return communicators;
}

Result<Owned> split(Communicator& parent, int color, int key, const koloConfig_t* config) {
  KOLO_ASSIGN(Options options, Options::make(config, &parent.options()));
  const std::uint64_t child = parent.nextChild();
  BlobWriter mine;
  mine.put(color).put(key);
  KOLO_ASSIGN(const std::vector<std::string> blobs, parent.membership().allGather(mine.text()));
  std::vector<std::pair<int, int>> group;   // (key, parent's rank)
  for (int rank = 0; rank < parent.ranks(); ++rank) {
    BlobReader reader(blobs[static_cast<std::size_t>(rank)]);
    const int theirColor = reader.get<int>(), theirKey = reader.get<int>();
    if (theirColor == color) group.emplace_back(theirKey, rank);
  }
  if (color == KOLO_SPLIT_NOCOLOR) return Owned();
  std::sort(group.begin(), group.end());
  Membership membership = parent.membership();
  membership.gathers = 0;
  membership.key = mix(mix(membership.key, child), static_cast<std::uint64_t>(color));
  membership.members.clear();
  for (std::size_t i = 0; i < group.size(); ++i) {
    membership.members.push_back(parent.membership().members[static_cast<std::size_t>(group[i].second)]);
    if (group[i].second == parent.rank()) membership.rank = static_cast<int>(i);
  }
  if (config == nullptr || config->name == nullptr) options.name = fmt::format("{}/{}", parent.options().name, color);
  return Communicator::create(std::move(membership), options);
}

Result<Owned> shrink(Communicator& parent, const std::vector<int>& excluded, const koloConfig_t* config) {
  KOLO_ASSIGN(Options options, Options::make(config, &parent.options()));
  Membership membership = parent.membership();
  membership.gathers = 0;
  membership.key = mix(mix(membership.key, parent.nextChild()), ~std::uint64_t{0});
  membership.members.clear();
  for (int rank = 0; rank < parent.ranks(); ++rank) {
    if (std::find(excluded.begin(), excluded.end(), rank) != excluded.end()) continue;
    membership.key = mix(membership.key, static_cast<std::uint64_t>(rank));
    if (rank == parent.rank()) membership.rank = static_cast<int>(membership.members.size());
    membership.members.push_back(parent.membership().members[static_cast<std::size_t>(rank)]);
  }
  if (config == nullptr || config->name == nullptr) options.name = parent.options().name + "/shrunk";
  return Communicator::create(std::move(membership), options);
}

}  // namespace kolo::comm
