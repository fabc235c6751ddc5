/* A profiling tool as mpiP and others are made: functions of its own in the place of MPI's, over the profiling
 * interface. Its counts are printed by rank 0 when the program ends MPI. */
#include <mpi.h>
#include <stdio.h>

static int inits, allreduces, nonblocking, barriers, waits, frees;

int MPI_Init_thread(int* argc, char*** argv, int required, int* provided) {
  ++inits;
  return PMPI_Init_thread(argc, argv, required, provided);
}

int MPI_Allreduce(const void* sendbuf, void* recvbuf, int count, MPI_Datatype datatype, MPI_Op op, MPI_Comm comm) {
  ++allreduces;
  return PMPI_Allreduce(sendbuf, recvbuf, count, datatype, op, comm);
}

int MPI_Iallreduce(const void* sendbuf, void* recvbuf, int count, MPI_Datatype datatype, MPI_Op op, MPI_Comm comm,
                   MPI_Request* request) {
  ++nonblocking;
  return PMPI_Iallreduce(sendbuf, recvbuf, count, datatype, op, comm, request);
}

int MPI_Barrier(MPI_Comm comm) {
  ++barriers;
  return PMPI_Barrier(comm);
}

int MPI_Wait(MPI_Request* request, MPI_Status* status) {
  ++waits;
  return PMPI_Wait(request, status);
}

int MPI_Free_mem(void* base) {
  ++frees;
  return PMPI_Free_mem(base);
}

int MPI_Finalize(void) {
  int rank;
  PMPI_Comm_rank(MPI_COMM_WORLD, &rank);
  if (rank == 0)
    fprintf(stderr, "tool: inits=%d allreduces=%d nonblocking=%d barriers=%d waits=%d frees=%d\n", inits, allreduces,
            nonblocking, barriers, waits, frees);
  return PMPI_Finalize();
}
