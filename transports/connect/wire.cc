#include "wire.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <algorithm>

namespace kolo::connect {

Key connectionKey(const Key& communicators, const Hello& hello, const Challenge& challenge) {
  Key key;
  crypto_generichash_state state;
  crypto_generichash_init(&state, communicators.bytes, sizeof communicators.bytes, sizeof key.bytes);
  crypto_generichash_update(&state, reinterpret_cast<const unsigned char*>(&hello), sizeof hello);
  crypto_generichash_update(&state, reinterpret_cast<const unsigned char*>(&challenge), sizeof challenge);
  crypto_generichash_final(&state, key.bytes, sizeof key.bytes);
  return key;
}

// Four segments; what does not tell its segments' size gets all.
std::size_t fillingBytes(int fd) {
  int segment = 0;
  socklen_t bytes = sizeof segment;
  if (getsockopt(fd, IPPROTO_TCP, TCP_MAXSEG, &segment, &bytes) != 0 || segment <= 0) return kMostFilling;
  return std::min(4 * static_cast<std::size_t>(segment), kMostFilling);
}

void makeFilling(const Key& connections, bool fromDialler, std::vector<unsigned char>* bytes) {
  if (bytes->empty()) return;
  unsigned char nonce[crypto_stream_NONCEBYTES] = {static_cast<unsigned char>(fromDialler)};
  crypto_stream(bytes->data(), bytes->size(), nonce, connections.bytes);
}

}  // namespace kolo::connect
