// What travels on a control connection: little-endian fields in frames, and the handshake that comes before them.
//
// Handshake (all of fixed size, so that nothing is allocated for a stranger):
//   client -> hub   ClientHello   which job (a public tag), share
//   hub -> client   ServerHello   whether the hub knows the job, share
//   client -> hub   proof         MAC over both hellos under a key from the exchange of shares (network/key_exchange.h)
//   hub -> client   proof         the same the other way; a wrong proof of the client's is answered by a refusal
// A recording of these tells nothing by which a weak KOLO_SECRET could be guessed, and what was recorded proves nothing
// again. Each proof carries the header of its sender's secretstream; from then on every frame is
// [u32 length][ciphertext], the length being authenticated with it.
//
// Thread safety: none; each object belongs to one thread at a time.
#pragma once

#include <sodium.h>

#include <array>
#include <bit>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "base/status.h"
#include "network/key_exchange.h"

namespace kolo::bootstrap {

using network::KeyExchange;

constexpr std::uint16_t kProtocol = 11;
constexpr std::size_t kSecretBytes = 32;
constexpr std::size_t kTagBytes = 16;
constexpr std::size_t kMaxBlobBytes = 1u << 20;
constexpr std::size_t kMaxReportBytes = 4096;     // of a failure's text
constexpr std::size_t kMaxFrameBytes = 2u << 20;  // plaintext; checked before anything is allocated
constexpr std::size_t kLengthBytes = 4;
// For how long the end of a rank that knew of a failure is held to be the consequence.
constexpr std::chrono::seconds kConsequenceTime{10};

// Its first kTagBytes name the job, and are no secret; the rest is.
using Secret = std::array<unsigned char, kSecretBytes>;
using Tag = std::array<unsigned char, kTagBytes>;

// Initialises libsodium once. Must come before any other function here.
Status initialiseCrypto();

// 32 bytes from the secret and a label; different labels are independent.
Secret expand(const Secret& secret, std::string_view label);
// Names the job on the wire.
Tag tagOf(const Secret& secret);

// kOutOfFiles: the hub's process has no descriptor for the connection. It may have one later. kNoHub: the standby that
// was named (standby.h) is open, and takes no rank: it has no hub, or is that of the hub itself.
enum class Reply : std::uint8_t { kOk = 0, kUnknownJob = 1, kWrongSecret = 2, kOutOfFiles = 3, kNoHub = 4 };

static_assert(std::endian::native == std::endian::little, "hellos are sent as they stand in memory");

struct [[gnu::packed]] ClientHello {
  std::array<char, 4> magic = kMagic;
  std::uint16_t protocol = kProtocol;
  std::uint32_t version = KOLO_VERSION_CODE;
  Tag tag{};
  KeyExchange::Share share{};

  static constexpr std::array<char, 4> kMagic = {'K', 'O', 'L', 'c'};
};

struct [[gnu::packed]] ServerHello {
  std::array<char, 4> magic = kMagic;
  std::uint16_t protocol = kProtocol;
  std::uint32_t version = KOLO_VERSION_CODE;
  Reply reply = Reply::kOk;
  KeyExchange::Share share{};

  static constexpr std::array<char, 4> kMagic = {'K', 'O', 'L', 's'};
};

template <class Hello>
std::string encode(const Hello& hello) {
  return {reinterpret_cast<const char*>(&hello), sizeof hello};
}
// Whether these bytes, perhaps few or none, are how a hello begins.
template <class Hello>
bool beginsAs(std::string_view bytes) {
  const std::string_view magic(Hello::kMagic.data(), Hello::kMagic.size());
  return magic.substr(0, bytes.size()) == bytes.substr(0, magic.size());
}
// False: it is none.
template <class Hello>
bool decode(std::string_view bytes, Hello& hello) {
  if (bytes.size() != sizeof hello || !beginsAs<Hello>(bytes)) return false;
  std::memcpy(&hello, bytes.data(), sizeof hello);
  return true;
}

// One end of an authenticated connection: proves itself, checks the other, then seals and opens frames.
class Session {
 public:
  enum class Side { kClient, kHub };
  static constexpr std::size_t kProofBytes = 1 + crypto_auth_BYTES + crypto_secretstream_xchacha20poly1305_HEADERBYTES;

