#include "failure/call_terms.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "links/blob.h"

namespace kolo::failure {
namespace {

using links::BlobReader;
using links::BlobWriter;

// In an answer, which is one message of the control plane, and is not to take the peer long.
constexpr std::size_t kMostHashes = 4096;

// FNV-1a over the keys.
std::uint64_t hashOf(const std::vector<Term>& terms) {
  std::uint64_t hash = terms.size();
  for (const Term& term : terms) hash = (hash ^ term.key) * 0x100000001b3u ^ hash >> 29;
  return hash;
}

// The numbers of parts, and the first part that differs.
struct Place {
  std::uint64_t theirParts = 0;
  std::uint64_t part = UINT64_MAX;  // none
};

bool findPlace(const Terms& own, const Ask& ask, Place& place) {
  std::uint64_t end = 1;
  for (std::uint64_t part = 0; part < end;) {
    const std::shared_ptr<const std::string> answer = ask(Asked::kHashes, part);
    if (answer == nullptr) return false;
    BlobReader reader(*answer);
    place.theirParts = reader.get<std::uint64_t>();
    const auto count = reader.get<std::uint64_t>();
    if (reader.truncated() || (count == 0 && place.theirParts > part)) return false;
    end = std::min<std::uint64_t>(place.theirParts, own.parts());
    for (std::uint64_t i = 0; i < count && part < end; ++i, ++part) {
      const auto hash = reader.get<std::uint64_t>();
      if (reader.truncated()) return false;
      if (hash == hashOf(own.of(part))) continue;
      place.part = part;
      return true;
    }
  }
  return true;
}

std::string differenceOf(const std::vector<Term>& own, int rank, int peer, const std::string& answer) {
  BlobReader reader(answer);
  const auto count = reader.get<std::uint64_t>();
  for (std::uint64_t i = 0; i < count && i < own.size() && !reader.truncated(); ++i) {
    const auto key = reader.get<std::uint64_t>();
    const std::string text = reader.getText();
    if (key == own[i].key || reader.truncated()) continue;
    const bool isFirst = rank < peer;  // so that both ranks say the same
    return fmt::format("rank {} gave {}, rank {} gave {}", isFirst ? rank : peer, isFirst ? own[i].text : text,
                       isFirst ? peer : rank, isFirst ? text : own[i].text);
  }
  return {};
}

}  // namespace

void CallTerms::note(std::uint64_t number, std::shared_ptr<const Terms> terms) {
  Entry& entry = entries_[number % entries_.size()];
  const std::lock_guard lock(mutex_);
  entry.number = number;
  entry.terms.swap(terms);
}

std::shared_ptr<const Terms> CallTerms::of(std::uint64_t number) const {
  const Entry& entry = entries_[number % entries_.size()];
  const std::lock_guard lock(mutex_);
  return entry.number == number ? entry.terms : nullptr;
}

std::string answerOf(const Terms* terms, Asked asked, std::uint64_t part) {
  BlobWriter writer;
  if (terms == nullptr) return {};
  if (asked == Asked::kHashes) {
    const std::uint64_t parts = terms->parts();
    const std::uint64_t count = std::min<std::uint64_t>(parts - std::min(part, parts), kMostHashes);
    writer.put(parts).put(count);
    for (std::uint64_t i = part; i < part + count; ++i) writer.put(hashOf(terms->of(i)));
  } else if (part < terms->parts()) {
    const std::vector<Term> words = terms->of(part);
    writer.put(std::uint64_t{words.size()});
    for (const Term& term : words) writer.put(term.key).putText(term.text);
  }
  return writer.text();
}

std::string firstDifference(const Terms& own, int rank, int peer, const Ask& ask) {
  Place place;
  if (!findPlace(own, ask, place)) return {};
  std::string text;
  if (place.theirParts != own.parts()) {
    const bool isFirst = rank < peer;
    text = fmt::format("rank {} gave {} items, rank {} gave {}", isFirst ? rank : peer,
                       isFirst ? own.parts() : place.theirParts, isFirst ? peer : rank,
                       isFirst ? place.theirParts : own.parts());
  }
  if (place.part == UINT64_MAX) return text;
  const std::shared_ptr<const std::string> answer = ask(Asked::kPart, place.part);
  const std::string words = answer == nullptr ? std::string() : differenceOf(own.of(place.part), rank, peer, *answer);
  if (words.empty()) return text;
  return fmt::format("{}{}item {}: {}", text, text.empty() ? "" : "; ", place.part, words);
}

}  // namespace kolo::failure
