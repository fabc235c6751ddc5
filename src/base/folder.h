// What a folder of the system's holds. The iterators of the standard library end the process where there is no memory.
//
// Thread safety: all functions.
#pragma once

#include <dirent.h>

#include <memory>
#include <string>
#include <vector>

namespace kolo {

// Names, in no order; none where it cannot be read.
inline std::vector<std::string> namesIn(const std::string& folder) {
  struct Close {
    void operator()(DIR* open) const { ::closedir(open); }
  };
  std::vector<std::string> names;
  const std::unique_ptr<DIR, Close> open(::opendir(folder.c_str()));
  while (open != nullptr) {
    const dirent* const entry = ::readdir(open.get());
    if (entry == nullptr) break;
    const std::string name = entry->d_name;
    if (name != "." && name != "..") names.push_back(name);
  }
  return names;
}

}  // namespace kolo
