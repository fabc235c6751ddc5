/* What a rank says of itself, in one line: who it is, and whether all it met are of its own job (JOB_TAG names it).
 *
 * usage: kolo-rank-report [RANK]      with RANK, that rank dies, and the others wait for it
 *
 * Exit status: 0; 1 if a value was wrong or a rank of another job was met; 2 if the library reported an error. */
#define _POSIX_C_SOURCE 200809L
#include <kolo/kolo.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { kTagBytes = 32 };

/* Whole lines, by one system call each: those of several ranks share a pipe. */
static void say(const char* line) {
  if (write(STDOUT_FILENO, line, strlen(line)) < 0) exit(1);
}

static int refused(int rank, const char* call) {
  char line[2048];
  snprintf(line, sizeof line, "rank %d: %s: %s\n", rank, call, koloGetLastError(NULL));
  say(line);
  return 2;
}

/* Whether all ranks are there, and of one job. */
static int meet(koloComm_t comm, int rank, int ranks, const char* tag) {
  char* const tags = malloc((size_t)ranks * kTagBytes);
  int sum = rank, strangers = 0, i;
  if (tags == NULL) return 1;
  if (koloAllGather(tag, tags, kTagBytes, koloUint8, comm, NULL) != koloSuccess) return refused(rank, "koloAllGather");
  for (i = 0; i < ranks; ++i) strangers += memcmp(tags + (size_t)i * kTagBytes, tag, kTagBytes) != 0;
  free(tags);
  if (koloAllReduce(&sum, &sum, 1, koloInt32, koloSum, comm, NULL) != koloSuccess)
    return refused(rank, "koloAllReduce");
  return strangers > 0 || sum != ranks * (ranks - 1) / 2;
}

int main(int argc, char** argv) {
  const char* const job = getenv("JOB_TAG");
  char tag[kTagBytes] = "", line[128];
  koloComm_t comm = NULL;
  int rank = -1, ranks = -1, wrong;

  strncpy(tag, job != NULL ? job : "none", sizeof tag - 1);
  if (koloCommInitFromEnv(&comm, NULL) != koloSuccess) return refused(-1, "koloCommInitFromEnv");
  if (koloCommUserRank(comm, &rank) != koloSuccess || koloCommCount(comm, &ranks) != koloSuccess) return 1;
  wrong = meet(comm, rank, ranks, tag);
  if (wrong != 0) return wrong;
  snprintf(line, sizeof line, "rank %d of %d in %s\n", rank, ranks, tag);
  say(line);
  if (argc > 1) {
    if (atoi(argv[1]) == rank) raise(SIGKILL);
    while (koloBarrier(comm, NULL) == koloSuccess) {
    }
    return refused(rank, "koloBarrier");
  }
  return koloCommDestroy(comm) == koloSuccess ? 0 : refused(rank, "koloCommDestroy");
}
