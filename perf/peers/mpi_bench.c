/* The peers' side of tools/compare-peers: the collectives that kolo-perf measures, by MPI, with kolo-perf's method.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * Usage: mpi_bench SIZES COLLECTIVES [MEMORY]      e.g.  mpi_bench 8,2048,131072 all_reduce,broadcast
 * Sizes are bytes, counted as kolo-perf counts them (perf/README.md); float, sum, root 0. Rank 0 prints a line for each
 * measurement: collective, size asked for, bytes moved, memory (malloc or alloc_mem), microseconds of a call. MEMORY:
 * one of these only. one_way and ping_pong are messages between ranks 0 and 1. "+barrier" behind a collective's name:
 * each call and a barrier after it, both measured. method.h has the method.
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PAGE 4096

typedef struct {
  const char* name;
  size_t count; /* elements of one block */
  float *send, *recv;
} call_t;
typedef void (*function_t)(const call_t*);

#include "method.h"

static int rank, ranks;

/* Whether a name, but for "+barrier", is this one. */
static int is(const char* name, const char* which) {
  const size_t length = strlen(which);
  return strncmp(name, which, length) == 0 && (name[length] == '\0' || strcmp(name + length, "+barrier") == 0);
}

static int holds_blocks(const char* name) {
  return is(name, "all_gather") || is(name, "reduce_scatter") || is(name, "all_to_all") || is(name, "gather") ||
         is(name, "scatter");
}

