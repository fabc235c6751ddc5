// The transports that the build compiled in.
//
// Thread safety: constant.
#pragma once

#include <kolo/transport.h>

namespace kolo::transport {

// Ends with a null pointer. Defined in a source that transports/meson.build writes.
extern const koloTransportEntry_t builtinTransports[];

}  // namespace kolo::transport
