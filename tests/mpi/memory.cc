// Memory from the MPI, which the interposer gives: one thing for each run.
//
// usage: kolo-mpi-memory-FAMILY
// before|later|some|nonblocking|rooted|overlapping|blocks|ordinary|window|shared|windows|apart
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <random>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "expect.h"

namespace {

using kolo::test::expect;
using kolo::test::rank;
using kolo::test::ranks;

constexpr int kCount = 1 << 20;  // doubles: 8 MiB
constexpr long kBytes = kCount * static_cast<long>(sizeof(double));

double* allocate(int count, MPI_Info info = MPI_INFO_NULL) {
  void* memory = nullptr;
  MPI_Alloc_mem(static_cast<MPI_Aint>(sizeof(double)) * count, info, &memory);
  expect(memory != nullptr, "there is memory");
  return static_cast<double*>(memory);
}

// Bytes of the pages that this process has touched in those of its mappings that isMeant(line, whether `own` is in it).
template <class IsMeant>
long touchedWhere(const void* own, const IsMeant& isMeant) {
  std::ifstream maps("/proc/self/smaps");
  bool isOne = false;
  long kilobytes = 0;
  for (std::string line; std::getline(maps, line);) {
    std::uintptr_t begin = 0, end = 0;
    char dash = 0;
    std::istringstream words(line);
    if (words >> std::hex >> begin >> dash >> end && dash == '-') {
      const auto at = reinterpret_cast<std::uintptr_t>(own);
      isOne = isMeant(line, begin <= at && at < end);
    } else if (isOne && line.rfind("Rss:", 0) == 0) {
      kilobytes += std::stol(line.substr(4));
    }
  }
  return kilobytes << 10;
}

// In mappings of memory that Kolo gave to other ranks.
long touchedOfOthers(const void* own) {
  return touchedWhere(own, [](const std::string& line, bool isOwn) {
    return !isOwn && line.find("/memfd:kolo (") != std::string::npos;
  });
}

// In the one mapping in which `own` is.
long touchedAround(const void* own) {
  return touchedWhere(own, [](const std::string&, bool isOwn) { return isOwn; });
}

void fill(double* buffer, int count) {
  for (int i = 0; i < count; ++i) buffer[i] = rank + i % 7;
}

void expectSum(const double* buffer, int count) {
  for (int i = 0; i < count; ++i) {
    const double sum = ranks * (ranks - 1) / 2 + ranks * (i % 7);
    expect(buffer[i] == sum,
           "element " + std::to_string(i) + " is " + std::to_string(sum) + ", not " + std::to_string(buffer[i]));
  }
}

using Sum = void (*)(const double* in, double* out, int count);

void addUp(const double* in, double* out, int count) {
  MPI_Allreduce(in, out, count, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
}

void wait(MPI_Request request) { MPI_Wait(&request, MPI_STATUS_IGNORE); }

MPI_Request startToAddUp(const double* in, double* out, int count) {
  MPI_Request request = MPI_REQUEST_NULL;
  MPI_Iallreduce(in, out, count, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD, &request);
  return request;
}

// A sum of vectors that each rank reads where its peers have them, and writes there, shows in the pages that it has
// touched.
void expectZeroCopy(Sum sum = addUp) {
  double* const in = allocate(kCount);
  double* const out = allocate(kCount);
  fill(in, kCount);
  sum(in, out, kCount);
  expectSum(out, kCount);
  const long touched = touchedOfOthers(in);
  expect(touched >= kBytes / 2,
         "the peers' memory is used where it is, not only " + std::to_string(touched) + " bytes of it");
  MPI_Barrier(MPI_COMM_WORLD);  // pages that are given back are gone from all ranks
  MPI_Free_mem(in);
  MPI_Free_mem(out);
}

// What other ranks cannot map is not, and that is seen.
void ordinary() {
  std::vector<double> in(kCount), out(kCount);
  fill(in.data(), kCount);
  MPI_Allreduce(in.data(), out.data(), kCount, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
  expectSum(out.data(), kCount);
  expect(touchedOfOthers(nullptr) == 0, "ordinary memory is not used where it is");
}

void before() {
  expectZeroCopy();
  MPI_Comm reversed = MPI_COMM_NULL;
  MPI_Comm_split(MPI_COMM_WORLD, 0, -rank, &reversed);
  double* const buffer = allocate(kCount);
  fill(buffer, kCount);
  MPI_Allreduce(MPI_IN_PLACE, buffer, kCount, MPI_DOUBLE, MPI_SUM, reversed);
  expectSum(buffer, kCount);
  MPI_Comm_free(&reversed);
  MPI_Free_mem(buffer);
}

// Communicators that are there hear of it within 256 collectives.
void later() {
  ordinary();
  double* const first = allocate(1);
  for (int i = 0; i < 520; ++i) MPI_Barrier(MPI_COMM_WORLD);
  expectZeroCopy();
  MPI_Free_mem(first);
}

// So they do where there are only nonblocking ones.
void nonblocking() {
  double* const first = allocate(1);
  for (int i = 0; i < 520; ++i) {
    MPI_Request request = MPI_REQUEST_NULL;
    MPI_Ibarrier(MPI_COMM_WORLD, &request);
    wait(request);
  }
  expectZeroCopy([](const double* in, double* out, int count) { wait(startToAddUp(in, out, count)); });
  MPI_Free_mem(first);
}

// And where some ranks only give in each, if later.
void rooted() {
  const auto broadcast = [](double* buffer, int count) {
    MPI_Request request = MPI_REQUEST_NULL;
    MPI_Ibcast(buffer, count, MPI_DOUBLE, 0, MPI_COMM_WORLD, &request);
    wait(request);
  };
  double* const first = allocate(1);
  for (int i = 0; i < 1100; ++i) broadcast(first, 1);
  double* const large = allocate(kCount);
  if (rank == 0) fill(large, kCount);
  broadcast(large, kCount);
  for (int i = 0; i < kCount; ++i) expect(large[i] == i % 7, "element " + std::to_string(i) + " is rank 0's");
  const long touched = touchedOfOthers(large);
  expect(rank == 0 || touched >= kBytes / 2,
         "rank 0's memory is used where it is, not only " + std::to_string(touched) + " bytes of it");
  MPI_Barrier(MPI_COMM_WORLD);  // pages that are given back are gone from all ranks
  MPI_Free_mem(large);
  MPI_Free_mem(first);
}

// Buffers of one round, of which some ranks have more from the MPI than others, or none.
class Mixed {
 public:
  static constexpr int kElements = 1000;

  explicit Mixed(int round) : ordinaryIn_(kElements), ordinaryOut_(kElements) {
    if (rank % 2 == 0) in = allocate(kElements);
    if (rank % 3 == 0) out = allocate(kElements);
    // Larger than a segment, so that there are several: on one rank, and later on another.
    if (rank == round / 100 && round % 100 == 50) large_ = allocate(40 << 20);
    fill(in, kElements);
  }
  ~Mixed() {
    if (in != ordinaryIn_.data()) MPI_Free_mem(in);
    if (out != ordinaryOut_.data()) MPI_Free_mem(out);
    if (large_ != nullptr) MPI_Free_mem(large_);
  }
  Mixed(const Mixed&) = delete;

 private:
  std::vector<double> ordinaryIn_, ordinaryOut_;
  double* large_ = nullptr;

 public:
  double* in = ordinaryIn_.data();
  double* out = ordinaryOut_.data();
};

void some() {
  for (int round = 0; round < 300; ++round) {
    const Mixed buffers(round);
    addUp(buffers.in, buffers.out, Mixed::kElements);
    expectSum(buffers.out, Mixed::kElements);
  }
}

// The same with several under way, blocking ones among them, and completed in any order.
void overlapping() {
  for (int round = 0; round < 300; round += 3) {
    const Mixed first(round), second(round + 1), third(round + 2);
    const MPI_Request one = startToAddUp(first.in, first.out, Mixed::kElements);
    const MPI_Request two = startToAddUp(second.in, second.out, Mixed::kElements);
    if ((round + rank) % 2 == 0) wait(two);
    if (round % 2 == 0) addUp(third.in, third.out, Mixed::kElements);
    else wait(startToAddUp(third.in, third.out, Mixed::kElements));
    if ((round + rank) % 2 != 0) wait(two);
    wait(one);
    for (const Mixed* each : {&first, &second, &third}) expectSum(each->out, Mixed::kElements);
  }
}

long touched(const void* begin, std::size_t bytes) {
  const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  std::vector<unsigned char> isThere(bytes / page);
  mincore(const_cast<void*>(begin), bytes, isThere.data());
  return static_cast<long>(page) *
         std::count_if(isThere.begin(), isThere.end(), [](unsigned char each) { return (each & 1) != 0; });
}

// Blocks of many sizes, allocated and given back in any order, do not overlap and keep what is written to them.
void blocks() {
  struct Block {
    double* begin;
    int count;
    double value;
  };
  std::mt19937 random(static_cast<unsigned>(rank));
  std::vector<Block> all;
  for (int round = 0; round < 4000; ++round) {
    if (all.size() < 60 && random() % 5 < 3) {
      const int count = 1 + static_cast<int>(random() % (random() % 8 == 0 ? 1000000 : 300));
      double* const begin = allocate(count);
      expect(reinterpret_cast<std::uintptr_t>(begin) % 16 == 0, "blocks are aligned");
      begin[0] = begin[count - 1] = round;
      all.push_back({begin, count, static_cast<double>(round)});
    } else if (!all.empty()) {
      std::swap(all[random() % all.size()], all.back());
      const Block& last = all.back();
      expect(last.begin[0] == last.value && last.begin[last.count - 1] == last.value, "blocks keep what is in them");
      MPI_Free_mem(last.begin);
      all.pop_back();
    }
  }
  for (const Block& each : all) MPI_Free_mem(each.begin);
  double* const large = allocate(kCount);
  fill(large, kCount);
  expect(touched(large, kBytes) == kBytes, "pages that are written to are there");
  MPI_Free_mem(large);
  expect(touched(large, kBytes) == 0, "the pages of what is given back go back to the system");

  MPI_Info info = MPI_INFO_NULL;
  MPI_Info_create(&info);
  MPI_Info_set(info, const_cast<char*>("mpi_minimum_memory_alignment"), const_cast<char*>("1024"));
  double* const small = allocate(1);
  double* const aligned = allocate(1, info);
  expect(reinterpret_cast<std::uintptr_t>(aligned) % 1024 == 0, "a block is aligned as it was asked for");
  MPI_Free_mem(small);
  MPI_Free_mem(aligned);
  MPI_Info_free(&info);
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_RETURN);
  void* none = nullptr;
  expect(MPI_Alloc_mem(-1, MPI_INFO_NULL, &none) != MPI_SUCCESS, "a negative size is an error");
}

int flavourOf(MPI_Win win) {
  int* flavour = nullptr;
  int isThere = 0;
  MPI_Win_get_attr(win, MPI_WIN_CREATE_FLAVOR, &flavour, &isThere);
  expect(isThere == 1, "windows have a flavour");
  return *flavour;
}

// The memory of a window is mapped by all ranks from the beginning, and so only what a collective touches is new.
template <class Allocate>
void windowBy(const Allocate& allocateWindow, int flavour) {
  void* memory = nullptr;
  MPI_Win win = MPI_WIN_NULL;
  allocateWindow(2 * kBytes, &memory, &win);
  expect(flavourOf(win) == flavour, "the window is of the flavour that was asked for");
  auto* const in = static_cast<double*>(memory);
  double* const out = in + kCount;
  fill(in, kCount);
  std::fill(out, out + kCount, -1.0);
  const long touched = touchedAround(in);
  MPI_Allreduce(in, out, kCount, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
  expectSum(out, kCount);
  const long more = touchedAround(in) - touched;
  expect(more >= kBytes / 2,
         "the peers' memory is used where it is, not only " + std::to_string(more) + " bytes of it");
  MPI_Barrier(MPI_COMM_WORLD);

  MPI_Win_lock_all(0, win);
  const double given = 100 + rank;
  const int next = (rank + 1) % ranks;
  MPI_Put(&given, 1, MPI_DOUBLE, next, 0, 1, MPI_DOUBLE, win);
  MPI_Win_unlock_all(win);
  MPI_Barrier(MPI_COMM_WORLD);
  expect(in[0] == 100 + (rank + ranks - 1) % ranks, "what the rank before has put is there");
  MPI_Win_free(&win);
  expect(win == MPI_WIN_NULL, "the window is gone");
}

void window() {
  windowBy([](MPI_Aint bytes, void* memory,
              MPI_Win* win) { MPI_Win_allocate(bytes, 1, MPI_INFO_NULL, MPI_COMM_WORLD, memory, win); },
           MPI_WIN_FLAVOR_ALLOCATE);
}

void shared() {
  windowBy([](MPI_Aint bytes, void* memory,
              MPI_Win* win) { MPI_Win_allocate_shared(bytes, 1, MPI_INFO_NULL, MPI_COMM_WORLD, memory, win); },
           MPI_WIN_FLAVOR_SHARED);
}

// Windows come and go, before and after their communicators, and with different sizes on each rank.
void windows() {
  for (int round = 0; round < 20; ++round) {
    MPI_Comm copy = MPI_COMM_NULL;
    MPI_Comm_dup(MPI_COMM_WORLD, &copy);
    MPI_Win win = MPI_WIN_NULL;
    double* memory = nullptr;
    const int count = rank == round % ranks ? 0 : 2000 + 100 * rank;
    MPI_Win_allocate(static_cast<MPI_Aint>(sizeof(double)) * count, sizeof(double), MPI_INFO_NULL, copy, &memory, &win);
    std::vector<double> other(2000);
    double* const buffer = count == 0 ? other.data() : memory;
    fill(buffer, 2000);
    MPI_Request request = MPI_REQUEST_NULL;
    MPI_Barrier(copy);
    MPI_Iallreduce(MPI_IN_PLACE, buffer, 2000, MPI_DOUBLE, MPI_SUM, copy, &request);
    MPI_Wait(&request, MPI_STATUS_IGNORE);
    if (round % 2 == 0) MPI_Comm_free(&copy);
    expectSum(buffer, 2000);
    MPI_Win_free(&win);
    if (round % 2 == 1) MPI_Comm_free(&copy);
  }
}

// Whether other memory of this process's now lies, and stays, where a range of memory was freed.
bool takeAgain(double* begin, int count) {
  const auto page = static_cast<std::uintptr_t>(sysconf(_SC_PAGESIZE));
  const auto end = reinterpret_cast<std::uintptr_t>(begin + count);
  auto* const first = reinterpret_cast<unsigned char*>(reinterpret_cast<std::uintptr_t>(begin) / page * page);
  const std::size_t bytes = (end - reinterpret_cast<std::uintptr_t>(first) + page - 1) / page * page;
  void* const taken =
      mmap(first, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
  if (taken != MAP_FAILED && taken != first) munmap(taken, bytes);
  return taken == first;
}

// A window has a communicator of its own: one rank may free it while it is in a collective on the communicator that the
// window was made of, by another thread or by a request, and the others come to the collective only after they have
// freed the window. What lies where the window's memory was is used as other memory is.
void apart() {
  constexpr int kElements = 100'000;
  MPI_Comm comm = MPI_COMM_NULL;
  MPI_Comm_dup(MPI_COMM_WORLD, &comm);
  const auto addUpThere = [&](double* buffer, int count) {
    fill(buffer, count);
    MPI_Allreduce(MPI_IN_PLACE, buffer, count, MPI_DOUBLE, MPI_SUM, comm);
    expectSum(buffer, count);
  };
  const auto startToAddUpThere = [&](double* buffer, int count) {
    MPI_Request request = MPI_REQUEST_NULL;
    fill(buffer, count);
    MPI_Iallreduce(MPI_IN_PLACE, buffer, count, MPI_DOUBLE, MPI_SUM, comm, &request);
    return request;
  };
  int sameAddresses = 0;
  for (int round = 0; round < 8; ++round) {
    const bool isFirst = rank == round % 2;
    const auto allocateWindow = round / 2 % 2 == 0 ? MPI_Win_allocate : MPI_Win_allocate_shared;
    const bool isByThread = round / 4 == 0;
    double* memory = nullptr;
    MPI_Win win = MPI_WIN_NULL;
    allocateWindow(sizeof(double) * kElements, sizeof(double), MPI_INFO_NULL, comm, &memory, &win);
    for (int i = 0; i < 2; ++i) addUpThere(memory, kElements);

    std::vector<double> other(kElements);
    if (isByThread) {
      std::thread waiting;
      if (isFirst) {
        waiting = std::thread([&] { addUpThere(other.data(), kElements); });
        usleep(100'000);  // then it is there
      }
      MPI_Win_free(&win);
      if (isFirst) waiting.join();
      else addUpThere(other.data(), kElements);
    } else {
      MPI_Request request = isFirst ? startToAddUpThere(other.data(), kElements) : MPI_REQUEST_NULL;
      MPI_Win_free(&win);
      if (!isFirst) request = startToAddUpThere(other.data(), kElements);
      wait(request);
      expectSum(other.data(), kElements);
    }

    const bool isSame = takeAgain(memory, kElements);
    if (isSame) ++sameAddresses;
    for (int i = 0; i < 2; ++i) addUpThere(isSame ? memory : other.data(), kElements);
  }
  if (rank == 0) std::printf("the same addresses in %d rounds\n", sameAddresses);
  MPI_Comm_free(&comm);
}

}  // namespace

int main(int argc, char** argv) {
  const std::string what = argc > 1 ? argv[1] : "";
  int level = MPI_THREAD_SINGLE;
  MPI_Init_thread(&argc, &argv, what == "apart" ? MPI_THREAD_MULTIPLE : MPI_THREAD_SINGLE, &level);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  if (what == "before") before();
  else if (what == "later") later();
  else if (what == "some") some();
  else if (what == "nonblocking") nonblocking();
  else if (what == "rooted") rooted();
  else if (what == "overlapping") overlapping();
  else if (what == "blocks") blocks();
  else if (what == "ordinary") ordinary();
  else if (what == "window") window();
  else if (what == "shared") shared();
  else if (what == "windows") windows();
  else if (what == "apart") apart();
  else expect(false, "the first argument says what to do");
  if (rank == 0) std::printf("%s: ok\n", what.c_str());
  MPI_Finalize();
}
