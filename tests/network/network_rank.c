/* A rank of the tests between hosts. Prints lines for the test to read, and exits with 0 unless a value was wrong.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * network_rank join            joins and leaves
 * network_rank threads         three ranks in this process alone add up
 * network_rank messages        messages between all pairs, of many sizes
 * network_rank loop BYTES N    so many all-reduces of so many bytes
 * network_rank windows BYTES N so many messages of so many bytes from each rank to the next, from window to window
 * network_rank circle          each rank waits for a message of the next one, which none sends
 * network_rank outlive         all-reduces over and over, without the ranks that end meanwhile, down to the last one
 *
 * Every role says "joined" once it has a communicator, "done" at the end, or "failed CODE MS MESSAGE", with the
 * monotonic clock's milliseconds, and then destroys the communicator as a program would; and "left" after that.
 */
#define _POSIX_C_SOURCE 200112L
#include <kolo/kolo.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static koloComm_t comm;
static int rank, ranks;

static long long now_ms(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * 1000LL + now.tv_nsec / 1000000;
}

static int failed(koloResult_t result) {
  if (result == koloSuccess) return 0;
  printf("failed %d %lld %s\n", result, now_ms(), koloGetLastError(NULL));
  fflush(stdout);
  return 1;
}

static void wrong(const char* what, size_t at) {
  printf("wrong: %s at %zu\n", what, at);
  exit(1);
}

static int join_all(void) {
  if (failed(koloCommInitFromEnv(&comm, NULL))) return 0;
  koloCommUserRank(comm, &rank);
  koloCommCount(comm, &ranks);
  puts("joined");
  return 1;
}

static int* ints(size_t count) {
  int* const memory = malloc((count + 1) * sizeof(int));
  if (memory == NULL) exit(3);
  return memory;
}

static int value(int from, int to, size_t at) { return from * 1000003 + to * 10007 + (int)(at % 9973); }

/* To every other rank at once, and from every other one; count differs from pair to pair. */
static int exchange(size_t most) {
  int** const out = calloc((size_t)ranks, sizeof *out);
  int** const in = calloc((size_t)ranks, sizeof *in);
  int bad = failed(koloGroupStart());
  for (int peer = 0; peer < ranks && !bad; ++peer) {
    const size_t sent = most + (size_t)(3 * rank + peer), got = most + (size_t)(3 * peer + rank);
    if (peer == rank) continue;
    out[peer] = ints(sent);
    in[peer] = ints(got);
    for (size_t i = 0; i < sent; ++i) out[peer][i] = value(rank, peer, i);
    bad = failed(koloSend(out[peer], sent, koloInt32, peer, comm, NULL)) ||
          failed(koloRecv(in[peer], got, koloInt32, peer, comm, NULL));
  }
  bad = failed(koloGroupEnd()) || bad;
  for (int peer = 0; peer < ranks; ++peer) {
    const size_t got = most + (size_t)(3 * peer + rank);
    for (size_t i = 0; i < got && in[peer] != NULL && !bad; ++i) {
      if (in[peer][i] != value(peer, rank, i)) wrong("a message", i);
    }
    free(in[peer]);
    free(out[peer]);
  }
  free(in);
  free(out);
  return !bad;
}

/* With tags, taken in the other order; rank 0 takes from whom it comes first. */
static int tagged(void) {
  int first = 100 + rank, second = 200 + rank, got = -1;
  koloRecvStatus_t status;
  if (rank != 0) {
    return !failed(koloSendTag(&first, 1, koloInt32, 0, 7, comm, NULL)) &&
           !failed(koloSendTag(&second, 1, koloInt32, 0, 8, comm, NULL));
  }
  for (int i = 1; i < ranks; ++i) {
    if (failed(koloRecvTag(&got, 1, koloInt32, KOLO_ANY_SOURCE, 8, &status, comm, NULL))) return 0;
    if (got != 200 + status.source) wrong("a tagged message", (size_t)status.source);
  }
  for (int from = 1; from < ranks; ++from) {
    if (failed(koloRecvTag(&got, 1, koloInt32, from, 7, NULL, comm, NULL))) return 0;
    if (got != 100 + from) wrong("a tagged message", (size_t)from);
  }
  return 1;
}

static int messages(void) {
  static const size_t sizes[] = {0, 1, 2, 11, 100, 4000, 70000, 1000000};
  for (int round = 0; round < 3; ++round) {
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; ++i) {
      if (!exchange(sizes[i]) || !tagged()) return 0;
    }
  }
  return 1;
}

