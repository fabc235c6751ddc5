// What a list of tensors costs in one operation, beside the two ways to do without: packing into one buffer, one
// operation and unpacking; and an operation for each tensor.
//
// usage: kolo-perf-lists FILE [RANKS [CAP_MIB ...]]        2 ranks and caps of 1, 25 and 2000 MiB where not given
//
// FILE has a line for each tensor: its elements and its datatype ("2359296 float32"); perf/parameter_lists.py makes
// such files of known models. Tensors go into buckets in their order: a bucket is full when the next tensor would
// exceed the cap. Ranks are processes, with ordinary memory. Every way does all buckets, one after the other, with its
// own buffers; the ways take turns, seven times, and printed is the median of what the slowest rank took for all
// buckets, and the ratio of the faster of the two other ways to the list's time. Parts of a tensor that the ranks do
// not divide evenly are uneven: the first ranks have an element more.
#include <kolo/kolo.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace {

using Clock = std::chrono::steady_clock;
using Bytes = std::vector<unsigned char>;

constexpr int kTurns = 7;

void must(koloResult_t result, const char* what) {
  if (result == koloSuccess) return;
  std::fprintf(stderr, "kolo-perf-lists: %s: %s\n", what, koloGetLastError(nullptr));
  std::exit(2);
}
#define MUST(call) must(call, #call)

struct Tensor {
  std::size_t count = 0;
  koloDataType_t datatype = koloFloat32;
  std::size_t bytes() const { return count * koloDataTypeSize(datatype); }
};

std::vector<Tensor> readTensors(const char* name) {
  std::ifstream file(name);
  std::vector<Tensor> tensors;
  std::string type;
  for (Tensor tensor; file >> tensor.count >> type; tensors.push_back(tensor)) {
    int number = 0;
    while (number < koloNumDatatypes && type != koloDataTypeName(static_cast<koloDataType_t>(number))) ++number;
    if (number == koloNumDatatypes) {
      std::fprintf(stderr, "kolo-perf-lists: %s: datatype %s is unknown\n", name, type.c_str());
      std::exit(2);
    }
    tensor.datatype = static_cast<koloDataType_t>(number);
  }
  if (tensors.empty()) {
    std::fprintf(stderr, "kolo-perf-lists: %s has no tensors: expected lines of elements and datatype\n", name);
    std::exit(2);
  }
  return tensors;
}

enum class What { kAllReduce, kAllGather, kReduceScatter };

// One bucket, with the memory that each way needs.
class Bucket {
 public:
  Bucket(koloComm_t comm, int rank, int ranks, What what, std::vector<Tensor> tensors)
      : comm_(comm), rank_(static_cast<std::size_t>(rank)), ranks_(static_cast<std::size_t>(ranks)), what_(what),
        tensors_(std::move(tensors)) {
    for (const Tensor& tensor : tensors_) {
      std::vector<std::size_t> parts(ranks_);
      for (std::size_t r = 0; r < ranks_; ++r) parts[r] = tensor.count / ranks_ + (r < tensor.count % ranks_ ? 1 : 0);
      parts_.push_back(std::move(parts));
    }
    for (std::size_t i = 0; i < tensors_.size(); ++i) {
      const std::size_t own = partBytes(i, rank_), whole = tensors_[i].bytes();
      inputs_.emplace_back(what_ == What::kAllGather ? own : whole, 1);
      outputs_.emplace_back(what_ == What::kReduceScatter ? own : whole, 0);
    }
    describeItems();
    arrangePacked();
  }

  void list() const {
    switch (what_) {
      case What::kAllReduce: MUST(koloAllReduceList(items_.data(), items_.size(), koloSum, comm_, nullptr)); break;
      case What::kAllGather: MUST(koloAllGatherList(items_.data(), items_.size(), comm_, nullptr)); break;
      case What::kReduceScatter:
        MUST(koloReduceScatterList(items_.data(), items_.size(), koloSum, comm_, nullptr));
        break;
    }
  }

  // In the datatype of the first tensor; a bucket of several would need several operations.
  void packed() {
    const koloDataType_t type = tensors_.front().datatype;
    pack();
    switch (what_) {
      case What::kAllReduce:
        MUST(koloAllReduce(packedIn_.data(), packedOut_.data(), counts_[0], type, koloSum, comm_, nullptr));
        break;
      case What::kAllGather:
        MUST(koloAllGatherv(packedIn_.data(), packedOut_.data(), counts_.data(), nullptr, type, comm_, nullptr));
        break;
      case What::kReduceScatter:
        MUST(koloReduceScatterv(packedIn_.data(), packedOut_.data(), counts_.data(), nullptr, type, koloSum, comm_,
                                nullptr));
        break;
    }
    unpack();
  }

