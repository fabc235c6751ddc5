// Lists of items and arrays with strides: random ones against the definition in kolo.h, element by element, on every
// executor and over posted links. What is reduced are small whole numbers, which every datatype holds exactly, as it
// does their sums. What is moved may be numbers that conversions round.

#include "lists.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <catch2/catch.hpp>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "batch.h"

namespace kolo::tests {

double decodeAny(koloDataType_t datatype, const std::uint8_t* at) {
  const auto load = [&](auto value) {
    std::memcpy(&value, at, sizeof value);
    return static_cast<double>(value);
  };
  switch (datatype) {
    case koloInt8: return load(std::int8_t{});
    case koloBool:
    case koloUint8: return load(std::uint8_t{});
    case koloInt16: return load(std::int16_t{});
    case koloUint16: return load(std::uint16_t{});
    case koloInt32: return load(std::int32_t{});
    case koloUint32: return load(std::uint32_t{});
    case koloInt64: return load(std::int64_t{});
    case koloUint64: return load(std::uint64_t{});
    default: return decode(datatype, at);
  }
}

void encodeAny(koloDataType_t datatype, double value, std::uint8_t* at) {
  const auto whole = static_cast<std::int64_t>(value);
  if (isFloating(datatype)) {
    encode(datatype, value, at);
    if (koloDataTypeSize(datatype) > partBytes(datatype)) encode(datatype, 0, at + partBytes(datatype));
  } else {
    std::memcpy(at, &whole, koloDataTypeSize(datatype));
  }
}

namespace {

// Places along up to four dimensions, 0 along those that an array does not have.
using Index = std::array<std::size_t, 4>;

// An array in a rank's window. Strides are in elements, and the offset, in bytes, is that of element 0.
struct Tensor {
  koloDataType_t datatype = koloFloat32;
  std::vector<std::size_t> shape;
  std::vector<std::ptrdiff_t> strides;
  std::size_t offset = 0;

  std::size_t elements() const {
    return std::accumulate(shape.begin(), shape.end(), std::size_t{1}, std::multiplies<>());
  }
  // Where the element with these indices is.
  std::size_t place(const Index& index) const {
    std::ptrdiff_t at = 0;
    for (std::size_t d = 0; d < shape.size(); ++d) at += static_cast<std::ptrdiff_t>(index[d]) * strides[d];
    return offset + static_cast<std::size_t>(at * static_cast<std::ptrdiff_t>(koloDataTypeSize(datatype)));
  }
  // Behind the last byte; 0 if there is none.
  std::size_t end() const {
    if (elements() == 0) return 0;
    Index last{};
    for (std::size_t d = 0; d < shape.size(); ++d) last[d] = strides[d] > 0 ? shape[d] - 1 : 0;
    return place(last) + koloDataTypeSize(datatype);
  }
  // Calls visit(index) in row-major order.
  template <class Visit>
  void each(const Visit& visit) const {
    Index index{};
    for (std::size_t left = elements(); left > 0; --left) {
      visit(index);
      for (std::size_t d = shape.size(); d-- > 0 && ++index[d] == shape[d];) index[d] = 0;
    }
  }
};

// kRepeated: along some dimensions, all elements lie at one place.
enum class Style { kFlat, kRowMajor, kTransposed, kPadded, kReversed, kRepeated };

// Puts tensors one behind the other into a window.
class Placing {
 public:
  explicit Placing(Random& random) : random_(random) {}

  std::size_t end() const { return end_; }

  Tensor put(koloDataType_t datatype, const std::vector<std::size_t>& shape, Style style) {
    Tensor tensor{datatype, shape, std::vector<std::ptrdiff_t>(shape.size()), 0};
    std::vector<std::size_t> order(shape.size());  // of the dimensions, the fastest first
    std::iota(order.rbegin(), order.rend(), std::size_t{0});
    if (style == Style::kTransposed) std::shuffle(order.begin(), order.end(), random_);
    std::ptrdiff_t stride = style == Style::kPadded ? static_cast<std::ptrdiff_t>(pick(random_, 1, 3)) : 1;
    std::ptrdiff_t before = 0;
    for (const std::size_t d : order) {
      const bool reverses = style == Style::kReversed && pick(random_, 0, 1) == 1;
      if (style == Style::kRepeated && pick(random_, 0, 1) == 1) continue;
      const auto reach = stride * static_cast<std::ptrdiff_t>(std::max<std::size_t>(shape[d], 1) - 1);
      tensor.strides[d] = reverses ? -stride : stride;
      if (reverses) before += reach;
      stride *= static_cast<std::ptrdiff_t>(std::max<std::size_t>(shape[d], 1));
      if (style == Style::kPadded) stride += static_cast<std::ptrdiff_t>(pick(random_, 0, 5));
    }
    const std::size_t size = koloDataTypeSize(datatype);
    const bool isAligned = pick(random_, 0, 3) != 0;
    end_ = isAligned ? (end_ + 63) / 64 * 64 : end_ + pick(random_, 1, 9);
    tensor.offset = end_ + static_cast<std::size_t>(before) * size;
    end_ += static_cast<std::size_t>(stride) * size;
    return tensor;
  }