static int loop(size_t bytes, int times) {
  const size_t count = bytes / sizeof(int);
  int* const in = ints(count);
  int* const out = ints(count);
  int goes = 1;
  for (int i = 0; i < times && goes; ++i) {
    int sum = 0;
    for (int from = 0; from < ranks; ++from) sum += value(from, i, 0);
    for (size_t at = 0; at < count; ++at) in[at] = value(rank, i, 0) + (int)(at % 9973);
    goes = !failed(koloAllReduce(in, out, count, koloInt32, koloSum, comm, NULL));
    for (size_t at = 0; at < count && goes; ++at) {
      if (out[at] != sum + ranks * (int)(at % 9973)) wrong("a sum", at);
    }
    if (i == 1) puts("ready");
  }
  free(in);
  free(out);
  return goes;
}

static int windows(size_t bytes, int times) {
  const size_t count = bytes / sizeof(int);
  const int next = (rank + 1) % ranks, last = (rank + ranks - 1) % ranks;
  void *out = NULL, *in = NULL;
  koloWindow_t of_out, of_in;
  int goes = !failed(koloMemAlloc(&out, bytes)) && !failed(koloMemAlloc(&in, bytes)) &&
             !failed(koloWindowRegister(comm, out, bytes, &of_out)) &&
             !failed(koloWindowRegister(comm, in, bytes, &of_in));
  for (int i = 0; i < times && goes; ++i) {
    for (size_t at = 0; at < count; ++at) ((int*)out)[at] = value(rank, i, at);
    goes = !failed(koloGroupStart()) && !failed(koloSend(out, count, koloInt32, next, comm, NULL)) &&
           !failed(koloRecv(in, count, koloInt32, last, comm, NULL)) && !failed(koloGroupEnd());
    for (size_t at = 0; at < count && goes; ++at) {
      if (((const int*)in)[at] != value(last, i, at)) wrong("a message", at);
    }
    if (i == 1) puts("ready");
  }
  return goes && !failed(koloWindowDeregister(comm, of_out)) && !failed(koloWindowDeregister(comm, of_in)) &&
         !failed(koloMemFree(out)) && !failed(koloMemFree(in));
}

/* Says "N are together" as soon as so many have added up, and "lost MS MESSAGE" when that fails. */
static int outlive(void) {
  for (;;) {
    int one = 1, sum = 0;
    koloResult_t result = koloAllReduce(&one, &sum, 1, koloInt32, koloSum, comm, NULL);
    if (result == koloSuccess) printf("%d are together\n", sum);
    while (result == koloSuccess && ranks > 1) {
      if (sum != ranks) wrong("a sum", 0);
      result = koloAllReduce(&one, &sum, 1, koloInt32, koloSum, comm, NULL);
    }
    if (result == koloSuccess) return 1;
    printf("lost %lld %s\n", now_ms(), koloGetLastError(NULL));
    koloComm_t rest;
    if (failed(koloCommShrink(comm, NULL, 0, &rest, NULL))) return 0;
    koloCommDestroy(comm);
    comm = rest;
    koloCommCount(comm, &ranks);
  }
}

static int threads(void) {
  koloComm_t comms[3];
  int one = 1, sums[3] = {0, 0, 0}, goes;
  if (failed(koloCommInitAll(comms, 3, NULL))) return 0;
  goes = !failed(koloGroupStart());
  for (int i = 0; i < 3; ++i)
    goes = !failed(koloAllReduce(&one, &sums[i], 1, koloInt32, koloSum, comms[i], NULL)) && goes;
  goes = !failed(koloGroupEnd()) && goes;
  for (int i = 0; i < 3; ++i) {
    if (goes && sums[i] != 3) wrong("a sum", (size_t)i);
    goes = !failed(koloCommDestroy(comms[i])) && goes;
  }
  return goes;
}

static int circle(void) {
  int one = 1;
  if (failed(koloAllReduce(&one, &one, 1, koloInt32, koloSum, comm, NULL))) return 0;
  puts("ready");
  return !failed(koloRecv(&one, 1, koloInt32, (rank + 1) % ranks, comm, NULL));
}

int main(int argc, char** argv) {
  int well = 0;
  const char* const role = argc > 1 ? argv[1] : "";
  setvbuf(stdout, NULL, _IOLBF, 0);
  if (strcmp(role, "threads") == 0) return threads() ? puts("done") < 0 : 0;
  if (!join_all()) return puts("left") < 0;
  if (strcmp(role, "join") == 0) well = !failed(koloBarrier(comm, NULL));
  if (strcmp(role, "messages") == 0) well = messages();
  if (strcmp(role, "loop") == 0 && argc == 4) well = loop(strtoull(argv[2], NULL, 10), atoi(argv[3]));
  if (strcmp(role, "windows") == 0 && argc == 4) well = windows(strtoull(argv[2], NULL, 10), atoi(argv[3]));
  if (strcmp(role, "circle") == 0) well = circle();
  if (strcmp(role, "outlive") == 0) well = outlive();
  if (well) puts("done");
  koloCommDestroy(comm);
  return puts("left") < 0;
}