  // The hellos, in which the shares are, are as they stood on the wire: both ends must have seen the same bytes.
  Session(Side side, const KeyExchange& mine, const KeyExchange::Share& theirs, std::string_view clientHello,
          std::string_view serverHello);
  ~Session();
  Session(const Session&) = default;
  Session& operator=(const Session&) = default;

  // Proof of this end, kProofBytes. Once.
  std::string prove();
  // Takes the other end's proof. kWrongSecret: it does not hold the secret, or says that we do not.
  Reply check(std::string_view proof);
  // What a hub answers instead of a proof; kProofBytes.
  static std::string refusal();

  // Appends a whole frame to out. plain is at most kMaxFrameBytes.
  void seal(std::string_view plain, std::string& out);
  // Bytes of ciphertext that follow this length field; 0: malformed.
  static std::size_t cipherBytes(std::string_view lengthField);
  // False: forged, damaged, replayed or out of order.
  bool open(std::string_view lengthField, std::string_view cipher, std::string& plain);

 private:
  std::string proofMac(Side side, std::string_view header) const;

  Side side_;
  std::string transcript_;
  Secret master_{};
  crypto_secretstream_xchacha20poly1305_state out_{};
  crypto_secretstream_xchacha20poly1305_state in_{};
};

class Encoder {
 public:
  template <class T>
  Encoder& number(T value) {
    static_assert(std::is_integral_v<T>);
    for (std::size_t i = 0; i < sizeof(T); ++i) {
      bytes_.push_back(static_cast<char>(static_cast<std::make_unsigned_t<T>>(value) >> (8 * i)));
    }
    return *this;
  }
  Encoder& raw(std::string_view bytes) {
    bytes_.append(bytes);
    return *this;
  }
  Encoder& text(std::string_view text) { return number(static_cast<std::uint32_t>(text.size())).raw(text); }
  // Runs of consecutive ranks, order kept: 0..511 takes 12 bytes.
  Encoder& ranks(const std::vector<int>& ranks);
  std::size_t size() const { return bytes_.size(); }
  std::string take() { return std::move(bytes_); }

 private:
  std::string bytes_;
};

// Reads what Encoder wrote. Past the end, or on nonsense, it yields zeros and ok() is false from then on.
class Decoder {
 public:
  explicit Decoder(std::string_view bytes) : rest_(bytes) {}

  template <class T>
  T number() {
    static_assert(std::is_integral_v<T>);
    const std::string_view bytes = raw(sizeof(T));
    std::make_unsigned_t<T> value = 0;
    for (std::size_t i = 0; i < bytes.size(); ++i) {
      value = static_cast<std::make_unsigned_t<T>>(
          value | static_cast<std::make_unsigned_t<T>>(static_cast<unsigned char>(bytes[i])) << (8 * i));
    }
    return static_cast<T>(value);
  }
  std::string_view raw(std::size_t bytes);  // valid as long as the bytes given to the constructor
  std::string_view text() { return raw(number<std::uint32_t>()); }
  std::vector<int> ranks(std::size_t atMost);
  // The bytes of such a list, which may be none.
  std::string_view ranksAsSent();
  std::string_view rest() const { return rest_; }
  bool ok() const { return ok_; }
  bool done() const { return ok_ && rest_.empty(); }