 private:
  Random& random_;
  std::size_t end_ = 64;
};

struct Types {
  koloDataType_t send, transfer, recv;
};

// An item on all ranks: its shape as a whole and the lengths of the ranks' parts along the axis.
struct ListItem {
  Types types{};
  std::vector<std::size_t> whole;
  int axis = 0;
  bool isFlat = false;
  bool hasCounts = false;
  bool isRough = false;  // conversions round its values
  std::vector<std::size_t> parts;
  float scale = 1;
  std::vector<Tensor> send, recv;  // by rank
  std::vector<bool> inPlace;       // by rank
};

constexpr std::size_t kBehind = 16;  // bytes behind the last item that nobody may write

// A reduction that the test makes: a sum of what each rank has multiplied, or a sum by a function.
enum class Custom { kNone, kPreMulSum, kFunction };

// How a collective is called.
enum class Form { kAtOnce, kStream, kRequest, kGroup, kGroupRequest };

struct ListCase {
  Form form = Form::kAtOnce;
  koloCollective_t collective = koloCollectiveAllReduce;
  koloRedOp_t op = koloSum;  // of a reduction that the test makes: its handle, on one rank
  Custom custom = Custom::kNone;
  bool isCommutative = true;  // of a function
  int root = 0;
  std::vector<ListItem> items;
  std::string algorithm;
};

bool sendsWhole(koloCollective_t c) {
  return c == koloCollectiveReduceScatter || c == koloCollectiveScatter || c == koloCollectiveAllToAll;
}
bool receivesWhole(koloCollective_t c) {
  return c == koloCollectiveAllGather || c == koloCollectiveGather || c == koloCollectiveAllToAll;
}
bool isDivided(koloCollective_t c) { return sendsWhole(c) || receivesWhole(c); }
bool reduces(koloCollective_t c) {
  return c == koloCollectiveAllReduce || c == koloCollectiveReduce || c == koloCollectiveReduceScatter;
}
bool hasSend(const ListCase& c, int rank) {
  return rank == c.root || (c.collective != koloCollectiveBroadcast && c.collective != koloCollectiveScatter);
}
bool hasRecv(const ListCase& c, int rank) {
  return rank == c.root || (c.collective != koloCollectiveReduce && c.collective != koloCollectiveGather);
}

// The same for indices whose elements lie at one place.
std::size_t linearOf(const Tensor& tensor, const Index& index) {
  std::size_t linear = 0;
  for (std::size_t d = 0; d < tensor.shape.size(); ++d)
    linear = linear * tensor.shape[d] + (tensor.strides[d] == 0 ? 0 : index[d]);
  return linear;
}

// What rank `rank` gives at an index of an item's array, which is of the rank alone where blocks are received.
double given(const ListItem& item, int rank, std::size_t number, const Index& index) {
  const std::size_t linear = linearOf(item.send[static_cast<std::size_t>(rank)], index);
  const std::size_t mixed = static_cast<std::size_t>(rank) * 3 + number * 5 + linear * 7;
  return item.isRough ? static_cast<double>(mixed % 89) * 0.173 - 5.1 : static_cast<double>(mixed % 4);
}

// What a rank multiplies its input by.
double factorOf(const ListCase& list, int rank) {
  return list.custom == Custom::kPreMulSum ? static_cast<double>(1 + rank % 2) : 1;
}

float rounded(koloDataType_t datatype, float value) {
  std::uint8_t bytes[16] = {};
  encodeAny(datatype, static_cast<double>(value), bytes);
  return static_cast<float>(decodeAny(datatype, bytes));
}

// What becomes of a value that is moved.
double moved(const ListItem& item, double value) {
  if (!item.isRough) return value;
  const auto [send, transfer, recv] = item.types;
  float now = rounded(send, static_cast<float>(value));
  if (send != transfer) now = rounded(transfer, now * item.scale);
  return static_cast<double>(transfer != recv ? now * (1 / item.scale) : now);
}

Types randomTypes(Random& random, koloCollective_t collective) {
  constexpr koloDataType_t kFloats[] = {koloFloat32, koloBfloat16, koloFloat16, koloFloat8e4m3, koloFloat8e5m2};
  const auto any = [&] { return kFloats[pick(random, 0, reduces(collective) ? 3 : 4)]; };
  if (pick(random, 0, 2) == 0) return {any(), any(), any()};
  for (;;) {
    const auto one = static_cast<koloDataType_t>(pick(random, 0, koloNumDatatypes - 1));
    // Sums of up to 15 are exact in all but float8 e5m2 and bool.
    if (!reduces(collective) || (one != koloBool && one != koloFloat8e5m2)) return {one, one, one};
  }
}

// lengths of a dimension: short ones, zero now and then, and long ones in flat items.
ListItem randomItem(Random& random, const ListCase& list, int ranks) {
  ListItem item;
  item.types = randomTypes(random, list.collective);
  item.isFlat = pick(random, 0, 1) == 0;
  const std::size_t dimensions = item.isFlat ? 1 : pick(random, 1, 4);
  for (std::size_t d = 0; d < dimensions; ++d) item.whole.push_back(pick(random, 1, 7));
  if (item.isFlat) item.whole[0] = pick(random, 0, 3) == 0 ? pick(random, 0, 9000) : pick(random, 0, 40);
  if (!item.isFlat && pick(random, 0, 3) == 0) item.whole.back() = pick(random, 20, 300);
  item.axis = static_cast<int>(pick(random, 0, dimensions - 1));
  const auto n = static_cast<std::size_t>(ranks);
  item.hasCounts = list.collective != koloCollectiveAllToAll && isDivided(list.collective) && pick(random, 0, 1) == 0;
  std::size_t& length = item.whole[static_cast<std::size_t>(item.axis)];
  if (item.hasCounts) {
    for (std::size_t i = 0; i < n; ++i) item.parts.push_back(pick(random, 0, 2) == 0 ? 0 : pick(random, 0, length));
    length = std::accumulate(item.parts.begin(), item.parts.end(), std::size_t{0});
  } else if (isDivided(list.collective)) {
    item.parts.assign(n, length);
    length *= n;
  }
  const bool isConverted = item.types.send != item.types.transfer || item.types.transfer != item.types.recv;
  item.isRough = isConverted && !reduces(list.collective) && pick(random, 0, 1) == 0;
  constexpr float kScales[] = {0.5F, 3, 0.1F};
  if (pick(random, 0, 2) == 0 && item.types.send != item.types.transfer && item.types.transfer != item.types.recv)
    item.scale = kScales[item.isRough ? pick(random, 0, 2) : 0];
  return item;
}

// A rank's own block of an array.
Tensor partOf(const Tensor& whole, const ListItem& item, int rank) {
  Tensor part = whole;
  const auto axis = static_cast<std::size_t>(item.axis);
  const auto own = static_cast<std::size_t>(rank);
  std::size_t before = 0;
  for (std::size_t i = 0; i < own; ++i) before += item.parts[i];
  part.shape[axis] = item.parts[own];
  part.offset += static_cast<std::size_t>(static_cast<std::ptrdiff_t>(before) * whole.strides[axis] *
                                          static_cast<std::ptrdiff_t>(koloDataTypeSize(whole.datatype)));
  return part;
}

// Returns how many bytes of a window the items need at most.
std::size_t placeItems(Random& random, ListCase& list, int ranks) {
  std::size_t most = 0;
  for (ListItem& item : list.items) item.send.clear(), item.recv.clear(), item.inPlace.clear();
  for (int rank = 0; rank < ranks; ++rank) {
    Placing placing(random);
    for (ListItem& item : list.items) {
      std::vector<std::size_t> part = item.whole;
      if (isDivided(list.collective))
        part[static_cast<std::size_t>(item.axis)] = item.parts[static_cast<std::size_t>(rank)];
      const auto style = [&] { return item.isFlat ? Style::kFlat : static_cast<Style>(pick(random, 1, 4)); };
      const bool sends = sendsWhole(list.collective), receives = receivesWhole(list.collective);
      const Style read = !item.isFlat && pick(random, 0, 5) == 0 ? Style::kRepeated : style();
      item.send.push_back(placing.put(item.types.send, sends ? item.whole : part, read));
      item.recv.push_back(placing.put(item.types.recv, receives ? item.whole : part, style()));
      item.inPlace.push_back(item.types.send == item.types.recv && hasSend(list, rank) && hasRecv(list, rank) &&
                             read != Style::kRepeated && pick(random, 0, 3) == 0);
      if (!item.inPlace.back()) continue;
      if (receives) item.send.back() = sends ? item.recv.back() : partOf(item.recv.back(), item, rank);
      else item.recv.back() = sends ? partOf(item.send.back(), item, rank) : item.send.back();
    }
    most = std::max(most, placing.end());
  }
  return most;
}

// Of the whole's index, whose part it is, and the index there.
int ownerOf(const ListItem& item, Index& index) {
  std::size_t& at = index[static_cast<std::size_t>(item.axis)];
  int rank = 0;
  while (at >= item.parts[static_cast<std::size_t>(rank)]) at -= item.parts[static_cast<std::size_t>(rank++)];
  return rank;
}

// What a rank is to find at an index of what it receives.
double expected(const ListCase& list, std::size_t number, int ranks, int rank, const Index& index) {
  const ListItem& item = list.items[number];
  Index at = index;
  const auto from = [&](int giver, const Index& place) {
    return given(item, giver, number, place) * factorOf(list, giver);
  };
  const auto offsetOf = [&](int owner) {
    std::size_t offset = 0;
    for (int i = 0; i < owner; ++i) offset += item.parts[static_cast<std::size_t>(i)];
    return offset;
  };
  const auto axis = static_cast<std::size_t>(item.axis);
  if (sendsWhole(list.collective) && !receivesWhole(list.collective)) at[axis] += offsetOf(rank);
  if (reduces(list.collective)) {
    double result = from(0, at);
    for (int giver = 1; giver < ranks; ++giver) {
      const double value = from(giver, at);
      switch (list.op) {
        case koloMax: result = std::max(result, value); break;
        case koloMin: result = std::min(result, value); break;
        default: result += value; break;
      }
    }
    if (list.op == koloLogicalOr) return result != 0 ? 1 : 0;
    return list.op == koloAvg ? result / ranks : result;
  }
  if (list.collective == koloCollectiveBroadcast || list.collective == koloCollectiveScatter)
    return moved(item, from(list.root, at));
  const int giver = ownerOf(item, at);
  if (list.collective == koloCollectiveAllToAll) at[axis] += offsetOf(rank);
  return moved(item, from(giver, at));
}

koloResult_t call(const ListCase& list, const std::vector<koloItem_t>& items, koloComm_t comm, koloStream_t stream) {
  const std::size_t n = items.size();
  switch (list.collective) {
    case koloCollectiveAllReduce: return koloAllReduceList(items.data(), n, list.op, comm, stream);
    case koloCollectiveReduce: return koloReduceList(items.data(), n, list.op, list.root, comm, stream);
    case koloCollectiveBroadcast: return koloBroadcastList(items.data(), n, list.root, comm, stream);
    case koloCollectiveAllGather: return koloAllGatherList(items.data(), n, comm, stream);
    case koloCollectiveReduceScatter: return koloReduceScatterList(items.data(), n, list.op, comm, stream);
    case koloCollectiveGather: return koloGatherList(items.data(), n, list.root, comm, stream);
    case koloCollectiveScatter: return koloScatterList(items.data(), n, list.root, comm, stream);
    default: return koloAllToAllList(items.data(), n, comm, stream);
  }
}

// As a request: a group of this operation alone.
koloResult_t start(const ListCase& list, const std::vector<koloItem_t>& items, koloComm_t comm, koloRequest_t* place) {
  koloResult_t result = koloGroupStart();
  if (result == koloSuccess) (void)call(list, items, comm, nullptr);  // a refusal is what the end of the group returns
  return result == koloSuccess ? koloIgroupEnd(place) : result;
}

koloResult_t finish(koloRequest_t request) {
  const koloResult_t result = koloRequestWait(request, -1);
  const koloResult_t freed = koloRequestFree(request);
  return result != koloSuccess ? result : freed;
}

// In a group with another operation, and by one that ends as a request.
koloResult_t callInGroup(const ListCase& list, const std::vector<koloItem_t>& items, koloComm_t comm) {
  int mine = 1, sum = 0, ranks = 0;
  koloResult_t result = koloCommCount(comm, &ranks);
  if (result == koloSuccess) result = koloGroupStart();
  if (result == koloSuccess) result = call(list, items, comm, nullptr);
  if (result == koloSuccess) result = koloAllReduce(&mine, &sum, 1, koloInt32, koloSum, comm, nullptr);
  if (result == koloSuccess && list.form == Form::kGroup) result = koloGroupEnd();
  if (result == koloSuccess && list.form == Form::kGroupRequest) {
    koloRequest_t request = nullptr;
    result = koloIgroupEnd(&request);
    if (result == koloSuccess) result = finish(request);
  }
  if (result == koloSuccess && sum != ranks) result = koloInternalError;
  return result;
}

koloResult_t callInForm(const ListCase& list, const std::vector<koloItem_t>& items, koloComm_t comm,
                        koloStream_t worlds) {
  if (list.form == Form::kAtOnce) return call(list, items, comm, worlds);
  if (list.form == Form::kGroup || list.form == Form::kGroupRequest) return callInGroup(list, items, comm);
  if (list.form == Form::kRequest) {
    koloRequest_t request = nullptr;
    const koloResult_t result = start(list, items, comm, &request);
    return result == koloSuccess ? finish(request) : result;
  }
  koloStream_t stream = nullptr;
  koloResult_t result = koloStreamCreate(&stream);
  if (result == koloSuccess) result = call(list, items, comm, stream);
  const koloResult_t ended = stream != nullptr ? koloStreamDestroy(stream) : koloSuccess;
  return result != koloSuccess ? result : ended;
}

void addAny(void* acc, const void* in, std::size_t count, koloDataType_t datatype, void*) {
  auto* sum = static_cast<std::uint8_t*>(acc);
  const auto* more = static_cast<const std::uint8_t*>(in);
  for (const std::size_t size = koloDataTypeSize(datatype); count > 0; --count, sum += size, more += size)
    encodeAny(datatype, decodeAny(datatype, sum) + decodeAny(datatype, more), sum);
}

// The case with the handle of one rank's reduction.
koloResult_t makeReduction(ListCase& list, int rank, koloComm_t comm) {
  if (list.custom == Custom::kNone) return koloSuccess;
  if (list.custom == Custom::kFunction)
    return koloRedOpCreate(&list.op, addAny, list.isCommutative ? 1 : 0, nullptr, comm);
  const koloDataType_t datatype = list.items.empty() ? koloFloat32 : list.items.front().types.transfer;
  std::uint8_t scalar[16] = {};
  encodeAny(datatype, factorOf(list, rank), scalar);
  return koloRedOpCreatePreMulSum(&list.op, scalar, datatype, koloScalarHostImmediate, comm);
}

// A rank's part: fills its window, calls, compares its whole window with what it is to be.
class ListRank {
 public:
  ListRank(World& world, const ListCase& list, int rank) : world_(world), list_(list), rank_(rank) {}

