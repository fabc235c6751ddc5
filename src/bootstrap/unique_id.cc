#include "bootstrap/unique_id.h"

#include <unistd.h>

#include <algorithm>

namespace kolo::bootstrap {
namespace {

constexpr std::string_view kMagic = "KOLO";
constexpr std::uint8_t kFlagExplicitRoot = 1;
constexpr std::uint8_t kFlagBoundToOne = 2;
constexpr std::size_t kChecksumBytes = 12;
constexpr std::size_t kBodyBytes = KOLO_UNIQUE_ID_BYTES - kChecksumBytes;

static_assert(4 + 1 + 1 + 2 + 4 + 4 + 16 + 1 + kMaxAddresses * 17 + kSecretBytes == kBodyBytes);

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
  id.boundToOne = !local.any;
  id.makerPid = static_cast<std::uint32_t>(::getpid());
  id.host = hostIdentity();
  id.addresses = local.reachable;
  id.secret = secret;
  return id;
}

koloUniqueId encodeId(const IdContents& contents) {
  Encoder body;
  const int flags = (contents.explicitRoot ? kFlagExplicitRoot : 0) | (contents.boundToOne ? kFlagBoundToOne : 0);
  body.raw(kMagic).number(contents.format).number(static_cast<std::uint8_t>(flags)).number(contents.port);
  body.number(contents.version).number(contents.makerPid).raw(view(contents.host.data(), contents.host.size()));
  body.number(static_cast<std::uint8_t>(std::min(contents.addresses.size(), kMaxAddresses)));
  for (std::size_t i = 0; i < kMaxAddresses; ++i) {
    const Address address = i < contents.addresses.size() ? contents.addresses[i] : Address();
    body.number(static_cast<std::uint8_t>(address.v6 ? 6 : 4)).raw(view(address.bytes, 16));
  }
  body.raw(view(contents.secret.data(), contents.secret.size()));
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
  contents.boundToOne = (flags & kFlagBoundToOne) != 0;
  contents.port = decoder.number<std::uint16_t>();
  contents.version = decoder.number<std::uint32_t>();
  if (contents.format != kIdFormat) {
    return error(koloMismatch, "the unique id was made by Kolo {} (format {}), this process runs Kolo {} (format {})",
                 describeVersion(contents.version), contents.format, describeVersion(KOLO_VERSION_CODE), kIdFormat);
  }
  contents.makerPid = decoder.number<std::uint32_t>();
  const std::string_view host = decoder.raw(contents.host.size());
  std::copy(host.begin(), host.end(), contents.host.begin());
  const std::size_t count = std::min<std::size_t>(decoder.number<std::uint8_t>(), kMaxAddresses);
  for (std::size_t i = 0; i < kMaxAddresses; ++i) {
    Address address;
    address.v6 = decoder.number<std::uint8_t>() == 6;
    const std::string_view raw = decoder.raw(16);
    std::copy(raw.begin(), raw.end(), address.bytes);
    if (i < count) contents.addresses.push_back(address);
  }
  const std::string_view secret = decoder.raw(kSecretBytes);
  std::copy(secret.begin(), secret.end(), contents.secret.begin());
  return contents;
}

}  // namespace kolo::bootstrap
