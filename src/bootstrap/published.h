// The file by which the ranks of one host find the job's id, or learn that there is none.
//
// It lies in a directory that only this user can write or read, and appears whole, by rename. It says which process
// made it, so what a crashed job left behind is not taken for the news of the next one.
//
// Thread safety: all functions, from any thread.
#pragma once

#include <kolo/kolo.h>

#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "bootstrap/socket.h"

namespace kolo::bootstrap {

// Where the files of this user are; made if it does not exist.
Result<std::string> privateDirectory();
// Those that there are: usually this one. Others of this user's exist where another user has taken names away.
std::vector<std::string> privateDirectories();
// Of the job that is called so.
std::string fileName(const std::string& numbered);

// Writes the id, or that there will be no job, in place of what is there. rank: the one which cannot go on, for this
// reason.
Status publish(const std::string& path, const koloUniqueId& id);
Status publishFailure(const std::string& path, int rank, const Status& why);
// What publishFailure() has written; nothing: something else is there, or its writer is dead.
struct PublishedFailure {
  int rank;
  Status why;
};
std::optional<PublishedFailure> readFailure(const std::string& path);
// The contents of such a file, where none can be written.
std::string encodeFailure(int rank, const Status& why);
std::optional<PublishedFailure> decodeFailure(const std::string& contents);
// Takes away what publish() has written; not what came after it.
void retract(const std::string& path, const koloUniqueId& id);

// koloInProgress: nothing (useful) there yet, and why. Another error: of this file, or what publishFailure() has
// written.
Result<koloUniqueId> readPublished(const std::string& path, Clock::time_point deadline);

}  // namespace kolo::bootstrap
