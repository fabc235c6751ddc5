/* Messages between two ranks by Kolo, measured as mpi_bench and gloo_bench measure theirs: what kolo-perf's send_recv,
 * which goes both ways at once, does not show.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * Usage: kolo_messages SIZES PATTERNS [MEMORY]
 *        PATTERNS: one_way, stream, ping_pong, rally, by commas. MEMORY: plain, or window.
 * Two ranks, as koloCommInitFromEnv finds them.
 * Rank 0 prints a line for each measurement: pattern, size asked for, bytes moved, memory, microseconds of a call,
 * of a stream those of one of its messages. A rally is what ib_write_lat does: messages that go there and back, many in
 * a row, each timed by itself; the figure is the median.
 */
#include <kolo/kolo.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
  size_t count; /* floats */
  float *send, *recv;
} call_t;
typedef void (*function_t)(const call_t*);

#include "method.h"

enum { STREAM_LENGTH = 8, RALLY_WARMUPS = 100, RALLY_LENGTH = 2000 };

static koloComm_t comm;
static int rank;

static void check(koloResult_t result) {
  if (result == koloSuccess) return;
  fprintf(stderr, "kolo_messages: rank %d: %s\n", rank, koloGetLastError(NULL));
  exit(2);
}

static void wait_for_all(void) { check(koloBarrier(comm, NULL)); }
static void maxima(double* own, double* all, int count) {
  check(koloAllReduce(own, all, (size_t)count, koloFloat64, koloMax, comm, NULL));
}

static void send(const call_t* c) { check(koloSend(c->send, c->count, koloFloat32, 1 - rank, comm, NULL)); }
static void receive(const call_t* c) { check(koloRecv(c->recv, c->count, koloFloat32, 1 - rank, comm, NULL)); }

static void one_way(const call_t* c) {
  if (rank == 0) send(c);
  if (rank == 1) receive(c);
}
/* Many in a row, so that what begins and ends it does not count. */
static void stream(const call_t* c) {
  for (int i = 0; i < STREAM_LENGTH; ++i) one_way(c);
}
static void ping_pong(const call_t* c) {
  if (rank == 0) send(c);
  receive(c);
  if (rank == 1) send(c);
}

/* Microseconds of a message there and back. No barrier is near, after which one side is later than the other. */
static double rally(const call_t* c) {
  static double samples[RALLY_LENGTH];
  wait_for_all();
  for (int i = 0; i < RALLY_WARMUPS; ++i) ping_pong(c);
  double begin = now_us();
  for (int i = 0; i < RALLY_LENGTH; ++i) {
    ping_pong(c);
    const double end = now_us();
    samples[i] = end - begin;
    begin = end;
  }
  qsort(samples, RALLY_LENGTH, sizeof *samples, by_value);
  return samples[RALLY_LENGTH / 2];
}

typedef struct {
  void* data;
  koloWindow_t window; /* NULL: ordinary memory */
} memory_t;

static memory_t allocate(size_t bytes, int in_window) {
  memory_t memory = {NULL, NULL};
  if (!in_window) {
    if (posix_memalign(&memory.data, 4096, bytes) != 0) exit(2);
  } else {
    check(koloMemAlloc(&memory.data, bytes));
    check(koloWindowRegister(comm, memory.data, bytes, &memory.window));
  }
  memset(memory.data, 0, bytes);
  return memory;
}

static void release(memory_t memory) {
  if (memory.window == NULL) {
    free(memory.data);
    return;
  }
  check(koloWindowDeregister(comm, memory.window));
  check(koloMemFree(memory.data));
}

typedef struct {
  const char* name;
  function_t function; /* NULL: a rally */
  int length;
} pattern_t;
static const pattern_t patterns[] = {
    {"one_way", one_way, 1}, {"stream", stream, STREAM_LENGTH}, {"ping_pong", ping_pong, 1}, {"rally", NULL, 1}};

static const pattern_t* find(const char* name) {
  for (size_t i = 0; i < sizeof patterns / sizeof *patterns; ++i) {
    if (strcmp(patterns[i].name, name) == 0) return &patterns[i];
  }
  fprintf(stderr, "kolo_messages: there is no pattern \"%s\"\n", name);
  exit(2);
}

static void run(const char* pattern, size_t bytes, int in_window) {
  const size_t count = bytes < sizeof(float) ? 1 : bytes / sizeof(float);
  const memory_t out = allocate(count * sizeof(float), in_window), in = allocate(count * sizeof(float), in_window);
  const call_t call = {count, out.data, in.data};
  const pattern_t* const known = find(pattern);
  const double us = known->function == NULL ? rally(&call) : measure(known->function, &call) / known->length;
  if (rank == 0)
    printf("%s %zu %zu %s %.4f\n", pattern, bytes, count * sizeof(float), in_window ? "window" : "plain", us);
  release(out);
  release(in);
}

int main(int argc, char** argv) {
  enum { most = 64 };
  size_t sizes[most];
  int ranks = 0, size_count = 0;
  const int in_window = argc == 4 && strcmp(argv[3], "window") == 0;
  if ((argc != 3 && argc != 4) || (argc == 4 && !in_window && strcmp(argv[3], "plain") != 0)) {
    return fprintf(stderr, "usage: kolo_messages SIZES PATTERNS [plain|window]\n"), 2;
  }
  check(koloCommInitFromEnv(&comm, NULL));
  check(koloCommUserRank(comm, &rank));
  check(koloCommCount(comm, &ranks));
  if (ranks != 2) return fprintf(stderr, "kolo_messages: %d ranks, expected 2\n", ranks), 2;
  for (char* word = strtok(argv[1], ","); word != NULL && size_count < most; word = strtok(NULL, ",")) {
    sizes[size_count++] = strtoull(word, NULL, 10);
  }
  for (char* word = strtok(argv[2], ","); word != NULL; word = strtok(NULL, ",")) {
    for (int i = 0; i < size_count; ++i) run(word, sizes[i], in_window);
  }
  check(koloCommDestroy(comm));
  return 0;
}
