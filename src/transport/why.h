// The line in which a transport says why a call failed.
#pragma once

namespace kolo::transport {

// Written by a transport, which may come from elsewhere: trusted only as far as it ends. The rest is left as it is, for
// all calls make one.
struct Why {
  Why() { text[0] = '\0'; }
  char text[1024];
  const char* c_str() {  // NOLINT(readability-identifier-naming): as strings have it
    text[sizeof text - 1] = '\0';
    return text[0] != '\0' ? text : "no reason given";
  }
};

}  // namespace kolo::transport
