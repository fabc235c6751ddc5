// Lists of texts of which most resemble the one before.
#include "bootstrap/text_list.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <optional>
#include <random>

#include "support/seed.h"

using namespace kolo::bootstrap;

namespace {

std::string written(const std::vector<std::string>& texts) {
  TextList list;
  for (const std::string& text : texts) list.add(text);
  return list.take();
}

// Nothing: the bytes are no such list.
std::optional<std::vector<std::string>> readList(std::string_view bytes, std::size_t count) {
  std::vector<std::string> texts(count);
  Decoder decoder(bytes);
  return readTexts(decoder, texts) && decoder.done() ? std::optional(texts) : std::nullopt;
}

std::string randomText(std::mt19937_64& random, std::size_t bytes) {
  std::string text(bytes, '\0');
  for (char& byte : text) byte = static_cast<char>(random());
  return text;
}

// Of a few texts, each one as it is, or altered in some places.
std::vector<std::string> randomTexts(std::mt19937_64& random) {
  std::vector<std::string> texts;
  std::string text = randomText(random, random() % 300);
  for (std::size_t left = random() % 40; left > 0; --left) {
    if (random() % 8 == 0) text = randomText(random, random() % 4 == 0 ? random() % 200'000 : random() % 300);
    for (std::size_t changes = random() % 4; changes > 0 && !text.empty(); --changes)
      text[random() % text.size()] = static_cast<char>(random());
    if (random() % 8 == 0) text.resize(random() % (2 * text.size() + 1));
    texts.push_back(text);
  }
  return texts;
}

}  // namespace

TEST_CASE("a list that makes longer texts than its reader expects is none", "[bootstrap]") {
  const std::string list = written(std::vector<std::string>(1000, std::string(301, 'x')));
  std::vector<std::string> texts(1000);
  Decoder longer(list), fitting(list);
  CHECK_FALSE(readTexts(longer, texts, 300));
  CHECK(texts.front().empty());
  CHECK(readTexts(fitting, texts, 301));
}

TEST_CASE("equal texts of a list are written once, and of others what differs", "[bootstrap]") {
  const std::string text(700, 'x');
  CHECK(written(std::vector<std::string>(100'000, text)).size() < text.size() + 20);
  std::vector<std::string> texts;
  for (char mark = 'a'; mark <= 'z'; ++mark) texts.push_back(text.substr(1) + mark);
  CHECK(written(texts).size() < text.size() + 26 * 20);
  CHECK(readList(written(texts), texts.size()) == texts);
  // What is longer than a text may be that is made from another one.
  const std::vector<std::string> longs(3, std::string(kMostSharedBytes + 1, 'x'));
  CHECK(written(longs).size() > 3 * kMostSharedBytes);
  CHECK(readList(written(longs), 3) == longs);
}

TEST_CASE("a list of texts is read as it was written, and one that was altered within its bounds or not at all",
          "[bootstrap][lies][fuzz]") {
  for (kolo::test::Rounds rounds(1470); rounds.next();) {
    std::mt19937_64 random(rounds.seed());
    const std::vector<std::string> texts = randomTexts(random);
    std::string bytes = written(texts);
    REQUIRE(readList(bytes, texts.size()) == texts);
    CHECK_FALSE(readList(bytes, texts.size() + 1).has_value());
    if (bytes.empty()) continue;
    for (std::size_t changes = 1 + random() % 4; changes > 0; --changes)
      bytes[random() % bytes.size()] = static_cast<char>(random());
    if (random() % 4 == 0) bytes.resize(random() % bytes.size());
    const auto altered = readList(bytes, texts.size());
    if (!altered.has_value()) continue;
    std::size_t most = 0;
    for (const std::string& text : *altered) most = std::max(most, text.size());
    CHECK(most <= std::max(bytes.size(), kMostSharedBytes));
  }
}

TEST_CASE("a list of texts says nothing beyond the text before, and repeats no long one", "[bootstrap][lies]") {
  const auto one = [](std::uint32_t repeats, std::uint32_t size, std::uint16_t same, std::string_view other) {
    return Encoder()
        .number(repeats)
        .number(size)
        .number(same)
        .number(static_cast<std::uint16_t>(other.size()))
        .raw(other)
        .take();
  };
  const std::string first = one(1, 3, 0, "abc");
  CHECK(readList(first + one(1, 3, 2, "d"), 2) == std::vector<std::string>{"abc", "abd"});
  CHECK_FALSE(readList(first + one(1, 4, 4, ""), 2).has_value());
  CHECK_FALSE(readList(one(1, 1, 1, ""), 1).has_value());
  CHECK_FALSE(readList(one(0, 3, 0, "abc"), 1).has_value());
  CHECK_FALSE(readList(one(2, 3, 0, "abc"), 1).has_value());
  CHECK_FALSE(readList(one(1, 3, 0, ""), 1).has_value());
  CHECK_FALSE(readList(one(1, 2, 0, "abc"), 1).has_value());
  CHECK_FALSE(readList(one(1, kMaxBlobBytes + 1, 0, "abc"), 1).has_value());
  const std::string piece = one(0, 0, 0, std::string(30'000, 'x')).substr(2 * sizeof(std::uint32_t));
  const auto head = [](std::uint32_t repeats) {
    return Encoder().number(repeats).number(std::uint32_t{90'000}).take();
  };
  CHECK(readList(head(1) + piece + piece + piece, 1).has_value());
  CHECK_FALSE(readList(head(2) + piece + piece + piece, 2).has_value());
}
