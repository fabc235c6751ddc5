/* What the machine itself allows between two of its cores: the time in which two processes exchange one cache line
 * each, how fast both copy at once, and the time of the least work that an all-gather of ordinary memory is.
 *
 * usage: limits CORE CORE      prints: EXCHANGE_NS COPY_GBPS GATHER_US
 *
 * The exchange is the shape of the smallest all-reduce: each writes a line and waits for the other's. The copy is of 32
 * MiB, out of memory, by memcpy, in both processes at the same time; GB/s (10^9) of bytes copied by each. The
 * all-gather is of 128 KiB a process: the kernel copies the other's out of its memory (process_vm_readv), memcpy one's
 * own, the same buffers each time; 0 where the kernel refuses.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#define _GNU_SOURCE
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { kExchanges = 100000, kGathers = 1000, kRepeats = 3, kPage = 4096 };
static const size_t kCopyBytes = (size_t)32 << 20, kGatherBytes = (size_t)128 << 10;

static double now_ns(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

static void bind_to(int core) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(core, &set);
  if (sched_setaffinity(0, sizeof set, &set) != 0) {
    perror("limits: sched_setaffinity");
    exit(2);
  }
}

/* Returns when both have come. */
static void meet(atomic_long* mine, atomic_long* theirs, long number) {
  atomic_store_explicit(mine, number, memory_order_release);
  while (atomic_load_explicit(theirs, memory_order_acquire) < number) {
  }
}

int main(int argc, char** argv) {
  if (argc != 3) {
    fprintf(stderr, "usage: limits CORE CORE\n");
    return 2;
  }
  char* const shared = mmap(NULL, 2 * kPage, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  char *const from = malloc(kCopyBytes), *const to = malloc(kCopyBytes);
  if (shared == MAP_FAILED || from == NULL || to == NULL) {
    fprintf(stderr, "limits: out of memory\n");
    return 2;
  }
  const pid_t child = fork();
  if (child < 0) {
    perror("limits: fork");
    return 2;
  }
  const int me = child == 0;
  const pid_t other = me ? getppid() : child;
  bind_to(atoi(argv[1 + me]));
  atomic_long* const mine = (atomic_long*)(void*)(shared + me * kPage);
  atomic_long* const theirs = (atomic_long*)(void*)(shared + !me * kPage);
  memset(from, me, kCopyBytes);
  memset(to, me, kCopyBytes);
  long number = 0;
  double exchange = 1e18, copy = 1e18, gather = 1e18;
  atomic_int* const isRefused = (atomic_int*)(void*)(shared + 64);
  for (int repeat = 0; repeat < kRepeats; ++repeat) {
    double begin = now_ns();
    for (int i = 0; i < kExchanges; ++i) meet(mine, theirs, ++number);
    double each = (now_ns() - begin) / kExchanges;
    exchange = each < exchange ? each : exchange;
    begin = now_ns();
    memcpy(to, from, kCopyBytes);
    each = now_ns() - begin;
    copy = each < copy ? each : copy;
    each = 0;
    for (int i = 0; i < kGathers; ++i) {
      meet(mine, theirs, ++number);
      begin = now_ns();
      const struct iovec there = {from, kGatherBytes}, here = {to, kGatherBytes};
      if (process_vm_readv(other, &here, 1, &there, 1, 0) != (ssize_t)kGatherBytes) atomic_store(isRefused, 1);
      memcpy(to + kGatherBytes, from, kGatherBytes);
      each += (now_ns() - begin) / kGathers;
    }
    gather = each < gather ? each : gather;
    meet(mine, theirs, ++number);
  }
  if (me) _exit(0);
  int status = 0;
  if (waitpid(child, &status, 0) != child || status != 0) return 2;
  printf("%.1f %.2f %.2f\n", exchange, (double)kCopyBytes / copy, atomic_load(isRefused) ? 0 : gather / 1000);
  return 0;
}
