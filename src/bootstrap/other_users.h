// Which other users start ranks on this host: ranks of different users do not meet in a directory that only one may
// enter.
//
// Thread safety: all functions, from any thread.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <string>

namespace kolo::bootstrap {

// "nobody (65534)"
std::string userName(uid_t user);

// "/tmp/kolo-65534": where the ranks of a user meet.
std::string meetingPlace(const std::string& base, uid_t user);

// For ranks that did not meet at their `own` place through the file of that name: that ranks of other users cannot come
// there, which of them were seen to look for a job of their own within `recently`, and what helps.
std::string explainUsers(const std::string& own, const std::string& file, std::chrono::seconds recently);

}  // namespace kolo::bootstrap
