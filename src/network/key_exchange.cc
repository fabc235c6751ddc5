#include "network/key_exchange.h"

#include <sodium.h>

#include <algorithm>

namespace kolo::network {
namespace {

constexpr std::string_view kLabel = "kolo key exchange 1";

const unsigned char* raw(std::string_view bytes) { return reinterpret_cast<const unsigned char*>(bytes.data()); }

}  // namespace

static_assert(KeyExchange::kBytes == crypto_core_ristretto255_BYTES &&
              KeyExchange::kBytes == crypto_core_ristretto255_SCALARBYTES);

KeyExchange::KeyExchange(std::span<const unsigned char, kBytes> secret) {
  std::copy(secret.begin(), secret.end(), secret_.begin());
  unsigned char hash[crypto_core_ristretto255_HASHBYTES], point[crypto_core_ristretto255_BYTES];
  crypto_generichash(hash, sizeof hash, raw(kLabel), kLabel.size(), secret_.data(), secret_.size());
  crypto_core_ristretto255_from_hash(point, hash);
  crypto_core_ristretto255_scalar_random(number_.data());
  if (crypto_scalarmult_ristretto255(share_.data(), number_.data(), point) != 0) share_.fill(0);  // no end takes this
  sodium_memzero(hash, sizeof hash);
  sodium_memzero(point, sizeof point);
}

KeyExchange::~KeyExchange() {
  sodium_memzero(secret_.data(), secret_.size());
  sodium_memzero(number_.data(), number_.size());
}

KeyExchange::Key KeyExchange::finish(const Share& theirs, std::string_view transcript) const {
  Key product, key;
  if (crypto_scalarmult_ristretto255(product.data(), number_.data(), theirs.data()) != 0)
    randombytes_buf(product.data(), product.size());
  crypto_generichash_state state;
  crypto_generichash_init(&state, secret_.data(), secret_.size(), key.size());
  crypto_generichash_update(&state, raw(kLabel), kLabel.size());
  crypto_generichash_update(&state, product.data(), product.size());
  crypto_generichash_update(&state, raw(transcript), transcript.size());
  crypto_generichash_final(&state, key.data(), key.size());
  sodium_memzero(product.data(), product.size());
  return key;
}

}  // namespace kolo::network
