// Plain values in and out of the small blobs that ranks exchange out of band. Both ends are the same version of the
// library (the bootstrap has checked that), on machines of one byte order.
#pragma once

#include <kolo/transport.h>

#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>

#include "base/status.h"

namespace kolo::links {

class BlobWriter {
 public:
  // A text, a status, or the bytes of a plain value.
  template <class T>
  BlobWriter& put(const T& value) {
    if constexpr (std::is_same_v<T, std::string>) {
      return putText(value);
    } else if constexpr (std::is_same_v<T, Status>) {
      return put(static_cast<std::int32_t>(value.code())).putText(value.message());
    } else {
      static_assert(std::is_trivially_copyable_v<T>);
      text_.append(reinterpret_cast<const char*>(&value), sizeof value);
      return *this;
    }
  }
  BlobWriter& putText(std::string_view text) {
    put(static_cast<std::uint32_t>(text.size()));
    text_.append(text);
    return *this;
  }
  // Of a transport's blob, what it holds. REQUIRES: blob.bytes <= KOLO_TRANSPORT_BLOB_BYTES
  BlobWriter& putBlob(const koloTransportBlob& blob) {
    return putText({reinterpret_cast<const char*>(blob.data), blob.bytes});
  }
  const std::string& text() const { return text_; }

 private:
  std::string text_;
};

// Reads past the end give zeros and set truncated().
class BlobReader {
 public:
  explicit BlobReader(std::string_view text) : text_(text) {}
  template <class T>
  T get() {
    if constexpr (std::is_same_v<T, std::string>) {
      return getText();
    } else if constexpr (std::is_same_v<T, Status>) {
      const auto code = get<std::int32_t>();
      const std::string reason = getText();
      return code == koloSuccess ? Status() : Status(failureCode(code), reason);
    } else {
      static_assert(std::is_trivially_copyable_v<T>);
      T value{};
      truncated_ = truncated_ || text_.size() < sizeof value;
      if (text_.size() < sizeof value) return value;
      std::memcpy(&value, text_.data(), sizeof value);
      text_.remove_prefix(sizeof value);
      return value;
    }
  }
  std::string getText() {
    const auto size = get<std::uint32_t>();
    if (text_.size() < size) {
      truncated_ = true;
      return {};
    }
    std::string result(text_.substr(0, size));
    text_.remove_prefix(size);
    return result;
  }
  koloTransportBlob getBlob() {
    const std::string data = getText();
    koloTransportBlob blob{};
    if (data.size() > sizeof blob.data) {
      truncated_ = true;
      return blob;
    }
    blob.bytes = static_cast<std::uint32_t>(data.size());
    std::memcpy(blob.data, data.data(), data.size());
    return blob;
  }
  // What has not been read.
  std::string_view rest() const { return text_; }
  bool truncated() const { return truncated_; }

 private:
  std::string_view text_;
  bool truncated_ = false;
};

// Of a struct whose function fields(value) gives its fields in order, as a tuple of references.
template <class T>
std::string encode(const T& value) {
  BlobWriter writer;
  std::apply([&](const auto&... fields) { (writer.put(fields), ...); }, T::fields(value));
  return writer.text();
}
template <class T>
T decode(std::string_view text) {
  BlobReader reader(text);
  T value;
  std::apply([&](auto&... fields) { ((fields = reader.get<std::remove_cvref_t<decltype(fields)>>()), ...); },
             T::fields(value));
  return value;
}

}  // namespace kolo::links
