#include "wire.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <algorithm>

namespace kolo::connect {

Key connectionKey(const KeyExchange& mine, const KeyExchange::Share& theirs, const Hello& hello,
                  const Challenge& challenge) {
  std::string said(reinterpret_cast<const char*>(&hello), sizeof hello);
  said.append(reinterpret_cast<const char*>(&challenge), sizeof challenge);
  const KeyExchange::Key agreed = mine.finish(theirs, said);
  Key key;
  std::copy(agreed.begin(), agreed.end(), key.bytes);
  return key;
}

Cipher cipherBetween(const Address& a, const Address& b) {
  const int both = a.flags & b.flags;
  if ((both & Address::kEncrypts) == 0) return Cipher::kNone;
  return (both & Address::kHasAes) != 0 ? Cipher::kAes256Gcm : Cipher::kChaCha20Poly1305;
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