static void all_reduce(const call_t* c) {
  MPI_Allreduce(c->send, c->recv, (int)c->count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
}
static void all_gather(const call_t* c) {
  MPI_Allgather(c->send, (int)c->count, MPI_FLOAT, c->recv, (int)c->count, MPI_FLOAT, MPI_COMM_WORLD);
}
static void reduce_scatter(const call_t* c) {
  MPI_Reduce_scatter_block(c->send, c->recv, (int)c->count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
}
/* One buffer on every rank: compare-peers sets it beside kolo-perf's broadcast in place. */
static void broadcast(const call_t* c) { MPI_Bcast(c->recv, (int)c->count, MPI_FLOAT, 0, MPI_COMM_WORLD); }
static void reduce(const call_t* c) {
  MPI_Reduce(c->send, c->recv, (int)c->count, MPI_FLOAT, MPI_SUM, 0, MPI_COMM_WORLD);
}
static void all_to_all(const call_t* c) {
  MPI_Alltoall(c->send, (int)c->count, MPI_FLOAT, c->recv, (int)c->count, MPI_FLOAT, MPI_COMM_WORLD);
}
static void gather(const call_t* c) {
  MPI_Gather(c->send, (int)c->count, MPI_FLOAT, c->recv, (int)c->count, MPI_FLOAT, 0, MPI_COMM_WORLD);
}
static void scatter(const call_t* c) {
  MPI_Scatter(c->send, (int)c->count, MPI_FLOAT, c->recv, (int)c->count, MPI_FLOAT, 0, MPI_COMM_WORLD);
}
static void send_recv(const call_t* c) {
  MPI_Sendrecv(c->send, (int)c->count, MPI_FLOAT, (rank + 1) % ranks, 0, c->recv, (int)c->count, MPI_FLOAT,
               (rank + ranks - 1) % ranks, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
}
/* From rank 0 to rank 1, one after the other. */
static void one_way(const call_t* c) {
  if (rank == 0) MPI_Send(c->send, (int)c->count, MPI_FLOAT, 1, 0, MPI_COMM_WORLD);
  if (rank == 1) MPI_Recv(c->recv, (int)c->count, MPI_FLOAT, 0, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
}
/* There and back. */
static void ping_pong(const call_t* c) {
  if (rank == 0) MPI_Send(c->send, (int)c->count, MPI_FLOAT, 1, 0, MPI_COMM_WORLD);
  if (rank <= 1) MPI_Recv(c->recv, (int)c->count, MPI_FLOAT, 1 - rank, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
  if (rank == 1) MPI_Send(c->send, (int)c->count, MPI_FLOAT, 0, 0, MPI_COMM_WORLD);
}
static void barrier(const call_t* c) {
  (void)c;
  MPI_Barrier(MPI_COMM_WORLD);
}

static const struct {
  const char* name;
  function_t function;
} table[] = {{"all_reduce", all_reduce}, {"all_gather", all_gather}, {"reduce_scatter", reduce_scatter},
             {"broadcast", broadcast},   {"reduce", reduce},         {"all_to_all", all_to_all},
             {"gather", gather},         {"scatter", scatter},       {"send_recv", send_recv},
             {"one_way", one_way},       {"ping_pong", ping_pong},   {"barrier", barrier}};

static function_t find(const char* name) {
  for (size_t i = 0; i < sizeof table / sizeof *table; ++i) {
    if (is(name, table[i].name)) return table[i].function;
  }
  return NULL;
}

static function_t before_barrier;
static void then_barrier(const call_t* c) {
  before_barrier(c);
  MPI_Barrier(MPI_COMM_WORLD);
}

static void wait_for_all(void) { MPI_Barrier(MPI_COMM_WORLD); }
static void maxima(double* own, double* all, int count) {
  MPI_Allreduce(own, all, count, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
}

static void* allocate(size_t bytes, int by_mpi) {
  void* memory = NULL;
  if (by_mpi) {
    MPI_Alloc_mem((MPI_Aint)bytes, MPI_INFO_NULL, &memory);
  } else if (posix_memalign(&memory, PAGE, bytes) != 0) {
    memory = NULL;
  }
  if (memory == NULL) {
    fprintf(stderr, "mpi_bench: no memory for %zu bytes\n", bytes);
    MPI_Abort(MPI_COMM_WORLD, 2);
  }
  memset(memory, 0, bytes);
  return memory;
}

static void run_size(const char* name, function_t function, size_t asked, int by_mpi, float* send, float* recv) {
  const size_t blocks = holds_blocks(name) ? (size_t)ranks : 1;
  size_t count = asked / sizeof(float) / blocks;
  if (count == 0) count = 1;
  const int moves = strcmp(name, "barrier") != 0;
  const call_t call = {name, count, send, recv};
  before_barrier = function;
  const double us = measure(strchr(name, '+') != NULL ? then_barrier : function, &call);
  if (rank == 0) {
    printf("%s %zu %zu %s %.4f\n", name, moves ? asked : 0, moves ? count * blocks * sizeof(float) : 0,
           by_mpi ? "alloc_mem" : "malloc", us);
    fflush(stdout);
  }
}

static void run_memory(char* const* collectives, int collective_count, const size_t* sizes, int size_count,
                       int by_mpi) {
  size_t capacity = (size_t)ranks * sizeof(float);
  for (int i = 0; i < size_count; ++i) capacity = sizes[i] > capacity ? sizes[i] : capacity;
  float *send = allocate(capacity, by_mpi), *recv = allocate(capacity, by_mpi);
  for (int c = 0; c < collective_count; ++c) {
    const function_t function = find(collectives[c]);
    const int runs = strcmp(collectives[c], "barrier") == 0 ? 1 : size_count;
    for (int i = 0; i < runs; ++i) run_size(collectives[c], function, sizes[i], by_mpi, send, recv);
  }
  if (by_mpi) {
    MPI_Free_mem(send);
    MPI_Free_mem(recv);
  } else {
    free(send);
    free(recv);
  }
}

int main(int argc, char** argv) {
  enum { most = 64 };
  size_t sizes[most];
  char* collectives[most];
  int size_count = 0, collective_count = 0;
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  const char* const memory = argc == 4 ? argv[3] : "";
  if (argc == 3 || argc == 4) {
    for (char* word = strtok(argv[1], ","); word != NULL && size_count < most; word = strtok(NULL, ",")) {
      sizes[size_count++] = strtoull(word, NULL, 10);
    }
    for (char* word = strtok(argv[2], ","); word != NULL && collective_count < most; word = strtok(NULL, ",")) {
      if (find(word) == NULL) {
        fprintf(stderr, "mpi_bench: unknown collective %s\n", word);
        MPI_Abort(MPI_COMM_WORLD, 2);
      }
      collectives[collective_count++] = word;
    }
  }
  if (size_count == 0 || collective_count == 0) {
    if (rank == 0) fprintf(stderr, "usage: mpi_bench SIZES COLLECTIVES [MEMORY]\n");
    MPI_Abort(MPI_COMM_WORLD, 2);
  }
  if (strcmp(memory, "malloc") != 0) run_memory(collectives, collective_count, sizes, size_count, 1);
  if (strcmp(memory, "alloc_mem") != 0) run_memory(collectives, collective_count, sizes, size_count, 0);
  MPI_Finalize();
  return 0;
}
