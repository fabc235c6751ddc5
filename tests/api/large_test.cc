// More than 2^31 elements: where an int somewhere would have wrapped. Skipped where there is not the memory for it.
#include <sys/mman.h>

#include <cstdio>

#include "support/ranks.h"

using namespace kolo::test;

namespace {

constexpr size_t kCount = (size_t{1} << 31) + 7;
constexpr size_t kProbe = 4099;  // prime: probes fall everywhere in a page

bool hasMemory() {
  size_t kib = 0;
  if (std::FILE* file = std::fopen("/proc/meminfo", "r")) {
    char line[128];
    while (std::fgets(line, sizeof line, file) != nullptr) {
      if (std::sscanf(line, "MemAvailable: %zu", &kib) == 1) break;
    }
    std::fclose(file);
  }
  return kib >= size_t{12} << 20;
}

class Pages {
 public:
  Pages()
      : data_(static_cast<unsigned char*>(
            mmap(nullptr, kCount, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0))) {}
  ~Pages() { munmap(data_, kCount); }
  Pages(const Pages&) = delete;
  Pages& operator=(const Pages&) = delete;
  unsigned char* data() { return data_; }

 private:
  unsigned char* data_;
};

}  // namespace

TEST_CASE("more than 2^31 elements are reduced and broadcast whole", "[optimised]") {
  if (kSanitized || !hasMemory()) {
    WARN("skipped: 12 GiB of memory and a plain build are needed");
    return;
  }
  extendDeadline(std::chrono::seconds(300));
  World world(2);
  world.run([](Self& self) {
    Pages memory;
    unsigned char* data = memory.data();
    for (size_t i = 0; i < kCount; i += kProbe) data[i] = static_cast<unsigned char>(i / kProbe * 3 + 1);
    data[kCount - 1] = 77;
    EXPECT_OK(self, koloAllReduce(data, data, kCount, koloUint8, koloSum, self.comm, nullptr));
    bool good = data[kCount - 1] == 154;
    for (size_t i = 0; i + 1 < kCount; i += kProbe)
      good = good && data[i] == static_cast<unsigned char>(2 * (i / kProbe * 3 + 1));
    EXPECT(self, good);
    if (self.rank == 1) {
      for (size_t i = 0; i < kCount; i += kProbe) data[i] = 0;
      data[kCount - 1] = 0;
    }
    EXPECT_OK(self, koloBroadcast(data, data, kCount, koloUint8, 0, self.comm, nullptr));
    good = data[kCount - 1] == 154;
    for (size_t i = 0; i + 1 < kCount; i += kProbe)
      good = good && data[i] == static_cast<unsigned char>(2 * (i / kProbe * 3 + 1));
    EXPECT(self, good);
  });
}