 private:
  std::string_view rest_;
  bool ok_ = true;
};

// The first byte of every frame.
enum class Frame : std::uint8_t {
  // rank -> hub
  // rank, ranks, version, pid, ms left to join, ms in all, processId, place, network stack, standby's name, address,
  // whether the user gave that, port, the hub's address for this rank, why there is no name or port, host
  kJoin = 1,
  kGather = 2,     // key, sequence, result heard last before an earlier hub was asked, index, timeoutMs, members, blob
  kWithdraw = 3,   // key, sequence, index
  kSubscribe = 4,  // family
  kUnsubscribe = 5,  // family
  kReport = 6,       // its number among this rank's, key, family, failure
  kLeave = 7,        // -
  kAsk = 8,          // key, number of the question, rank asked, question
  kAnswer = 9,       // rank that asked, number of the question, answer
  kDecline = 10,     // rank, ranks, pid, host, why: it will not join, though the others wait for it
  // rank, 1: it has left, processId, the hub's end in words, ranks that count, ranks that are gone, (kHasLeft...)...,
  // list of their farewells, list of what they knew of
  kReturn = 11,
  kResult = 12,  // of an earlier hub: key, sequence, number, code, message, members, first index, count, list of blobs
  kFinished = 13,        // -: that was all that a rank brings which returns
  kReadsBillboard = 14,  // what the billboard's file begins with: it has opened it (billboard.h)
  kRead = 15,            // number of the last frame on the billboard that it has read
  kVoted = 16,           // number of the vote: this rank takes those that it names for dead, with any hub
  kKeepsBillboard = 17,  // of its host, as kBillboard says
  kPosted = 18,          // number of a frame, whether it lies on the billboard that this rank keeps
  // hub -> rank
  kWelcome = 32,       // the hub's pid, host, the job's key, ranks that live in its process
  kRefused = 33,       // code, message
  kGathered = 34,      // key, sequence, number, settled, first index, count, list of blobs (text_list.h)
  kGatherFailed = 35,  // key, sequence, number (0: for this rank alone), settled, code, message
  kDeaths = 36,        // count, (rank, message)...
  kReported = 37,      // rank that reports, number among its reports, key, failure
  kLeft = 38,          // ranks that left in good order, list of their farewells
  kFarewell = 39,      // -
  kAsked = 40,         // key, rank that asks, number of the question, question
  kAnswered = 41,      // number of the question, rank that answers, answer
  kHostKnows = 42,     // the failure that a rank in the hub's process knows of
  kNeighbours = 43,    // ranks, list of (place, host, address, port, pid, standby's name) of the hub, and of each rank
  kReturned = 44,      // the new hub's pid, host, ranks that live in its process
  kWithdrawn = 45,     // key, sequence: what was sent before of this exchange answers an earlier part in it
  kBillboard = 46,     // pid of the process that has the billboard, the number of its file, what the file begins with
  kOnBillboard = 47,   // a frame on the billboard: number, place, bytes, key
  kCounting = 48,      // the ranks of which more than half have to be together where some are silent
  kCutOff = 49,        // why: not so many are, and this hub goes on with none
  kVote = 50,  // its number, ranks that are to count as dead, list of their farewells, list of what they knew of
  kKeepBillboard = 51,  // room: this rank is to keep a billboard for the ranks of its host
  kPost = 52,           // a frame as it is to lie there, in the next place
  kHubEnds = 53,        // -: and its process lives; all return to the next hub
};

constexpr std::size_t kFrameKinds = 54;

// Bits of kReturn, of a rank that is gone: in good order; longer ago than kConsequenceTime.
constexpr std::uint8_t kHasLeft = 1, kIsOld = 2;

// The fields that follow: numbers, in as many bytes as they have here, and texts.
template <class... Fields>
Encoder frame(Frame kind, const Fields&... fields) {
  Encoder encoder;
  const auto add = [&encoder](const auto& field) {
    if constexpr (std::is_integral_v<std::remove_cvref_t<decltype(field)>>) encoder.number(field);
    else encoder.text(field);
  };
  add(static_cast<std::uint8_t>(kind));
  (add(fields), ...);
  return encoder;
}

// "2, 5-7" of sorted, distinct ranks; long lists end in ", ... (N in all)".
std::string describeRanks(const std::vector<int>& ranks);
// "0.1.0"
std::string describeVersion(std::uint32_t code);

}  // namespace kolo::bootstrap