  std::string run() {
    unsigned char* const window = world_.window(rank_);
    const std::size_t used = fill(window);
    std::vector<unsigned char> wanted(window, window + used);
    expect(wanted);
    if (world_.isOnGpu()) test::upload(world_.device(), world_.deviceWindow(rank_), window, used);
    std::vector<koloArray_t> arrays(2 * list_.items.size());
    std::vector<koloItem_t> items;
    for (std::size_t i = 0; i < list_.items.size(); ++i) items.push_back(describe(i, &arrays[2 * i]));
    const koloComm_t comm = world_.comm(rank_);
    ListCase mine = list_;
    koloResult_t result = makeReduction(mine, rank_, comm);
    for (int turn = 0; turn < 2 && result == koloSuccess; ++turn) {  // the second time it is a repeat
      result = callInForm(mine, items, comm, world_.stream(rank_));
      world_.synchronize(rank_);
      if (isInPlaceSomewhere()) break;
    }
    if (result == koloSuccess && list_.custom != Custom::kNone) result = koloRedOpDestroy(mine.op, comm);
    if (result != koloSuccess) return std::string("rank ") + std::to_string(rank_) + ": " + koloGetLastError(nullptr);
    if (world_.isOnGpu()) test::download(world_.device(), window, world_.deviceWindow(rank_), used);
    for (std::size_t at = 0; at < used; ++at) {
      if (window[at] != wanted[at]) return difference(at, window, wanted);
    }
    return {};
  }

