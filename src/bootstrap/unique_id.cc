#include "bootstrap/unique_id.h"

#include <unistd.h>

#include <algorithm>
#include <span>

#include "bootstrap/job_secret.h"

namespace kolo::bootstrap {
namespace {

constexpr std::string_view kMagic = "KOLO";
constexpr std::uint8_t kFlagExplicitRoot = 1;
constexpr std::uint8_t kFlagHasMore = 2;
constexpr std::uint8_t kFlagSecretGiven = 4;
constexpr std::size_t kPlacesBytes = 60;
constexpr std::size_t kChecksumBytes = 8;
constexpr std::size_t kBodyBytes = KOLO_UNIQUE_ID_BYTES - kChecksumBytes;

static_assert(4 + 1 + 1 + 2 + 4 + 4 + 8 + kPlacesBytes + kSecretBytes + 4 == kBodyBytes);

std::string checksum(std::string_view body) {
  unsigned char full[crypto_generichash_BYTES];
  crypto_generichash(full, sizeof full, reinterpret_cast<const unsigned char*>(body.data()), body.size(), nullptr, 0);
  return {reinterpret_cast<const char*>(full), kChecksumBytes};
}

std::string_view view(const unsigned char* bytes, std::size_t count) {
  return {reinterpret_cast<const char*>(bytes), count};
}

}  // namespace

IdContents contentsOfId(const Secret& secret, const LocalAddresses& local, bool explicitRoot) {
  IdContents id;
  id.explicitRoot = explicitRoot;
  id.makerPid = static_cast<std::uint32_t>(::getpid());
  id.stack = stackIdentity();
  id.places = local.reachable;
  id.secret = secret;
  return id;
}

koloUniqueId encodeId(const IdContents& contents) {
  Encoder body;
  unsigned char places[kPlacesBytes];
  const bool hasMore = network::leavesOut(contents.places, network::packPlaces(contents.places, places));
  const int flags = (contents.explicitRoot ? kFlagExplicitRoot : 0) | (hasMore ? kFlagHasMore : 0) |
                    (contents.isSecretGiven ? kFlagSecretGiven : 0);
  body.raw(kMagic).number(contents.format).number(static_cast<std::uint8_t>(flags)).number(contents.port);
  body.number(contents.version).number(contents.makerPid).number(contents.stack).raw(view(places, sizeof places));
  Secret secret = contents.secret;
  if (contents.isSecretGiven) std::fill(secret.begin() + kTagBytes, secret.end(), static_cast<unsigned char>(0));
  body.raw(view(secret.data(), secret.size())).number(contents.growth);
  std::string bytes = body.take();
  bytes += checksum(bytes);
  koloUniqueId id;
  std::copy(bytes.begin(), bytes.end(), id.internal);
  return id;
}

Result<IdContents> decodeId(const koloUniqueId& id) {
  const std::string_view bytes(id.internal, KOLO_UNIQUE_ID_BYTES);
  const std::string_view body = bytes.substr(0, kBodyBytes);
  Decoder decoder(body);
  if (decoder.raw(kMagic.size()) != kMagic || checksum(body) != bytes.substr(kBodyBytes)) {
    return error(koloInvalidArgument,
                 "these 128 bytes are not a unique id, or were damaged on the way: expected the unchanged bytes of "
                 "koloGetUniqueId");
  }
  IdContents contents;
  contents.format = decoder.number<std::uint8_t>();
  const auto flags = decoder.number<std::uint8_t>();
  contents.explicitRoot = (flags & kFlagExplicitRoot) != 0;
  contents.hasMore = (flags & kFlagHasMore) != 0;
  contents.isSecretGiven = (flags & kFlagSecretGiven) != 0;
  contents.port = decoder.number<std::uint16_t>();
  contents.version = decoder.number<std::uint32_t>();
  if (contents.format != kIdFormat) {
    return error(koloMismatch, "the unique id was made by Kolo {} (format {}), this process runs Kolo {} (format {})",
                 describeVersion(contents.version), contents.format, describeVersion(KOLO_VERSION_CODE), kIdFormat);
  }
  contents.makerPid = decoder.number<std::uint32_t>();
  contents.stack = decoder.number<std::uint64_t>();
  const std::string_view places = decoder.raw(kPlacesBytes);
  const std::span packed(reinterpret_cast<const unsigned char*>(places.data()), places.size());
  if (!network::unpackPlaces(packed, &contents.places))
    return error(koloInvalidArgument, "a unique id with half an address");
  const std::string_view secret = decoder.raw(kSecretBytes);
  std::copy(secret.begin(), secret.end(), contents.secret.begin());
  contents.growth = decoder.number<std::uint32_t>();
  if (contents.isSecretGiven) contents.secret = givenSecret(tagOf(contents.secret));
  return contents;
}

}  // namespace kolo::bootstrap
