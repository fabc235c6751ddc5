#include "torch/root.h"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <numeric>
#include <sstream>

#include "torch/errors.h"
#include "torch/signals.h"
#include "torch/without_gil.h"

namespace kolo::pytorch {
namespace {

using Roots = std::vector<std::shared_ptr<Root>>;

// What rank 0 says first: what follows are a root's token and the members' ranks there, the id of a new root, or why
// there is none.
constexpr char kShared = 's', kNew = 'n', kFailed = 'f';

// The roots of this process.
struct Shared {
  std::mutex mutex;
  std::vector<std::weak_ptr<Root>> roots;

  static Shared& ofProcess() {
    static auto* const instance = new Shared;
    return *instance;
  }
};

Roots sharedRoots() {
  Shared& shared = Shared::ofProcess();
  const std::lock_guard lock(shared.mutex);
  Roots roots;
  for (const std::weak_ptr<Root>& each : shared.roots) roots.push_back(each.lock());
  std::erase(roots, nullptr);
  return roots;
}

bool isShared(const std::shared_ptr<Root>& root) {
  const Roots roots = sharedRoots();
  return std::find(roots.begin(), roots.end(), root) != roots.end();
}

// What a member tells of its roots: the token of each, and its rank there.
std::string offer(const Roots& roots) {
  std::ostringstream text;
  for (const auto& root : roots) text << root->token() << ' ' << root->rank() << ' ';
  return text.str();
}

// -1: the member is not in the root, or two threads of its process are, which cannot be told from one another.
int rankIn(const Root& root, const std::string& offer) {
  std::istringstream text(offer);
  std::string token;
  int found = -1;
  for (int rank = -1; text >> token >> rank;) {
    if (token != root.token()) continue;
    if (found != -1) return -1;
    found = rank;
  }
  return found;
}

// Whether each member is a rank of its own. Threads of one process offer the same roots.
bool areDistinct(std::vector<int> ranks) {
  std::sort(ranks.begin(), ranks.end());
  return ranks.front() != -1 && std::adjacent_find(ranks.begin(), ranks.end()) == ranks.end();
}

// Rank 0's choice. No root: there is none with all members.
Origin choose(const Roots& roots, const std::vector<std::string>& offers, const std::string& transports) {
  for (const auto& root : roots) {
    if (root->rank() != 0 || root->transports() != transports) continue;
    Origin origin{root, {}};
    for (const std::string& each : offers) origin.ranks.push_back(rankIn(*root, each));
    if (areDistinct(origin.ranks)) return origin;
  }
  return {};
}

std::string describe(const Origin& origin) {
  std::ostringstream text;
  text << kShared << origin.root->token();
  for (const int rank : origin.ranks) text << ' ' << rank;
  return text.str();
}

// Collective: a new root of the members alone.
Origin make(const Meeting& meeting, const GroupPlace& group, const koloUniqueId& id) {
  const std::string name = group.name + ":root";
  koloConfig_t config = KOLO_CONFIG_INITIALIZER;
  config.name = name.c_str();
  config.device = KOLO_HOST;
  config.transports = group.transports.empty() ? nullptr : group.transports.c_str();
  koloComm_t comm = nullptr;
  const koloResult_t result = koloCommInitRankConfig(&comm, group.size, id, group.rank, &config);
  Origin made{nullptr, std::vector<int>(static_cast<std::size_t>(group.size))};
  if (result == koloSuccess)
    made.root = std::make_shared<Root>(comm, group.rank, group.size, meeting.token(), group.transports);
  meeting.check(result);
  std::iota(made.ranks.begin(), made.ranks.end(), 0);
  return made;
}

// Waits until the groups before have been made, and makes a new root if one of them could not be. Why it need not wait
// any more, or "".
std::string takeTurn(const Meeting& meeting, Origin& origin) {
  return meeting.keepTrying("other groups with this rank 0 to be made", [&](std::chrono::milliseconds slice) {
    if (origin.root == nullptr) return true;
    origin.turn = std::unique_lock(origin.root->turn(), slice);
    if (!origin.turn.owns_lock()) return false;
    if (!isShared(origin.root)) origin = {};  // the caller's list of roots keeps this one until it is unlocked
    return true;
  });
}

Origin lead(Meeting& meeting, const GroupPlace& group, const Roots& roots, const std::vector<std::string>& offers) {
  Origin origin = choose(roots, offers, group.transports);
  std::string why = takeTurn(meeting, origin);
  koloUniqueId id{};
  if (why.empty() && origin.root == nullptr && koloGetUniqueId(&id) != koloSuccess) why = koloGetLastError(nullptr);
  if (!why.empty()) (void)meeting.broadcast(kFailed + why);
  signals::endWait();
  if (!why.empty()) meeting.fail(why);
  if (origin.root == nullptr) {
    (void)meeting.broadcast(kNew + std::string(id.internal, sizeof id.internal));
    return make(meeting, group, id);
  }
  (void)meeting.broadcast(describe(origin));
  return origin;
}

Origin follow(Meeting& meeting, const GroupPlace& group, const Roots& roots) {
  const std::string word = meeting.broadcast();
  const std::string text = word.empty() ? "" : word.substr(1);
  koloUniqueId id{};
  if (word[0] == kNew && text.size() == sizeof id.internal) {
    std::copy(text.begin(), text.end(), id.internal);
    return make(meeting, group, id);
  }
  if (word[0] == kFailed) meeting.fail("rank 0 failed: " + text);
  std::istringstream words(text);
  std::string token;
  words >> token;
  Origin origin;
  for (int rank = 0; words >> rank;) origin.ranks.push_back(rank);
  const auto found = std::find_if(roots.begin(), roots.end(), [&](const auto& root) { return root->token() == token; });
  if (found == roots.end() || static_cast<int>(origin.ranks.size()) != group.size)
    meeting.fail("rank 0 says \"" + word + "\", which names no communicator of this rank");
  origin.root = *found;
  return origin;
}

}  // namespace

Root::~Root() {
  const WithoutGil others;
  (void)koloCommDestroy(comm_);
}

std::vector<int> Root::failedRanks() const {
  std::vector<int> ranks(static_cast<std::size_t>(size_));
  int count = 0;
  (void)koloCommFailedRanks(comm_, ranks.data(), &count);
  ranks.resize(static_cast<std::size_t>(count));
  return ranks;
}

Origin findOrigin(Meeting& meeting, const GroupPlace& group) {
  const Roots roots = sharedRoots();
  const std::vector<std::string> offers = meeting.gather(offer(roots));
  return group.rank == 0 ? lead(meeting, group, roots, offers) : follow(meeting, group, roots);
}

std::shared_ptr<Root> grow(koloComm_t comm, const Growth& growth) {
  const WithoutGil others;
  koloConfig_t config = KOLO_CONFIG_INITIALIZER;
  config.name = "grown:root";
  config.device = KOLO_HOST;
  config.transports = growth.transports.empty() ? nullptr : growth.transports.c_str();
  koloComm_t grown = nullptr;
  const koloResult_t result = koloCommGrow(comm, growth.size, &growth.id, growth.rank, &grown, &config);
  std::shared_ptr<Root> root;
  if (result == koloSuccess)
    root = std::make_shared<Root>(grown, growth.rank, growth.size, growth.token, growth.transports);
  check(result, "kolo:grow");
  share(root, true);
  return root;
}

void share(const std::shared_ptr<Root>& root, bool isUsable) {
  Shared& shared = Shared::ofProcess();
  const std::lock_guard lock(shared.mutex);
  std::erase_if(shared.roots, [&](const auto& each) { return each.expired() || each.lock() == root; });
  if (isUsable) shared.roots.push_back(root);
}

}  // namespace kolo::pytorch
