#include "bootstrap/wire.h"

#include <algorithm>

namespace kolo::bootstrap {
namespace {

constexpr char kKdfContext[crypto_kdf_CONTEXTBYTES + 1] = "kolosess";

enum SubKey : std::uint64_t { kClientProof = 1, kHubProof = 2, kClientToHub = 3, kHubToClient = 4 };

const unsigned char* raw(std::string_view bytes) { return reinterpret_cast<const unsigned char*>(bytes.data()); }
unsigned char* raw(std::string& bytes) { return reinterpret_cast<unsigned char*>(bytes.data()); }

Secret subKey(const Secret& master, SubKey which) {
  Secret key;
  crypto_kdf_derive_from_key(key.data(), key.size(), which, kKdfContext, master.data());
  return key;
}

}  // namespace

Status initialiseCrypto() {
  if (sodium_init() < 0) return error(koloSystemError, "libsodium could not be initialised (no source of randomness?)");
  return {};
}

Secret expand(const Secret& secret, std::string_view label) {
  Secret result;
  crypto_generichash(result.data(), result.size(), raw(label), label.size(), secret.data(), secret.size());
  return result;
}

Tag tagOf(const Secret& secret) {
  Tag tag;
  std::copy_n(secret.begin(), tag.size(), tag.begin());
  return tag;
}

Session::Session(Side side, const KeyExchange& mine, const KeyExchange::Share& theirs, std::string_view clientHello,
                 std::string_view serverHello)
    : side_(side), transcript_(clientHello) {
  transcript_.append(serverHello);
  master_ = mine.finish(theirs, transcript_);
}

Session::~Session() {
  sodium_memzero(master_.data(), master_.size());
  sodium_memzero(&out_, sizeof out_);
  sodium_memzero(&in_, sizeof in_);
}

std::string Session::proofMac(Side side, std::string_view header) const {
  const Secret key = subKey(master_, side == Side::kClient ? kClientProof : kHubProof);
  std::string text = transcript_;
  text.append(header);
  std::string mac(crypto_auth_BYTES, '\0');
  crypto_auth(raw(mac), raw(text), text.size(), key.data());
  return mac;
}

std::string Session::prove() {
  const Secret key = subKey(master_, side_ == Side::kClient ? kClientToHub : kHubToClient);
  std::string header(crypto_secretstream_xchacha20poly1305_HEADERBYTES, '\0');
  crypto_secretstream_xchacha20poly1305_init_push(&out_, raw(header), key.data());
  std::string proof(1, static_cast<char>(Reply::kOk));
  proof.append(proofMac(side_, header));
  return proof.append(header);
}

Reply Session::check(std::string_view proof) {
  if (proof.size() != kProofBytes || proof.front() != static_cast<char>(Reply::kOk)) return Reply::kWrongSecret;
  const Side other = side_ == Side::kClient ? Side::kHub : Side::kClient;
  const std::string_view mac = proof.substr(1, crypto_auth_BYTES);
  const std::string_view header = proof.substr(1 + crypto_auth_BYTES);
  if (sodium_memcmp(mac.data(), proofMac(other, header).data(), mac.size()) != 0) return Reply::kWrongSecret;
  const Secret key = subKey(master_, other == Side::kClient ? kClientToHub : kHubToClient);
  if (crypto_secretstream_xchacha20poly1305_init_pull(&in_, raw(header), key.data()) != 0) return Reply::kWrongSecret;
  return Reply::kOk;
}

std::string Session::refusal() {
  std::string bytes(kProofBytes, '\0');
  bytes.front() = static_cast<char>(Reply::kWrongSecret);
  return bytes;
}

void Session::seal(std::string_view plain, std::string& out) {
  const std::size_t cipherSize = plain.size() + crypto_secretstream_xchacha20poly1305_ABYTES;
  const std::string length = Encoder().number(static_cast<std::uint32_t>(cipherSize)).take();
  const std::size_t start = out.size() + length.size();
  out.resize(start + cipherSize);
  length.copy(out.data() + start - length.size(), length.size());
  crypto_secretstream_xchacha20poly1305_push(&out_, raw(out) + start, nullptr, raw(plain), plain.size(), raw(length),
                                             length.size(), crypto_secretstream_xchacha20poly1305_TAG_MESSAGE);
}

std::size_t Session::cipherBytes(std::string_view lengthField) {
  const std::size_t bytes = Decoder(lengthField).number<std::uint32_t>();
  // A frame has at least its kind.
  if (bytes <= crypto_secretstream_xchacha20poly1305_ABYTES) return 0;
  return bytes <= kMaxFrameBytes + crypto_secretstream_xchacha20poly1305_ABYTES ? bytes : 0;
}

bool Session::open(std::string_view lengthField, std::string_view cipher, std::string& plain) {
  plain.resize(cipher.size() - crypto_secretstream_xchacha20poly1305_ABYTES);
  unsigned char tag = 0;
  return crypto_secretstream_xchacha20poly1305_pull(&in_, raw(plain), nullptr, &tag, raw(cipher), cipher.size(),
                                                    raw(lengthField), lengthField.size()) == 0;
}

Encoder& Encoder::ranks(const std::vector<int>& ranks) {
  std::vector<std::pair<std::uint32_t, std::uint32_t>> runs;
  for (const int rank : ranks) {
    const auto value = static_cast<std::uint32_t>(rank);
    if (!runs.empty() && runs.back().first + runs.back().second == value) {
      ++runs.back().second;
    } else {
      runs.emplace_back(value, 1);
    }
  }
  number(static_cast<std::uint32_t>(runs.size()));
  for (const auto& [first, count] : runs) number(first).number(count);
  return *this;
}

std::string_view Decoder::raw(std::size_t bytes) {
  if (!ok_ || bytes > rest_.size()) {
    ok_ = false;
    return {};
  }
  const std::string_view result = rest_.substr(0, bytes);
  rest_.remove_prefix(bytes);
  return result;
}

std::string_view Decoder::ranksAsSent() {
  const std::string_view all = rest_;
  (void)raw(std::size_t{number<std::uint32_t>()} * 2 * sizeof(std::uint32_t));
  return all.substr(0, all.size() - rest_.size());
}

std::vector<int> Decoder::ranks(std::size_t atMost) {
  std::vector<int> result;
  const auto runs = number<std::uint32_t>();
  for (std::uint32_t i = 0; i < runs && ok_; ++i) {
    const auto first = number<std::uint32_t>();
    const auto count = number<std::uint32_t>();
    if (count > atMost - result.size() || first > INT32_MAX - count) ok_ = false;
    for (std::uint32_t j = 0; ok_ && j < count; ++j) result.push_back(static_cast<int>(first + j));
  }
  return result;
}

std::string describeRanks(const std::vector<int>& ranks) {
  constexpr int kMostRuns = 16;
  std::string text;
  int runs = 0;
  for (std::size_t i = 0; i < ranks.size();) {
    std::size_t end = i + 1;
    while (end < ranks.size() && ranks[end] == ranks[end - 1] + 1) ++end;
    if (!text.empty()) text += ", ";
    if (++runs > kMostRuns) return text + fmt::format("... ({} in all)", ranks.size());
    text += end - i == 1 ? fmt::format("{}", ranks[i]) : fmt::format("{}-{}", ranks[i], ranks[end - 1]);
    i = end;
  }
  return text;
}

std::string describeVersion(std::uint32_t code) {
  return fmt::format("{}.{}.{}", code / 10000, code / 100 % 100, code % 100);
}

}  // namespace kolo::bootstrap
