// The sections of kolo-gpu-measure, which say what they find as lines of JSON (measure.cc lists their keys).
//
// Thread safety: Line: one thread. The sections: the main thread, one after the other.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <string>
#include <vector>

namespace kolo::test {

inline constexpr std::size_t kKiB = 1024, kMiB = 1024 * kKiB;

struct Options {
  int device = 0;
  bool mock = false, quick = false;
  std::vector<std::string> sections;
  std::vector<int> ranks;  // of latency and bandwidth; empty: usual ones

  bool has(const std::string& section) const {
    return std::find(sections.begin(), sections.end(), section) != sections.end();
  }
  double budgetMs(double usual) const { return quick ? 2 : usual; }  // for one figure
  std::vector<int> rankCounts() const {                              // the targets' first
    if (!ranks.empty()) return ranks;
    return quick ? std::vector<int>{4, 2} : std::vector<int>{4, 2, 8};
  }
};

// A line of JSON.
class Line {
 public:
  explicit Line(const std::string& section) { add("section", section); }
  Line& add(const char* key, const std::string& value) { return put(key, '"' + value + '"'); }
  Line& add(const char* key, const char* value) { return add(key, std::string(value)); }
  Line& add(const char* key, bool value) { return put(key, value ? "true" : "false"); }
  Line& add(const char* key, double value, int digits) {
    char text[64];
    std::snprintf(text, sizeof text, "%.*f", digits, value);
    return put(key, text);
  }
  Line& add(const char* key, int value) { return put(key, std::to_string(value)); }
  Line& add(const char* key, std::size_t value) { return put(key, std::to_string(value)); }
  void print() {
    std::printf("{%s}\n", text_.c_str());
    (void)std::fflush(stdout);
  }

 private:
  Line& put(const char* key, const std::string& value) {
    text_ += (text_.empty() ? "\"" : ", \"") + std::string(key) + "\": " + value;
    return *this;
  }
  std::string text_;
};

// ---- measure_device.cc: what the device and its driver do, without a communicator but for measureMemory

void measureCopy(const Options& options);
double copyGbps();  // of the best copy so far, bytes read and written; 0: none
void measureWaits(const Options& options);
void measureMemory(const Options& options);
void tryGpuDirect(const Options& options);

// ---- measure_micro.cc: one thing at a time, by kernels of its own (tests/gpu_probe)

void measureMicro(const Options& options);

// ---- measure_nccl.cc: NCCL beside Kolo

void measureNccl(const Options& options);

}  // namespace kolo::test