  void single() {
    for (std::size_t i = 0; i < tensors_.size(); ++i) {
      const koloDataType_t type = tensors_[i].datatype;
      switch (what_) {
        case What::kAllReduce:
          MUST(koloAllReduce(inputs_[i].data(), outputs_[i].data(), tensors_[i].count, type, koloSum, comm_, nullptr));
          break;
        case What::kAllGather:
          MUST(koloAllGatherv(inputs_[i].data(), outputs_[i].data(), parts_[i].data(), nullptr, type, comm_, nullptr));
          break;
        case What::kReduceScatter:
          MUST(koloReduceScatterv(inputs_[i].data(), outputs_[i].data(), parts_[i].data(), nullptr, type, koloSum,
                                  comm_, nullptr));
          break;
      }
    }
  }

 private:
  std::size_t partBytes(std::size_t i, std::size_t rank) const {
    return parts_[i][rank] * koloDataTypeSize(tensors_[i].datatype);
  }
  void describeItems() {
    for (std::size_t i = 0; i < tensors_.size(); ++i) {
      koloItem_t item{};
      item.sendbuf = inputs_[i].data();
      item.recvbuf = outputs_[i].data();
      item.sendtype = item.transfertype = item.recvtype = tensors_[i].datatype;
      if (what_ == What::kAllReduce) item.count = tensors_[i].count;
      else item.counts = parts_[i].data();
      items_.push_back(item);
    }
  }
  // Elements of each rank in the packed buffer; of an all-reduce there is one block.
  void arrangePacked() {
    const std::size_t size = koloDataTypeSize(tensors_.front().datatype);
    counts_.assign(what_ == What::kAllReduce ? 1 : ranks_, 0);
    for (std::size_t r = 0; r < counts_.size(); ++r) {
      for (std::size_t i = 0; i < tensors_.size(); ++i)
        counts_[r] += (what_ == What::kAllReduce ? tensors_[i].bytes() : partBytes(i, r)) / size;
    }
    std::size_t all = 0;
    for (const std::size_t count : counts_) all += count * size;
    const std::size_t own = counts_[what_ == What::kAllReduce ? 0 : rank_] * size;
    packedIn_.resize(what_ == What::kAllGather ? own : all);
    packedOut_.resize(what_ == What::kReduceScatter ? own : all);
  }
  // Visits the parts of the tensors in the order of a buffer that has the blocks of all ranks.
  template <class Visit>
  void eachPart(Visit visit) const {
    std::size_t at = 0;
    for (std::size_t r = 0; r < ranks_; ++r) {
      for (std::size_t i = 0; i < tensors_.size(); ++i) {
        std::size_t begin = 0;
        for (std::size_t before = 0; before < r; ++before) begin += partBytes(i, before);
        visit(i, begin, partBytes(i, r), at);
        at += partBytes(i, r);
      }
    }
  }
  void pack() {
    if (what_ == What::kReduceScatter) {
      eachPart([&](std::size_t i, std::size_t begin, std::size_t bytes, std::size_t at) {
        std::memcpy(packedIn_.data() + at, inputs_[i].data() + begin, bytes);
      });
      return;
    }
    std::size_t at = 0;
    for (const Bytes& input : inputs_) {
      std::memcpy(packedIn_.data() + at, input.data(), input.size());
      at += input.size();
    }
  }
  void unpack() {
    if (what_ == What::kAllGather) {
      eachPart([&](std::size_t i, std::size_t begin, std::size_t bytes, std::size_t at) {
        std::memcpy(outputs_[i].data() + begin, packedOut_.data() + at, bytes);
      });
      return;
    }
    std::size_t at = 0;
    for (Bytes& output : outputs_) {
      std::memcpy(output.data(), packedOut_.data() + at, output.size());
      at += output.size();
    }
  }

  koloComm_t comm_;
  std::size_t rank_, ranks_;
  What what_;
  std::vector<Tensor> tensors_;
  std::vector<std::vector<std::size_t>> parts_;  // [tensor][rank] elements
  std::vector<Bytes> inputs_, outputs_;
  std::vector<koloItem_t> items_;
  std::vector<std::size_t> counts_;
  Bytes packedIn_, packedOut_;
};

