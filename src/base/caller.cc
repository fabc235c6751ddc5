#include "base/caller.h"

namespace kolo {

thread_local constinit Caller caller;

}  // namespace kolo
