// What a returned send promised is delivered, whatever the sender does next but die: destroys its communicator, and
// ends.
#include <signal.h>

#include <cstring>
#include <string>
#include <vector>

#include "process/job.h"
#include "process/roles.h"

using namespace kolo::test;

namespace {

constexpr int kReceiver = 1;

unsigned char valueOf(int rank, int message) { return static_cast<unsigned char>(1 + rank * 50 + message); }

// Until the test has seen that the others are gone. From the start on, the signal waits for this.
sigset_t blockWord() {
  sigset_t word;
  sigemptyset(&word);
  sigaddset(&word, SIGUSR1);
  MUST(pthread_sigmask(SIG_BLOCK, &word, nullptr) == 0);
  return word;
}
void awaitWord(const sigset_t& word) {
  int number = 0;
  std::printf("ready\n");
  MUST(sigwait(&word, &number) == 0);
}

void receiveAll(koloComm_t comm, int ranks, int messages, size_t bytes, bool fromAny) {
  std::vector<unsigned char> data(bytes);
  std::vector<int> next(static_cast<size_t>(ranks), 0);
  for (int i = 0; i < messages * (ranks - 1); ++i) {
    const int named = i / messages < kReceiver ? i / messages : i / messages + 1;
    koloRecvStatus_t status{};
    MUST_OK(koloRecvTag(data.data(), bytes, koloUint8, fromAny ? KOLO_ANY_SOURCE : named, 5, &status, comm, nullptr));
    MUST(status.count == bytes);
    const unsigned char expected = valueOf(status.source, next[static_cast<size_t>(status.source)]++);
    for (const unsigned char byte : data) MUST(byte == expected);
  }
}

// arguments: messages, bytes of each, "world" or "split", "any" or "named". All but the receiver send, destroy the
// communicator, and end; or do something else in another one.
int sendAndLeave(const std::vector<std::string>& arguments) {
  const sigset_t word = blockWord();
  const int messages = std::stoi(arguments[0]);
  const size_t bytes = std::stoul(arguments[1]);
  const bool isSplit = arguments[2] == "split";
  koloComm_t world = nullptr, comm = nullptr;
  int rank = -1, ranks = 0;
  MUST_OK(koloCommInitFromEnv(&world, nullptr));
  MUST_OK(koloCommUserRank(world, &rank));
  MUST_OK(koloCommCount(world, &ranks));
  comm = world;
  if (isSplit) MUST_OK(koloCommSplit(world, 0, rank, &comm, nullptr));
  if (rank == kReceiver) {
    awaitWord(word);
    receiveAll(comm, ranks, messages, bytes, arguments[3] == "any");
  } else {
    for (int i = 0; i < messages; ++i) {
      std::vector<unsigned char> data(bytes, valueOf(rank, i));
      MUST_OK(koloSendTag(data.data(), bytes, koloUint8, kReceiver, 5, comm, nullptr));
    }
  }
  MUST_OK(koloCommDestroy(comm));
  std::printf("gone\n");
  if (!isSplit) return 0;
  int one = 1, sum = 0;
  MUST_OK(koloAllReduce(&one, &sum, 1, koloInt32, koloSum, world, nullptr));
  MUST(sum == ranks);
  MUST_OK(koloCommDestroy(world));
  return 0;
}
KOLO_ROLE(sendAndLeave);

void expectDelivered(const std::vector<std::string>& arguments, const Environment& environment) {
  std::string text;
  for (const std::string& argument : arguments) text += argument + " ";
  for (const auto& [name, value] : environment) text += name + "=" + value + " ";
  INFO(text);
  Job job(3, "sendAndLeave", arguments, environment);
  for (const int rank : {0, 2}) {
    place(KOLO_HERE ": until a sender has gone", rank);
    CHECK(job[rank].waitForLine("gone", kPatience));
    if (arguments[2] == "world") CHECK(job.wait(rank).exitedWith(0));
  }
  CHECK(job[kReceiver].waitForLine("ready", kPatience));
  job[kReceiver].signal(SIGUSR1);
  job.expectSuccess();
}

}  // namespace

TEST_CASE("messages are received though their senders have destroyed the communicator since, and ended") {
  for (const char* const transports : {"tcp", "shm"}) {
    // With 1, links are opened by the first message: the receiver has none when the sender has gone.
    for (const char* const connected : {"64", "1"}) {
      // A message that the receiver reads out of its sender's memory ends with that: by default, the processor decides
      // from how many bytes on.
      const Environment environment = {{"KOLO_TRANSPORTS", transports},
                                       {"KOLO_TEST_CONNECT_ALL_RANKS", connected},
                                       {"KOLO_SINGLE_COPY_BYTES", std::to_string(1 << 20)}};
      for (const char* const bytes : {"10", "16000"}) {
        expectDelivered({"4", bytes, "world", "any"}, environment);
        expectDelivered({"3", bytes, "world", "named"}, environment);
      }
      expectDelivered({"3", "3000", "split", "any"}, environment);
    }
  }
}
