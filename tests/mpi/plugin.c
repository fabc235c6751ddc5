/* A part of a program that is loaded when it runs, and brings MPI with it. 0: all went well. */
#include <mpi.h>
#include <stddef.h>

int run(void);

int run(void) {
  int rank, ranks, sum = -1, i, wrong = 0;
  MPI_Request request;
  void* memory = NULL;
  MPI_Init(NULL, NULL);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  for (i = 0; i < 5; ++i) {
    MPI_Allreduce(&rank, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    wrong += sum != ranks * (ranks - 1) / 2;
  }
  MPI_Iallreduce(&rank, &sum, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD, &request);
  MPI_Wait(&request, MPI_STATUS_IGNORE);
  wrong += sum != ranks - 1;
  MPI_Alloc_mem(1000, MPI_INFO_NULL, &memory);
  MPI_Free_mem(memory);
  MPI_Finalize();
  return wrong;
}