 private:
  // Then nobody may call again: an input is gone.
  bool isInPlaceSomewhere() const {
    return std::any_of(list_.items.begin(), list_.items.end(), [](const ListItem& item) {
      return std::any_of(item.inPlace.begin(), item.inPlace.end(), [](bool is) { return is; });
    });
  }
  const Tensor& send(std::size_t i) const { return list_.items[i].send[static_cast<std::size_t>(rank_)]; }
  const Tensor& recv(std::size_t i) const { return list_.items[i].recv[static_cast<std::size_t>(rank_)]; }

  std::size_t fill(unsigned char* window) const {
    std::size_t end = 0;
    for (std::size_t i = 0; i < list_.items.size(); ++i) {
      for (const Tensor* tensor : {&send(i), &recv(i)}) end = std::max(end, tensor->end() + kBehind);
    }
    for (std::size_t at = 0; at < end; ++at) window[at] = static_cast<unsigned char>(0xa0 + at % 31);
    for (std::size_t i = 0; i < list_.items.size(); ++i) {
      const Tensor& tensor = send(i);
      tensor.each([&](const auto& index) {
        encodeAny(tensor.datatype, given(list_.items[i], rank_, i, index), window + tensor.place(index));
      });
    }
    return end;
  }

  void expect(std::vector<unsigned char>& wanted) const {
    if (!hasRecv(list_, rank_)) return;
    for (std::size_t i = 0; i < list_.items.size(); ++i) {
      const Tensor& tensor = recv(i);
      tensor.each([&](const auto& index) {
        const double value = expected(list_, i, world_.ranks(), rank_, index);
        encodeAny(tensor.datatype, value, wanted.data() + tensor.place(index));
      });
    }
  }

  koloItem_t describe(std::size_t i, koloArray_t* arrays) const {
    const ListItem& item = list_.items[i];
    koloItem_t result{};
    unsigned char* const base = world_.isOnGpu() ? world_.deviceWindow(rank_) : world_.window(rank_);
    if (hasSend(list_, rank_)) result.sendbuf = base + send(i).offset;
    if (hasRecv(list_, rank_)) result.recvbuf = base + recv(i).offset;
    result.sendtype = item.types.send;
    result.transfertype = item.types.transfer;
    result.recvtype = item.types.recv;
    if (item.scale != 1) result.scale = &item.scale;
    if (item.hasCounts) result.counts = item.parts.data();
    if (item.isFlat) {
      result.count = item.parts.empty() ? item.whole[0] : item.parts[0];
      return result;
    }
    const auto array = [](const Tensor& tensor) {
      return koloArray_t{static_cast<int>(tensor.shape.size()), tensor.shape.data(), tensor.strides.data()};
    };
    arrays[0] = array(send(i));
    arrays[1] = array(recv(i));
    result.sendarray = &arrays[0];
    result.recvarray = &arrays[1];
    result.axis = item.axis;
    return result;
  }

  std::string difference(std::size_t at, const unsigned char* window, const std::vector<unsigned char>& wanted) const {
    for (std::size_t i = 0; i < list_.items.size(); ++i) {
      const Tensor& tensor = recv(i);
      std::string found;
      tensor.each([&](const auto& index) {
        const std::size_t place = tensor.place(index);
        if (!found.empty() || at < place || at >= place + koloDataTypeSize(tensor.datatype)) return;
        found =
            fmt::format("rank {}: item {} ({} -> {} -> {}), element {}: {} instead of {}", rank_, i,
                        koloDataTypeName(list_.items[i].types.send), koloDataTypeName(list_.items[i].types.transfer),
                        koloDataTypeName(tensor.datatype), linearOf(tensor, index),
                        decodeAny(tensor.datatype, window + place), decodeAny(tensor.datatype, wanted.data() + place));
      });
      if (!found.empty()) return found;
    }
    return fmt::format("rank {}: byte {}, which belongs to no receive buffer, was changed", rank_, at);
  }

