#include "bootstrap/job_secret.h"

#include <algorithm>

#include "base/settings.h"

namespace kolo::bootstrap {

bool hasGivenSecret() { return !settings::text("KOLO_SECRET").empty(); }

// The tag is public, so it is no part of what the secret is made into.
Secret givenSecret(const Tag& tag) {
  const Secret base = expand({}, "kolo job secret: " + settings::text("KOLO_SECRET"));
  Secret secret = expand(base, {reinterpret_cast<const char*>(tag.data()), tag.size()});
  std::copy(tag.begin(), tag.end(), secret.begin());
  return secret;
}

Status demandSecret(const std::string& why) {
  if (hasGivenSecret() || settings::integer("KOLO_INSECURE") != 0) return {};
  return error(koloInvalidEnvironment,
               "environment variable KOLO_SECRET is not set, but {}, so that strangers could join: {}; KOLO_INSECURE=1 "
               "goes on without one",
               why, kOneSecretForAll);
}

bool isOfThisHost(const std::string& rootHost) {
  const std::optional<Address> literal = network::parseAddress(rootHost);
  return literal.has_value() ? literal->isLoopback() : rootHost == "localhost";
}

bool isOnOneHost(const LauncherJob& job) { return job.ranks > 1 && job.localRanks == job.ranks; }

bool isOnSeveralHosts(const LauncherJob& job) {
  if (job.localRanks > 0) return job.localRanks < job.ranks;
  return !job.root.empty() && !isOfThisHost(job.root.substr(0, job.root.rfind(':')));
}

}  // namespace kolo::bootstrap
