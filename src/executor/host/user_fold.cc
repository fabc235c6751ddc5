#include "executor/host/user_fold.h"

#include <algorithm>
#include <cstring>

#include "base/caller.h"
#include "base/datatypes.h"

namespace kolo::executor {

void userFold(const UserReduction& user, const device::ReduceArgs& args) {
  // A tile on the stack, because a destination may be one of the sources, and because sources may be unaligned.
  constexpr std::size_t kTile = 4096;
  alignas(64) unsigned char acc[kTile];
  alignas(64) unsigned char next[kTile];
  const InUserFunction inside;
  const std::size_t size = elementBytes(user.datatype);
  const std::uint64_t step = kTile / size;
  for (std::uint64_t at = 0; at < args.count; at += step) {
    const std::size_t count = std::min(step, args.count - at);
    const std::size_t begin = at * size, bytes = count * size;
    std::memcpy(acc, static_cast<const unsigned char*>(args.src[0]) + begin, bytes);
    for (int s = 1; s < args.srcCount; ++s) {
      std::memcpy(next, static_cast<const unsigned char*>(args.src[s]) + begin, bytes);
      callUsers(user.function, acc, next, count, user.datatype, user.context);
    }
    for (int d = 0; d < args.dstCount; ++d) std::memcpy(static_cast<unsigned char*>(args.dst[d]) + begin, acc, bytes);
  }
}

}  // namespace kolo::executor