  World& world_;
  const ListCase& list_;
  const int rank_;
};

// Averages of values below 4 are exact where there are 1, 2 or 4 of them, in floats.
koloRedOp_t randomReduction(Random& random, const ListCase& list, int ranks) {
  const bool isExact =
      ranks != 3 && ranks < 5 && std::all_of(list.items.begin(), list.items.end(), [](const auto& item) {
        return isFloating(item.types.send) && item.types.transfer != koloFloat8e5m2;
      });
  const bool isComplex = std::any_of(list.items.begin(), list.items.end(), [](const auto& item) {
    return koloDataTypeSize(item.types.send) > partBytes(item.types.send);
  });
  const bool isScaled =
      std::any_of(list.items.begin(), list.items.end(), [](const auto& item) { return item.scale != 1; });
  std::vector<koloRedOp_t> known{koloSum};
  if (isExact) known.push_back(koloAvg);
  if (!isComplex) known.insert(known.end(), {koloMax, koloMin});
  if (!isComplex && !isScaled) known.push_back(koloLogicalOr);
  return known[pick(random, 0, known.size() - 1)];
}

// A list that peers read and write where it is: some long items, mostly in one datatype; now and then one with strides
// or a conversion, on all ranks or on one side, that has them stage it.
ListItem longItem(Random& random, const ListCase& list, int ranks) {
  ListItem item = randomItem(random, list, ranks);
  while (!item.isFlat) item = randomItem(random, list, ranks);
  if (pick(random, 0, 5) != 0) item.types = {koloFloat32, koloFloat32, koloFloat32};
  if (item.types.transfer == koloFloat32 && pick(random, 0, 5) == 0) item.types.recv = koloFloat16;
  if (item.types.send == item.types.transfer || item.types.transfer == item.types.recv) item.scale = 1;
  if (item.isRough) item.scale = 1;
  item.isRough = false;
  item.hasCounts = item.hasCounts && pick(random, 0, 1) == 0;
  const std::size_t length = pick(random, 2500, 6000);
  if (!isDivided(list.collective)) {
    item.whole[0] = length;
  } else if (!item.hasCounts) {
    item.parts.assign(static_cast<std::size_t>(ranks), length);
    item.whole[0] = length * static_cast<std::size_t>(ranks);
  } else {
    item.parts.back() += length;
    item.whole[0] += length;
  }
  return item;
}

// Handles of pre-multiplied sums are of one datatype, that of the transfer; what an item gives and gets may be another
// one. The function may be called on the host alone.
void customise(Random& random, ListCase& list, bool isOnGpu) {
  if (pick(random, 0, 4) != 0) return;
  list.custom = !isOnGpu && pick(random, 0, 1) == 0 ? Custom::kFunction : Custom::kPreMulSum;
  list.op = koloSum;
  list.isCommutative = pick(random, 0, 1) == 0;
  if (list.custom == Custom::kFunction) return;
  constexpr koloDataType_t kSummed[] = {koloFloat32, koloBfloat16, koloFloat16, koloInt32, koloInt64};
  constexpr std::size_t kFloats = 3;
  const std::size_t transfer = pick(random, 0, std::size(kSummed) - 1);
  const auto around = [&] { return kSummed[transfer < kFloats ? pick(random, 0, kFloats - 1) : transfer]; };
  for (ListItem& item : list.items) {
    item.types = {around(), kSummed[transfer], around()};
    item.scale = 1;
  }
}

using MakeItem = ListItem (*)(Random&, const ListCase&, int);

// The list's collective, algorithm and form are given; the rest is drawn.
void runList(MakeItem makeItem, World& world, ListCase list, Random& random) {
  list.root = static_cast<int>(pick(random, 0, static_cast<std::size_t>(world.ranks()) - 1));
  const std::size_t most = makeItem == longItem ? 4 : 9;
  const std::size_t items = pick(random, 0, 4) == 0 ? pick(random, 0, 1) : pick(random, 2, most);
  for (std::size_t i = 0; i < items; ++i) list.items.push_back(makeItem(random, list, world.ranks()));
  if (reduces(list.collective)) {
    list.op = randomReduction(random, list, world.ranks());
    customise(random, list, world.isOnGpu());
  }
  while (placeItems(random, list, world.ranks()) + kBehind > world.windowBytes()) list.items.pop_back();
  std::vector<std::string> faults(static_cast<std::size_t>(world.ranks()));
  world.run([&](int rank) {
    const std::string wish =
        list.algorithm.empty() ? "" : fmt::format("{}:{}", koloCollectiveName(list.collective), list.algorithm);
    if (koloCommSetAlgorithm(world.comm(rank), wish.c_str()) != koloSuccess)
      faults[static_cast<std::size_t>(rank)] = koloGetLastError(nullptr);
    else faults[static_cast<std::size_t>(rank)] = ListRank(world, list, rank).run();
  });
  INFO(koloCollectiveName(list.collective)
       << " of " << list.items.size() << " items, " << world.ranks() << " ranks, form " << static_cast<int>(list.form)
       << ", root " << list.root << ", algorithm " << list.algorithm << ", reduction " << static_cast<int>(list.op)
       << ", custom " << static_cast<int>(list.custom));
  for (const std::string& fault : faults) REQUIRE(fault == "");
}

// Those that a round tries.
std::vector<std::string> listAlgorithms(const World& world, koloCollective_t collective, ListAlgorithms which,
                                        Random& random) {
  std::vector<std::string> all = algorithmsFor(collective);
  all.emplace_back();
  if (world.isMesh()) all = meshAlgorithmsFor(collective);
  if (all.empty()) return {""};
  return which == ListAlgorithms::kEvery ? all : std::vector<std::string>{all[pick(random, 0, all.size() - 1)]};
}

// inAnyForm: not only by calls that wait.
void runListsOf(MakeItem makeItem, World& world, Rounds&& rounds, ListAlgorithms which, bool inAnyForm = false) {
  while (rounds.next()) {
    Random random(rounds.seed());
    for (int c = koloCollectiveAllReduce; c < koloCollectiveBarrier; ++c) {
      ListCase list;
      list.collective = static_cast<koloCollective_t>(c);
      for (const std::string& algorithm : listAlgorithms(world, list.collective, which, random)) {
        list.algorithm = algorithm;
        if (inAnyForm) list.form = static_cast<Form>(pick(random, 0, 4));
        runList(makeItem, world, list, random);
      }
    }
  }
}

}  // namespace

void runLists(World& world, Rounds&& rounds, ListAlgorithms which) {
  runListsOf(randomItem, world, std::move(rounds), which);
}

int listNumber(int test, int ranks) { return 2000 + 10 * test + ranks; }

namespace {

TEST_CASE("S0.5 S1.5 S2.4 S2.5 S4.4 lists and axes: every collective gives what its definition says") {
  for (const int ranks : test::rankCounts({1, 2, 3, 4, 5})) {
    World world({.ranks = ranks});
    runLists(world, Rounds(listNumber(0, ranks)));
  }
}

// In windows, in ordinary memory, and partly so.
TEST_CASE("S1.5 long lists and axes: peers read and write the items where they are") {
  constexpr std::size_t kBytes = 32 << 20;
  for (const std::size_t registered : {kBytes, kBytes / 16, std::size_t{0}}) {
    for (const int ranks : test::rankCounts({2, 3, 4})) {
      INFO(registered << " bytes registered, " << ranks << " ranks");
      WorldOptions options;
      options.ranks = ranks;
      options.windowBytes = kBytes;
      options.registeredBytes = registered;
      World world(options);
      runListsOf(longItem, world, Rounds(listNumber(8, ranks)), ListAlgorithms::kEvery);
    }
  }
}

// Rank 0 offers its list because of the window, the others theirs because it is long and plain.
TEST_CASE("S1.5 a list with strides in a window, and those of other ranks in ordinary memory", "[threads]") {
  constexpr std::size_t kRows = 300, kColumns = 200, kSpread = 2 * kColumns, kGap = 99;
  for (const int ranks : {2, 3}) {
    World world({.ranks = ranks, .registersFirst = true});
    std::vector<std::string> faults(static_cast<std::size_t>(ranks));
    world.run([&](int rank) {
      auto* const send = reinterpret_cast<float*>(world.window(rank));
      float* const recv = send + kRows * kSpread;
      const std::size_t width = rank == 0 ? kSpread : kColumns, shape[] = {kRows, kColumns};
      const std::ptrdiff_t strides[] = {static_cast<std::ptrdiff_t>(width), 1};
      const koloArray_t array{2, shape, strides};
      const koloItem_t item{.sendbuf = send,
                            .recvbuf = recv,
                            .sendtype = koloFloat32,
                            .transfertype = koloFloat32,
                            .recvtype = koloFloat32,
                            .sendarray = &array,
                            .recvarray = &array};
      const auto valueOf = [](std::size_t row, std::size_t column, int of) {
        return static_cast<float>(row * 7 + column) + static_cast<float>(of);
      };
      for (const bool reduces : {true, false}) {
        std::fill_n(send, kRows * width, -1.0F);
        std::fill_n(recv, kRows * width, static_cast<float>(kGap));
        for (std::size_t at = 0; at < kRows * kColumns; ++at)
          send[at / kColumns * width + at % kColumns] = valueOf(at / kColumns, at % kColumns, rank);
        const koloResult_t result = reduces ? koloAllReduceList(&item, 1, koloSum, world.comm(rank), nullptr)
                                            : koloBroadcastList(&item, 1, 0, world.comm(rank), nullptr);
        std::string& fault = faults[static_cast<std::size_t>(rank)];
        if (result != koloSuccess) fault = koloGetLastError(nullptr);
        for (std::size_t at = 0; at < kRows * width && fault.empty(); ++at) {
          const std::size_t row = at / width, column = at % width;
          float expected = static_cast<float>(kGap);
          if (column < kColumns) expected = reduces ? 0 : valueOf(row, column, 0);
          for (int of = 0; reduces && column < kColumns && of < ranks; ++of) expected += valueOf(row, column, of);
          if (recv[at] != expected)
            fault = fmt::format("rank {}, {}, row {}, column {}: {} instead of {}", rank, reduces, row, column,
                                recv[at], expected);
        }
      }
    });
    for (const std::string& fault : faults) CHECK(fault == "");
  }
}

TEST_CASE("long lists and axes: emulated block") {
  for (const std::size_t registered : {std::size_t{SIZE_MAX}, std::size_t{0}}) {
    const UseExecutor emulated(3);
    WorldOptions options;
    options.windowBytes = 32 << 20;
    options.registeredBytes = registered;
    World world(options);
    runListsOf(longItem, world, Rounds(listNumber(9, 2)), ListAlgorithms::kAny);
  }
}

// A rank that only gives owes its headers; with nothing to send, no barrier of a send follows.
TEST_CASE("S1.5 reductions of no items: emulated block") {
  const UseExecutor emulated(3);
  World world({.ranks = 3});
  std::vector<std::string> faults(3);
  world.run([&](int rank) {
    for (const char* const algorithm : {"one_shot", "two_shot", "ring", "tree", "double_tree"}) {
      if (koloCommSetAlgorithm(world.comm(rank), fmt::format("reduce:{}", algorithm).c_str()) != koloSuccess)
        std::abort();
      for (int turn = 0; turn < 30; ++turn) {
        if (koloReduceList(nullptr, 0, koloSum, turn % 3, world.comm(rank), nullptr) != koloSuccess)
          faults[static_cast<std::size_t>(rank)] = koloGetLastError(nullptr);
      }
    }
  });
  for (const std::string& fault : faults) CHECK(fault == "");
}

TEST_CASE("lists and axes: reproducible communicators") {
  World world({.ranks = 3, .reproducible = true});
  runLists(world, Rounds(listNumber(1, 3)));
}

TEST_CASE("lists and axes: posted links, and hosts whose ranks share memory") {
  for (const int perHost : {1, 2}) {
    World world({.ranks = 4, .latePerHost = perHost});
    runLists(world, Rounds(listNumber(2, perHost)));
  }
}

TEST_CASE("lists and axes: emulated block", "[threads]") {
  for (const unsigned threads : {1u, 3u, 8u}) {
    const UseExecutor emulated(threads);
    World world({.ranks = 3});
    runLists(world, Rounds(listNumber(3, static_cast<int>(threads))));
  }
}

TEST_CASE("S1.5 S1.9 lists and axes: in groups, on streams and as requests, of one rank and of several", "[threads]") {
  for (const int ranks : test::rankCounts({1, 2, 3, 4})) {
    World world({.ranks = ranks});
    runListsOf(randomItem, world, Rounds(listNumber(10, ranks)), ListAlgorithms::kEvery, true);
  }
}

TEST_CASE("lists and axes: over tcp links, in any form") {
  World world({.ranks = 3, .transports = "tcp"});
  runListsOf(randomItem, world, Rounds(listNumber(11, 3)), ListAlgorithms::kEvery, true);
}

TEST_CASE("S1.9 S4.2 lists and axes: in a group of ranks in another order, beside its parent") {
  World world({.ranks = 4});
  World group(world, {2, 0, 3, 1}, {.ranks = 4, .isGroup = true});
  for (int turn = 0; turn < 2; ++turn) {
    runListsOf(randomItem, group, Rounds(listNumber(12, turn)), ListAlgorithms::kEvery, true);
    runListsOf(randomItem, world, Rounds(listNumber(13, turn)), ListAlgorithms::kAny, true);
  }
}

TEST_CASE("lists: lengths that are given where no buffer is divided are refused, and not read") {
  World world(WorldOptions{});
  std::vector<koloResult_t> results(2, koloSuccess);
  world.run([&](int rank) {
    koloItem_t item{};
    item.sendbuf = item.recvbuf = world.window(rank);
    item.count = 1;
    item.counts = reinterpret_cast<const std::size_t*>(64);  // where nothing is
    item.sendtype = item.transfertype = item.recvtype = koloInt32;
    results[static_cast<std::size_t>(rank)] = koloAllReduceList(&item, 1, koloSum, world.comm(rank), nullptr);
  });
  for (const koloResult_t result : results) CHECK(result == koloInvalidArgument);
}

TEST_CASE("S1.8 S4.4 lists and axes: buffers and counts that cannot be are refused, in words") {
  World world(WorldOptions{});
  std::vector<std::string> faults(2);
  world.run([&](int rank) {
    auto* const window = reinterpret_cast<float*>(world.window(rank));
    const std::size_t shape[] = {4, 2}, one[] = {1};
    const std::ptrdiff_t turned[] = {1, 4};
    const koloArray_t rows{2, shape, nullptr}, columns{2, shape, turned}, single{1, one, nullptr};
    koloItem_t item{};
    item.sendtype = item.transfertype = item.recvtype = koloFloat32;
    const auto expectRefusal = [&](koloResult_t code, koloResult_t wanted, const std::string& words) {
      const std::string text = code == koloSuccess ? "" : koloGetLastError(nullptr);
      if (code != wanted || text.find(words) == std::string::npos)
        faults[static_cast<std::size_t>(rank)] +=
            fmt::format("{} and \"{}\" where {} was expected\n", static_cast<int>(code), text, words);
    };
    const std::string overlap = "the recvbuf of item 0 overlaps the sendbuf of item 0";
    const koloComm_t comm = world.comm(rank);
    item.sendbuf = item.recvbuf = window;
    item.sendarray = &rows;
    expectRefusal(koloAllToAllAxis(&item, 0, 1, nullptr, nullptr, comm, nullptr), koloInvalidArgument, overlap);
    item.recvarray = &columns;  // the same memory, read by rows and written by columns
    expectRefusal(koloAllReduceList(&item, 1, koloSum, comm, nullptr), koloInvalidArgument, overlap);
    // What is read in place of one item must not hide what is read of another.
    koloItem_t two[2] = {item, item};
    two[0].sendarray = two[0].recvarray = two[1].sendarray = two[1].recvarray = nullptr;
    two[0].sendbuf = window;
    two[0].recvbuf = window + 100 * rank;
    two[1].sendbuf = window + 100 * rank;
    two[1].recvbuf = window + 1000;
    two[0].count = 100;
    two[1].count = 50;
    expectRefusal(koloReduceScatterList(two, 2, koloSum, comm, nullptr), koloInvalidArgument,
                  "the recvbuf of item 0 overlaps the sendbuf of item 1");
    item.recvarray = nullptr;
    item.recvbuf = window + 1000;
    const std::size_t odd[] = {3, 2};
    const koloArray_t undivided{2, odd, nullptr};
    item.sendarray = &undivided;
    expectRefusal(koloScatterList(&item, 1, rank, comm, nullptr), koloInvalidArgument, "axis 0");
    expectRefusal(koloAllToAllAxis(&item, 0, 1, nullptr, nullptr, comm, nullptr), koloInvalidArgument, "axis 0");
    // Along one axis, every rank gets parts of one length: splits[rank].
    const std::size_t splits[] = {1, 3}, alike[] = {splits[rank], splits[rank]}, others[] = {1, 3};
    item.sendarray = &rows;
    expectRefusal(koloAllToAllAxis(&item, 0, 0, splits, others, comm, nullptr), koloInvalidArgument,
                  fmt::format("expected {}: rank {}'s part, as both axes are the same", splits[rank], rank));
    expectRefusal(koloAllToAllAxis(&item, 0, 0, splits, alike, comm, nullptr), koloSuccess, "");
    expectRefusal(koloAllToAllAxis(&item, 0, 0, splits, nullptr, comm, nullptr), koloSuccess, "");
    // Strides whose products do not fit a word.
    for (const std::ptrdiff_t stride : {std::ptrdiff_t{1} << 62, PTRDIFF_MIN, PTRDIFF_MAX}) {
      const std::ptrdiff_t far[] = {stride, 1};
      const koloArray_t wide{2, shape, far};
      item.sendarray = &wide;
      expectRefusal(koloAllReduceList(&item, 1, koloSum, comm, nullptr), koloInvalidCount,
                    "sendarray: strides[0] is " + std::to_string(stride));
    }
    const std::size_t nothing[] = {0, 2};
    const std::ptrdiff_t any[] = {1, PTRDIFF_MAX};
    const koloArray_t empty{2, nothing, any};  // whose strides mean nothing
    item.sendarray = &empty;
    item.recvarray = nullptr;
    expectRefusal(koloAllReduceList(&item, 1, koloSum, comm, nullptr), koloSuccess, "");
    item.sendarray = &rows;
    two[1].sendtype = two[1].transfertype = two[1].recvtype = koloComplex64;
    for (int i = 0; i < 2; ++i) {
      two[i].sendbuf = window + 20000 + 2000 * i;
      two[i].recvbuf = window + 21000 + 2000 * i;
    }
    expectRefusal(koloAllReduceList(two, 2, koloMax, comm, nullptr), koloInvalidOperation, "item 1: ");
    expectRefusal(koloAllReduceList(nullptr, 0, static_cast<koloRedOp_t>(4000), comm, nullptr), koloInvalidOperation,
                  "");
    item.recvarray = &columns;
    const std::size_t counts[] = {SIZE_MAX, 2};  // whose sum is 1
    item.recvbuf = window + 100;
    item.sendarray = nullptr;
    item.recvarray = &single;
    item.counts = counts;
    expectRefusal(koloAllGatherList(&item, 1, comm, nullptr), koloInvalidCount, "a count is");
    item.sendarray = &single;
    item.recvarray = nullptr;
    expectRefusal(koloAllGatherList(&item, 1, comm, nullptr), koloInvalidCount, "a count is");
  });
  for (const std::string& fault : faults) CHECK(fault == "");
}

// Lists of one collective meet in the order of their calls, those of several whatever the order.
TEST_CASE("S1.5 several lists in one group, in another order on each rank") {
  constexpr int kRanks = 3;
  World world({.ranks = kRanks});
  world.run([&](int rank) {
    constexpr std::size_t kCount = 1500;
    std::vector<int> mine(kRanks * kCount), sums(2 * kCount), all(kRanks * kCount), parts(kCount);
    for (std::size_t i = 0; i < mine.size(); ++i) mine[i] = rank * 7 + static_cast<int>(i);
    const auto item = [&](int* recv, std::size_t count, std::size_t from = 0) {
      koloItem_t result{};
      result.sendbuf = mine.data() + from;
      result.recvbuf = recv;
      result.count = count;
      result.sendtype = result.transfertype = result.recvtype = koloInt32;
      return result;
    };
    const koloItem_t first = item(sums.data(), kCount), second = item(sums.data() + kCount, kCount, 100),
                     gathered = item(all.data(), kCount), scattered = item(parts.data(), kCount);
    const koloComm_t comm = world.comm(rank);
    const std::function<koloResult_t()> calls[] = {
        [&] {
          const koloResult_t result = koloAllReduceList(&first, 1, koloSum, comm, nullptr);
          return result == koloSuccess ? koloAllReduceList(&second, 1, koloSum, comm, nullptr) : result;
        },
        [&] { return koloAllGatherList(&gathered, 1, comm, nullptr); },
        [&] { return koloReduceScatterList(&scattered, 1, koloSum, comm, nullptr); }};
    bool good = koloGroupStart() == koloSuccess;
    for (int i = 0; i < 3; ++i) good = good && calls[(i + rank) % 3]() == koloSuccess;
    good = good && koloGroupEnd() == koloSuccess;
    for (std::size_t i = 0; i < kCount; ++i) {
      const int at = static_cast<int>(i), block = rank * static_cast<int>(kCount);
      good = good && sums[i] == 3 * at + 21 && sums[kCount + i] == 3 * (at + 100) + 21;
      good = good && parts[i] == 3 * (at + block) + 21;
      for (std::size_t r = 0; r < kRanks; ++r) good = good && all[r * kCount + i] == static_cast<int>(r) * 7 + at;
    }
    if (!good) {
      std::fprintf(stderr, "rank %d: %s\n", rank, koloGetLastError(nullptr));
      std::abort();
    }
  });
}

// A world of threads with nothing but communicators.
struct AxisCase {
  std::vector<std::size_t> shape;  // of a rank's array, whose length along the concatAxis is that of concats
  int split, concat;
  std::vector<std::size_t> splits, concats;
};

// S1.8 and S4.4: an array that is distributed along one axis is distributed along another afterwards.
void exchangeAxes(World& world, const AxisCase& axes, bool transposed) {
  world.run([&](int rank) {
    const auto r = static_cast<std::size_t>(rank);
    const auto split = static_cast<std::size_t>(axes.split), concat = static_cast<std::size_t>(axes.concat);
    std::vector<std::size_t> shape = axes.shape, result = axes.shape;
    shape[concat] = axes.concats[r];
    result[concat] = std::accumulate(axes.concats.begin(), axes.concats.end(), std::size_t{0});
    result[split] = axes.splits[r];
    const auto sum = [](const std::vector<std::size_t>& lengths, std::size_t before) {
      return std::accumulate(lengths.begin(), lengths.begin() + static_cast<std::ptrdiff_t>(before), std::size_t{0});
    };
    const auto valueAt = [&](const Index& index) {  // of the global index
      int value = 0;
      for (const std::size_t at : index) value = value * 64 + static_cast<int>(at);
      return value;
    };
    Random random(7);
    Placing placing(random);
    const Tensor send = placing.put(koloInt32, shape, transposed ? Style::kTransposed : Style::kRowMajor);
    const Tensor recv = placing.put(koloInt32, result, transposed ? Style::kTransposed : Style::kRowMajor);
    unsigned char* const window = world.window(rank);
    send.each([&](Index index) {
      const std::size_t place = send.place(index);
      index[concat] += sum(axes.concats, r);
      const int value = valueAt(index);
      std::memcpy(window + place, &value, sizeof value);
    });
    const std::size_t used = std::max(send.end(), recv.end());
    if (world.isOnGpu()) test::upload(world.device(), world.deviceWindow(rank), window, used);
    unsigned char* const base = world.isOnGpu() ? world.deviceWindow(rank) : window;
    const koloArray_t from{static_cast<int>(shape.size()), send.shape.data(), send.strides.data()};
    const koloArray_t to{static_cast<int>(shape.size()), recv.shape.data(), recv.strides.data()};
    koloItem_t item{};
    item.sendbuf = base + send.offset;
    item.recvbuf = base + recv.offset;
    item.sendtype = item.transfertype = item.recvtype = koloInt32;
    item.sendarray = &from;
    item.recvarray = &to;
    const koloResult_t code = koloAllToAllAxis(&item, axes.split, axes.concat, axes.splits.data(), axes.concats.data(),
                                               world.comm(rank), world.stream(rank));
    std::string fault = code == koloSuccess ? "" : koloGetLastError(nullptr);
    world.synchronize(rank);
    if (world.isOnGpu()) test::download(world.device(), window, world.deviceWindow(rank), used);
    recv.each([&](Index index) {
      int value = -1;
      std::memcpy(&value, window + recv.place(index), sizeof value);
      index[split] += sum(axes.splits, r);
      if (value != valueAt(index) && fault.empty())
        fault = fmt::format("rank {}: {} for {}", rank, value, valueAt(index));
    });
    if (!fault.empty()) {
      std::fprintf(stderr, "%s\n", fault.c_str());
      std::abort();
    }
  });
}

// Where an array is: along an axis, each rank has an equal part of it; else as KOLO_ON_ALL and KOLO_ON_RANK say.
struct Distribution {
  int where;

