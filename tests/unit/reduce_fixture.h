// One reduction set up for a test: buffers at chosen misalignments with guards around them, and a check of every byte.
#pragma once

#include <catch2/catch.hpp>
#include <cstdint>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "executor/host/reduce.h"
#include "reduce_oracle.h"

namespace kolo::test {

constexpr std::size_t kGuard = 128;
constexpr unsigned char kGuardByte = 0xa5;

// bytes of memory, `offset` past a multiple of 64, between guards.
class Buffer {
 public:
  Buffer(std::size_t bytes, std::size_t offset) : bytes_(bytes), storage_(bytes + 2 * kGuard + 128, kGuardByte) {
    const auto base = reinterpret_cast<std::uintptr_t>(storage_.data()) + kGuard;
    begin_ = kGuard + (64 - base % 64) % 64 + offset;
  }
  unsigned char* data() { return storage_.data() + begin_; }
  std::size_t bytes() const { return bytes_; }
  bool guardsIntact() const {
    for (std::size_t i = 0; i < storage_.size(); ++i) {
      if ((i < begin_ || i >= begin_ + bytes_) && storage_[i] != kGuardByte) return false;
    }
    return true;
  }

 private:
  std::size_t bytes_;
  std::vector<unsigned char> storage_;
  std::size_t begin_;
};

// Any bits for half of the elements, small numbers of both signs for the other half.
template <class T>
void fill(unsigned char* to, std::uint64_t count, std::mt19937& random) {
  for (std::uint64_t i = 0; i < count; ++i) {
    unsigned char bits[sizeof(T)];
    for (unsigned char& byte : bits) byte = static_cast<unsigned char>(random());
    const int small = static_cast<int>(random() % 17) - 8;
    T element;
    std::memcpy(&element, bits, sizeof(T));
    if (random() % 2 == 0) {
      if constexpr (device::kIsComplex<T>) {
        element = T{static_cast<decltype(T::re)>(small), static_cast<decltype(T::im)>(small / 2)};
      } else if constexpr (device::kIsNarrowFloat<T>) {
        element = oracle::close<T>(static_cast<float>(small) / 4);
      } else if constexpr (std::is_same_v<T, device::Bool>) {
        element.bits = small > 0 ? 1 : 0;
      } else {
        element = static_cast<T>(small);
      }
    }
    std::memcpy(to + i * sizeof(T), &element, sizeof(T));
  }
}

struct Setup {
  std::uint64_t count = 0;
  std::vector<std::size_t> sources = {0, 0};  // misalignments
  std::vector<std::size_t> destinations = {0};
  int inPlace = -1;  // the source that the first destination is
  int scaledSource = -1;
  std::uint32_t divisor = 1;
  std::vector<float> weights = {};  // by source; none: all 1
  float unit = 1;
  bool streaming = false;
  unsigned seed = 1;
};

inline std::string describe(const Setup& setup) {
  std::string text = "count " + std::to_string(setup.count) + " sources at";
  for (const std::size_t at : setup.sources) text += " " + std::to_string(at);
  text += ", destinations at";
  for (const std::size_t at : setup.destinations) text += " " + std::to_string(at);
  return text + ", in place " + std::to_string(setup.inPlace) + ", scaled " + std::to_string(setup.scaledSource) +
         ", divisor " + std::to_string(setup.divisor) + " of unit " + std::to_string(setup.unit) + ", " +
         std::to_string(setup.weights.size()) + " weights" + (setup.streaming ? ", streaming" : "");
}

// Runs what the setup says with reduce(args) and returns what is wrong with the outcome: empty if nothing is. If
// results is given, the bytes of the first destination are appended to it.
template <class T>
std::string faultOf(const Setup& setup, device::ReduceOp op,
                    const std::function<void(const device::ReduceArgs&)>& reduce,
                    std::vector<unsigned char>* results = nullptr) {
  const std::size_t bytes = setup.count * sizeof(T);
  std::mt19937 random(setup.seed);
  std::vector<std::unique_ptr<Buffer>> sources, destinations;
  std::vector<const void*> src;
  std::vector<void*> dst;
  for (const std::size_t offset : setup.sources) {
    sources.push_back(std::make_unique<Buffer>(bytes, offset));
    fill<T>(sources.back()->data(), setup.count, random);
    src.push_back(sources.back()->data());
  }
  for (const std::size_t offset : setup.destinations) {
    destinations.push_back(std::make_unique<Buffer>(bytes, offset));
    dst.push_back(destinations.back()->data());
  }
  if (setup.inPlace >= 0) dst[0] = sources[static_cast<std::size_t>(setup.inPlace)]->data();
  alignas(16) unsigned char scale[sizeof(T)];
  fill<T>(scale, 1, random);

  device::ReduceArgs args{.dst = dst.data(),
                          .dstCount = static_cast<int>(dst.size()),
                          .src = src.data(),
                          .srcCount = static_cast<int>(src.size()),
                          .count = setup.count,
                          .scale = scale,
                          .scaledSource = setup.scaledSource,
                          .divisor = setup.divisor,
                          .weights = setup.weights.empty() ? nullptr : setup.weights.data(),
                          .unit = setup.unit,
                          .streaming = setup.streaming};
  std::vector<T> wanted(setup.count);
  for (std::uint64_t i = 0; i < setup.count; ++i) wanted[i] = oracle::expected<T>(args, op, i);
  std::vector<std::vector<unsigned char>> before;
  for (const auto& source : sources) before.emplace_back(source->data(), source->data() + bytes);

  reduce(args);

  for (std::size_t d = 0; d < dst.size(); ++d) {
    for (std::uint64_t i = 0; i < setup.count; ++i) {
      if (!oracle::same(oracle::elementAt<T>(dst[d], i), wanted[i])) {
        return describe(setup) + ": element " + std::to_string(i) + " of destination " + std::to_string(d) +
               " is wrong";
      }
    }
  }
  for (std::size_t s = 0; s < sources.size(); ++s) {
    if (static_cast<int>(s) != setup.inPlace && bytes > 0 && std::memcmp(before[s].data(), src[s], bytes) != 0) {
      return describe(setup) + ": source " + std::to_string(s) + " was written";
    }
    if (!sources[s]->guardsIntact()) return describe(setup) + ": wrote around source " + std::to_string(s);
  }
  for (std::size_t d = 0; d < dst.size(); ++d) {
    if (!destinations[d]->guardsIntact()) return describe(setup) + ": wrote around destination " + std::to_string(d);
  }
  if (results != nullptr) {
    const auto* const first = static_cast<const unsigned char*>(dst[0]);
    results->insert(results->end(), first, first + bytes);
  }
  return {};
}

constexpr device::ReduceOp kOperations[] = {device::ReduceOp::kSum,        device::ReduceOp::kProd,
                                            device::ReduceOp::kMax,        device::ReduceOp::kMin,
                                            device::ReduceOp::kLogicalAnd, device::ReduceOp::kLogicalOr,
                                            device::ReduceOp::kLogicalXor, device::ReduceOp::kBitAnd,
                                            device::ReduceOp::kBitOr,      device::ReduceOp::kBitXor};

// Calls body(tag, datatype) for each datatype.
template <class Body>
void forEachDatatype(Body&& body) {
  for (int d = 0; d < koloNumDatatypes; ++d) {
    const auto datatype = static_cast<koloDataType_t>(d);
    device::dispatch(datatype, [&](auto tag) { body(tag, datatype); });
  }
}

inline std::vector<const executor::HostIsa*> isas() {
  int count = 0;
  const executor::HostIsa* const* const first = executor::availableIsas(&count);
  return {first, first + count};
}

}  // namespace kolo::test
