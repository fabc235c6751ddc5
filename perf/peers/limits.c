/* What the machine itself allows between two of its cores: the time in which two processes exchange one cache line each, and
 * how fast both copy at once.
 *
 * usage: limits CORE CORE      prints: EXCHANGE_NS COPY_GBPS
 *
 * The exchange is the shape of the smallest all-reduce: each writes a line and waits for the other's. The copy is of 32 MiB, out
 * of memory, by memcpy, in both processes at the same time; GB/s (10^9) of bytes copied by each.
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
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { kExchanges = 100000, kRepeats = 3, kPage = 4096 };
static const size_t kCopyBytes = (size_t)32 << 20;

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
  bind_to(atoi(argv[1 + me]));
  atomic_long* const mine = (atomic_long*)(void*)(shared + me * kPage);
  atomic_long* const theirs = (atomic_long*)(void*)(shared + !me * kPage);
  memset(from, me, kCopyBytes);
  memset(to, me, kCopyBytes);
  long number = 0;
  double exchange = 1e18, copy = 1e18;
  for (int repeat = 0; repeat < kRepeats; ++repeat) {
    double begin = now_ns();
    for (int i = 0; i < kExchanges; ++i) {
      atomic_store_explicit(mine, ++number, memory_order_release);
      while (atomic_load_explicit(theirs, memory_order_acquire) < number) {
      }
    }
    double each = (now_ns() - begin) / kExchanges;
    exchange = each < exchange ? each : exchange;
    begin = now_ns();
    memcpy(to, from, kCopyBytes);
    each = now_ns() - begin;
    copy = each < copy ? each : copy;
  }
  if (me) _exit(0);
  int status = 0;
  if (waitpid(child, &status, 0) != child || status != 0) return 2;
  printf("%.1f %.2f\n", exchange, (double)kCopyBytes / copy);
  return 0;
}
