#include "bootstrap/other_users.h"

#include <dirent.h>
#include <fmt/format.h>
#include <pwd.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <ctime>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

namespace kolo::bootstrap {
namespace {

constexpr std::string_view kPrefix = "kolo-";

// What is seen of the meeting place of another user; "" if nothing points to a job that waits.
std::string tracesAt(const std::string& place, uid_t user, const std::string& file, std::chrono::seconds recently) {
  struct stat status {};
  // Somebody else could have made a directory of that name.
  if (::lstat(place.c_str(), &status) != 0 || !S_ISDIR(status.st_mode) || status.st_uid != user) return {};
  const std::string published = place + "/" + file;  // to be seen by root alone
  struct stat ignored {};
  if (::lstat(published.c_str(), &ignored) == 0) {
    return fmt::format("a rank 0 of user {} has published this job in {}", userName(user), published);
  }
  const auto age = std::chrono::seconds(std::max<std::time_t>(0, std::time(nullptr) - status.st_mtime));
  if (age > recently) return {};
  return fmt::format("a rank of user {} came to {} {} s ago", userName(user), place, age.count());
}

// The user of "kolo-65534" and "kolo-65534-1"; nothing: another name.
std::optional<uid_t> userOfPlace(std::string_view name) {
  if (!name.starts_with(kPrefix)) return std::nullopt;
  name.remove_prefix(kPrefix.size());
  uid_t user = 0;
  const char* const end = name.data() + name.size();
  const auto [stop, problem] = std::from_chars(name.data(), end, user);
  if (problem != std::errc() || (stop != end && *stop != '-')) return std::nullopt;
  return user;
}

// The meeting places of users that are there, without this process's.
std::vector<std::pair<uid_t, std::string>> othersAt(const std::string& base) {
  std::vector<std::pair<uid_t, std::string>> places;
  DIR* const directory = ::opendir(base.c_str());
  if (directory == nullptr) return places;
  while (const dirent* const entry = ::readdir(directory)) {
    const std::optional<uid_t> user = userOfPlace(entry->d_name);
    if (user.has_value() && *user != ::geteuid()) places.emplace_back(*user, base + "/" + entry->d_name);
  }
  ::closedir(directory);
  std::sort(places.begin(), places.end());
  return places;
}

}  // namespace

std::string userName(uid_t user) {
  char buffer[4096];
  passwd entry{};
  passwd* found = nullptr;
  if (::getpwuid_r(user, &entry, buffer, sizeof buffer, &found) != 0 || found == nullptr)
    return fmt::format("{}", user);
  return fmt::format("{} ({})", found->pw_name, user);
}

std::string meetingPlace(const std::string& base, uid_t user) { return fmt::format("{}/{}{}", base, kPrefix, user); }

std::string explainUsers(const std::string& own, const std::string& file, std::chrono::seconds recently) {
  const std::string base = own.substr(0, own.rfind('/'));
  std::string seen;
  for (const auto& [user, place] : othersAt(base)) {
    const std::string traces = tracesAt(place, user, file, recently);
    if (!traces.empty()) seen += (seen.empty() ? "" : ", ") + traces;
  }
  return fmt::format(
      "Without KOLO_ROOT ranks find each other only if one user runs them all: this one, of user {}, looked in {}{}{}. "
      "If "
      "{}, run all ranks as one user (with one KOLO_JOB, XDG_RUNTIME_DIR and TMPDIR), or give all KOLO_ROOT=host:port "
      "and the same KOLO_SECRET",
      userName(::geteuid()), own, seen.empty() ? "" : ", and ", seen,
      seen.empty() ? "others run as another user" : "these belong together");
}

}  // namespace kolo::bootstrap
