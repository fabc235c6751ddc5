// A send that fails gives its buffer back, and the program may write there at once. A receive ends with the bytes that
// were sent, or with an error: never with what the buffer held later, by whatever way the bytes travel. In these tests
// the receiver, or the transport, comes late on purpose.
#include <dlfcn.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>

#include "support/ranks.h"
#include "support/settings.h"

using namespace kolo::test;
using namespace std::chrono_literals;

namespace {

constexpr size_t kBytes = 200000;
constexpr unsigned char kSent = 1, kLater = 2;

template <class Condition>
void await(const Condition& condition) {
  while (!condition()) std::this_thread::sleep_for(1ms);
}

// Stops a rank in the middle of a call: the library calls the function while it waits.
struct Gate {
  std::atomic<bool> isOpen{true}, isWaiting{false};
  static void pass(void* self) {
    auto* const gate = static_cast<Gate*>(self);
    await([&] {
      gate->isWaiting = true;  // in each look: another thread may have closed the gate, and asks who came after that
      return gate->isOpen.load();
    });
  }
};

struct Scene {
  bool registered = false;   // buffers lie in windows
  bool looksBefore = false;  // the receiver has called, and looked, before the message is sent
  std::function<void(Gate& receiver)> beforeAbort = [](Gate&) {};
  std::function<void()> afterFailing = [] {};
};

// Rank 1 sends to rank 0, and waits for rank 2, which aborts the communicator instead. Then rank 1 writes its buffer,
// and only now rank 0 goes on.
void expectNothingLater(const Scene& scene) {
  World world(3);
  Gate receiver, sender;
  receiver.isOpen = scene.looksBefore;
  std::vector<unsigned char*> memory(3);
  for (auto& each : memory) REQUIRE_OK(koloMemAlloc(reinterpret_cast<void**>(&each), kBytes));
  world.run([&](Self& self) {
    unsigned char* const data = memory[static_cast<size_t>(self.rank)];
    std::fill_n(data, kBytes, self.rank == 1 ? kSent : 0);
    koloWindow_t window;
    if (scene.registered) EXPECT_OK(self, koloWindowRegister(self.comm, data, kBytes, &window));
    EXPECT_OK(self, koloBarrier(self.comm, nullptr));
    EXPECT_OK(self, koloCommSetProgress(self.comm, Gate::pass, self.rank == 0 ? &receiver : &sender));
    if (self.rank == 0) {
      const koloResult_t result = koloRecv(data, kBytes, koloUint8, 1, self.comm, nullptr);
      const std::string why = koloGetLastError(nullptr);
      EXPECT(self, result == koloAborted);
      EXPECT(self, why.find("rank 2 called koloCommAbort") != std::string::npos);
      EXPECT(self,
             result != koloSuccess || std::count(data, data + kBytes, kSent) == static_cast<std::ptrdiff_t>(kBytes));
    } else if (self.rank == 1) {
      unsigned char other = 0;
      await([&] { return receiver.isWaiting.load(); });
      EXPECT_OK(self, koloGroupStart());
      EXPECT_OK(self, koloSend(data, kBytes, koloUint8, 0, self.comm, nullptr));
      EXPECT_OK(self, koloRecv(&other, 1, koloUint8, 2, self.comm, nullptr));
      EXPECT_CODE(self, koloAborted, koloGroupEnd());
      std::fill_n(data, kBytes, kLater);
      scene.afterFailing();
      receiver.isOpen = true;
    } else {
      await([&] { return sender.isWaiting.load(); });
      scene.beforeAbort(receiver);
      EXPECT_OK(self, koloCommAbort(std::exchange(world[2], nullptr)));
    }
  });
  for (int rank = 0; rank < 2; ++rank)
    koloCommDestroy(std::exchange(world[rank], nullptr));  // before the memory of its window goes
  for (unsigned char* each : memory) REQUIRE_OK(koloMemFree(each));
}

}  // namespace

TEST_CASE("a message is not taken out of a window in which its sender may write again", "[threads][links]") {
  expectNothingLater({.registered = true});
}

TEST_CASE("a message is not read out of a buffer that its sender may write again") {
  withSettings({{"KOLO_SINGLE_COPY_BYTES", "0"}, {"KOLO_TRANSPORTS", "shm"}}, [] { expectNothingLater({}); });
}

TEST_CASE("a message is not put out of a buffer that its sender may write again", "[threads]") {
  withSettings({{"KOLO_TRANSPORT_PLUGINS", std::getenv("KOLO_TEST_LATE_PLUGIN")}, {"KOLO_TRANSPORTS", "late"}}, [] {
    void* const late = dlopen(std::getenv("KOLO_TEST_LATE_PLUGIN"), RTLD_NOW);
    REQUIRE(late != nullptr);
    const auto straightBytes = reinterpret_cast<unsigned long (*)()>(dlsym(late, "koloLateStraightBytes"));
    const auto hold = reinterpret_cast<void (*)(int)>(dlsym(late, "koloLateHold"));
    const auto carryOut = reinterpret_cast<void (*)(int)>(dlsym(late, "koloLateCarryOut"));
    hold(1);
    expectNothingLater({.looksBefore = true,
                        .beforeAbort =
                            [&](Gate& receiver) {
                              await([&] {
                                return straightBytes() == kBytes;
                              });  // rank 1 has put all of the message, and none has gone
                              receiver.isOpen = false;
                              receiver.isWaiting = false;
                              await([&] { return receiver.isWaiting.load(); });
                            },
                        .afterFailing = [&] { carryOut(1); }});
    dlclose(late);
  });
}
