#include "parser.h"

#include <algorithm>
#include <atomic>
#include <cstring>

#include "crc32c.h"

namespace kolo::tcp {

Parser::Parser(const Memories& memories, const Direction& direction) : memories_(&memories), seal_(direction) {
  if (seal_.encrypts()) piece_ = std::make_unique<unsigned char[]>(Seal::kPiece + Seal::kTag);
}

const char* Parser::feed(const unsigned char* bytes, std::size_t count) {
  while (count > 0) {
    if (left_ > 0) {
      const char* wrong = nullptr;
      const std::size_t step = seal_.encrypts() ? takeSealed(bytes, count, &wrong) : takePlain(bytes, count, &wrong);
      if (wrong != nullptr) return wrong;
      bytes += step;
      count -= step;
      continue;
    }
    const std::size_t step = std::min(count, sizeof header_ - have_);
    std::memcpy(header_ + have_, bytes, step);
    bytes += step;
    count -= step;
    have_ += step;
    if (have_ < sizeof header_) return nullptr;
    if (const char* const wrong = takeHeader(); wrong != nullptr) return wrong;
  }
  return nullptr;
}

// How many bytes of the payload it took.
std::size_t Parser::takePlain(const unsigned char* bytes, std::size_t count, const char** wrong) {
  const std::size_t step = std::min(count, left_);
  if (!isForgotten_) std::memcpy(to_, bytes, step);
  *wrong = filled(step);
  return step;
}

// A piece that has come whole is decrypted from where it stands.
std::size_t Parser::takeSealed(const unsigned char* bytes, std::size_t count, const char** wrong) {
  const std::size_t piece = std::min(left_, Seal::kPiece);
  const std::size_t step = std::min(count, piece + Seal::kTag - have_);
  const unsigned char* sealed = bytes;
  if (step < piece + Seal::kTag) {
    std::memcpy(piece_.get() + have_, bytes, step);
    have_ += step;
    if (have_ < piece + Seal::kTag) return step;
    sealed = piece_.get();
    have_ = 0;
  }
  if (!isForgotten_ && !seal_.open(sealed, piece, to_)) {
    *wrong = "has a payload that was altered on the way: KOLO_ENCRYPT=1 found that out";
    return step;
  }
  *wrong = filled(piece);
  return step;
}

const char* Parser::filled(std::size_t count) {
  if ((frame_.flags & Frame::kPayloadChecked) != 0 && !isForgotten_) crc_ = crc32c(crc_, to_, count);
  to_ += count;
  left_ -= count;
  return left_ == 0 ? finish() : nullptr;
}

const char* Parser::takeHeader() {
  std::memcpy(&frame_, header_, sizeof frame_);
  have_ = 0;
  if (frame_.mark != Frame::kMark || (frame_.flags & ~Frame::kAllFlags) != 0) return "does not begin as a frame does";
  if (frame_.tag != seal_.tag(frame_, next_))
    return "is not its next one: it was altered, left out or repeated on the way";
  ++next_;
  if (frame_.bytes > 0) {
    const Memories::Range* const memory = memories_->find(frame_.memory);
    if (memory == nullptr) return "goes to memory that is not registered, or no longer";
    to_ = memory->at(frame_.offset, frame_.bytes);
    if (to_ == nullptr) return "goes outside of the memory that it names";
  }
  left_ = frame_.bytes;
  crc_ = 0;
  return left_ == 0 ? finish() : nullptr;
}

void Parser::forget(std::uint64_t memory) { isForgotten_ = isForgotten_ || (left_ != 0 && frame_.memory == memory); }

const char* Parser::finish() {
  if (isForgotten_) return "went to memory that was deregistered meanwhile";
  if ((frame_.flags & Frame::kPayloadChecked) != 0 && crc_ != frame_.payloadCrc) {
    return "has a payload with a wrong checksum: it was altered on the way, or by the sender before it was over";
  }
  if ((frame_.flags & Frame::kSignals) == 0) return nullptr;
  const Memories::Range* const memory = memories_->find(frame_.signalMemory);
  if (memory == nullptr) return "signals into memory that is not registered, or no longer";
  unsigned char* const at = memory->at(frame_.signalOffset, sizeof frame_.signal);
  if (at == nullptr) return "signals outside of the memory that it names";
  if (reinterpret_cast<std::uintptr_t>(at) % sizeof frame_.signal != 0) return "signals to a word that is not aligned";
  // [tcp signal]: publishes the payloads before it. Pairs with the acquire load by which the core waits for the word.
  std::atomic_ref<std::uint64_t>(*reinterpret_cast<std::uint64_t*>(at)).store(frame_.signal, std::memory_order_release);
  return nullptr;
}

}  // namespace kolo::tcp
