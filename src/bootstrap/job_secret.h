// Where the secret of a job comes from. With KOLO_SECRET each rank makes it of that and of the job's tag, and an id
// carries the tag alone. Without it, the process that makes an id draws a secret, and the id carries that: whoever
// holds the id may join. A job that others could reach, and that has no secret of either kind, is not started.
//
// Thread safety: all functions, from any thread.
#pragma once

#include <string>
#include <string_view>

#include "base/status.h"
#include "bootstrap/control.h"
#include "bootstrap/socket.h"
#include "bootstrap/wire.h"

namespace kolo::bootstrap {

// What helps where it is missing.
constexpr std::string_view kOneSecretForAll =
    "expected the same secret for all ranks: make it once, as by export KOLO_SECRET=$(head -c 32 /dev/urandom | "
    "base64), and give the same to all hosts (Open MPI: -x KOLO_SECRET)";

// The user has set KOLO_SECRET.
bool hasGivenSecret();
// Of the job with this tag, by KOLO_SECRET, or by an empty one if it is not set.
Secret givenSecret(const Tag& tag);

// koloInvalidEnvironment, if neither KOLO_SECRET nor KOLO_INSECURE=1 is set, says what to set. why: what other hosts
// have to do with the job.
Status demandSecret(const std::string& why);

// Whether the root is an address that no other host reaches: "localhost", "127.0.0.1".
bool isOfThisHost(const std::string& rootHost);
// As far as its launcher says: all ranks are on this host; some are not. Both false: not known.
bool isOnOneHost(const LauncherJob& job);
bool isOnSeveralHosts(const LauncherJob& job);

}  // namespace kolo::bootstrap