std::vector<std::vector<Tensor>> bucketsOf(const std::vector<Tensor>& tensors, std::size_t capBytes) {
  std::vector<std::vector<Tensor>> buckets;
  std::size_t filled = 0;
  for (const Tensor& tensor : tensors) {
    if (buckets.empty() || filled + tensor.bytes() > capBytes) {
      buckets.emplace_back();
      filled = 0;
    }
    buckets.back().push_back(tensor);
    filled += tensor.bytes();
  }
  return buckets;
}

// Milliseconds of the slowest rank.
double timed(koloComm_t comm, const std::function<void()>& work) {
  MUST(koloBarrier(comm, nullptr));
  const Clock::time_point begin = Clock::now();
  work();
  double ms = std::chrono::duration<double, std::milli>(Clock::now() - begin).count();
  MUST(koloAllReduce(&ms, &ms, 1, koloFloat64, koloMax, comm, nullptr));
  return ms;
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

int measure(int rank, int ranks, const std::vector<Tensor>& tensors, const std::vector<double>& caps) {
  koloComm_t comm = nullptr;
  MUST(koloCommInitFromEnv(&comm, nullptr));
  for (const auto& [what, name] : {std::pair(What::kAllReduce, "all_reduce"), std::pair(What::kAllGather, "all_gather"),
                                   std::pair(What::kReduceScatter, "reduce_scatter")}) {
    for (const double cap : caps) {
      std::vector<std::unique_ptr<Bucket>> buckets;
      for (auto& bucket : bucketsOf(tensors, static_cast<std::size_t>(cap * 1024 * 1024)))
        buckets.push_back(std::make_unique<Bucket>(comm, rank, ranks, what, std::move(bucket)));
      std::vector<double> list, packed, single;
      for (int turn = -1; turn < kTurns; ++turn) {  // the first one warms up
        const double times[] = {timed(comm,
                                      [&] {
                                        for (auto& bucket : buckets) bucket->list();
                                      }),
                                timed(comm,
                                      [&] {
                                        for (auto& bucket : buckets) bucket->packed();
                                      }),
                                timed(comm, [&] {
                                  for (auto& bucket : buckets) bucket->single();
                                })};
        if (turn < 0) continue;
        list.push_back(times[0]);
        packed.push_back(times[1]);
        single.push_back(times[2]);
      }
      if (rank != 0) continue;
      const double best = std::min(median(packed), median(single));
      std::printf("%-15s %8.0f %8zu %10.3f %10.3f %10.3f %8.2f\n", name, cap, buckets.size(), median(list),
                  median(packed), median(single), best / median(list));
      std::fflush(stdout);
    }
  }
  MUST(koloCommDestroy(comm));
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2 || std::strcmp(argv[1], "--help") == 0) {
    std::fprintf(stderr, "usage: kolo-perf-lists FILE [RANKS [CAP_MIB ...]]\n");
    return 2;
  }
  const std::vector<Tensor> tensors = readTensors(argv[1]);
  const int ranks = argc > 2 ? std::max(1, std::atoi(argv[2])) : 2;
  std::vector<double> caps;
  for (int i = 3; i < argc; ++i) caps.push_back(std::atof(argv[i]));
  if (caps.empty()) caps = {1, 25, 2000};
  const std::string job = "lists-" + std::to_string(getpid());
  std::printf("# %s: %zu tensors, %d ranks; milliseconds for all buckets\n", argv[1], tensors.size(), ranks);
  std::printf("%-15s %8s %8s %10s %10s %10s %8s\n", "collective", "cap MiB", "buckets", "list", "packed", "single",
              "ratio");
  std::fflush(stdout);
  for (int rank = 0; rank < ranks; ++rank) {
    if (fork() != 0) continue;
    setenv("KOLO_RANK", std::to_string(rank).c_str(), 1);
    setenv("KOLO_SIZE", std::to_string(ranks).c_str(), 1);
    setenv("KOLO_JOB", job.c_str(), 1);
    std::exit(measure(rank, ranks, tensors, caps));
  }
  int worst = 0;
  for (int status = 0; wait(&status) > 0;) worst = std::max(worst, status);
  return worst == 0 ? 0 : 2;
}