  bool isOn(int rank) const { return where >= 0 || where == KOLO_ON_ALL || where == KOLO_ON_RANK(rank); }
  std::vector<std::size_t> partOf(std::vector<std::size_t> whole, std::size_t ranks) const {
    if (where >= 0) whole[static_cast<std::size_t>(where)] /= ranks;
    return whole;
  }
  // Of an index in a rank's part, that in the whole, as one number.
  int linearOf(Index index, const std::vector<std::size_t>& whole, int rank, int ranks) const {
    const auto axis = static_cast<std::size_t>(where);
    if (where >= 0) index[axis] += static_cast<std::size_t>(rank) * whole[axis] / static_cast<std::size_t>(ranks);
    std::size_t linear = 0;
    for (std::size_t d = 0; d < whole.size(); ++d) linear = linear * whole[d] + index[d];
    return static_cast<int>(linear);
  }
};

std::string reshardOn(World& world, int rank, Distribution from, Distribution to, Style style) {
  const std::vector<std::size_t> whole{12, 24, 5};
  const auto ranks = static_cast<std::size_t>(world.ranks());
  Random random(11);
  Placing placing(random);
  const Tensor send = placing.put(koloInt32, from.partOf(whole, ranks), style);
  const Tensor recv = placing.put(koloInt32, to.partOf(whole, ranks), style);
  unsigned char* const window = world.window(rank);
  const std::size_t used = std::max(send.end(), recv.end());
  std::fill_n(window, used, 0xee);
  send.each([&](const Index& index) {
    const int value = from.linearOf(index, whole, rank, world.ranks());
    if (from.isOn(rank)) std::memcpy(window + send.place(index), &value, sizeof value);
  });
  if (world.isOnGpu()) test::upload(world.device(), world.deviceWindow(rank), window, used);
  unsigned char* const base = world.isOnGpu() ? world.deviceWindow(rank) : window;
  const koloArray_t sends{3, send.shape.data(), send.strides.data()};
  const koloArray_t receives{3, recv.shape.data(), recv.strides.data()};
  const koloArray_t all{3, whole.data(), nullptr};
  koloItem_t item{};
  if (from.isOn(rank)) item.sendbuf = base + send.offset;
  if (to.isOn(rank)) item.recvbuf = base + recv.offset;
  item.sendtype = item.transfertype = item.recvtype = koloInt32;
  item.sendarray = &sends;
  item.recvarray = &receives;
  if (koloReshard(&item, &all, from.where, to.where, nullptr, nullptr, world.comm(rank), world.stream(rank)) !=
      koloSuccess)
    return koloGetLastError(nullptr);
  world.synchronize(rank);
  if (world.isOnGpu()) test::download(world.device(), window, world.deviceWindow(rank), used);
  std::string fault;
  recv.each([&](const Index& index) {
    int value = -1;
    std::memcpy(&value, window + recv.place(index), sizeof value);
    const int wanted = to.linearOf(index, whole, rank, world.ranks());
    if (to.isOn(rank) && value != wanted) fault = fmt::format("rank {}: {} instead of {}", rank, value, wanted);
  });
  return fault;
}

}  // namespace

void reshardEveryWay(World& world) {
  const Distribution everywhere[] = {{0}, {1}, {KOLO_ON_ALL}, {KOLO_ON_RANK(world.ranks() - 1)}};
  for (const Distribution from : everywhere) {
    for (const Distribution to : everywhere) {
      for (const Style style : {Style::kRowMajor, Style::kTransposed}) {
        INFO("from " << from.where << " to " << to.where << ", style " << static_cast<int>(style));
        std::vector<std::string> faults(static_cast<std::size_t>(world.ranks()));
        world.run([&](int rank) { faults[static_cast<std::size_t>(rank)] = reshardOn(world, rank, from, to, style); });
        for (const std::string& fault : faults) CHECK(fault == "");
      }
    }
  }
}

void exchangeAxes(World& world) {
  for (const bool transposed : {false, true}) {
    exchangeAxes(world, {{6, 5, 4}, 0, 1, {2, 2, 2}, {5, 5, 5}}, transposed);
    exchangeAxes(world, {{6, 5, 4}, 0, 2, {1, 5, 0}, {4, 1, 3}}, transposed);
    exchangeAxes(world, {{3, 40, 7}, 1, 0, {7, 0, 33}, {1, 0, 2}}, transposed);
    exchangeAxes(world, {{9, 2}, 0, 1, {3, 4, 2}, {2, 2, 1}}, transposed);
  }
}

namespace {

TEST_CASE("S1.8 S4.4 all-to-all along two axes, with uneven splits") {
  World world({.ranks = 3});
  exchangeAxes(world);
}

TEST_CASE("S0.8 S1.8 S4.4 arrays between axes: emulated block") {
  const unsigned threads = GENERATE(1u, 5u);
  const UseExecutor emulated(threads);
  World world({.ranks = 3});
  exchangeAxes(world);
  reshardEveryWay(world);
}

TEST_CASE("S0.8 S1.8 S4.4 arrays between axes: over tcp links, over posted ones, and between hosts of several ranks") {
  for (const int perHost : {0, 1, 2}) {
    WorldOptions options;
    options.ranks = perHost == 2 ? 4 : 3;
    options.latePerHost = perHost;
    if (perHost == 0) options.transports = "tcp";
    World world(options);
    if (options.ranks == 3) exchangeAxes(world);
    reshardEveryWay(world);
  }
}

}  // namespace
}  // namespace kolo::tests
