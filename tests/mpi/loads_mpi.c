/* A program that knows MPI only when it runs, not when it is linked.
 *
 * usage: loads_mpi plugin FILE     as programs with plugins do: the plugin is linked with MPI
 *        loads_mpi local|global    as interpreters do: looks MPI's functions up in its library, which was loaded so */
#include <dlfcn.h>
#include <mpi.h>
#include <stdio.h>
#include <string.h>

#ifdef OPEN_MPI
#define LIBRARY "libmpi.so.40"
#define OBJECT(handle, type, name) ((type)dlsym(handle, "ompi_mpi_" #name))
#define WORLD(handle) OBJECT(handle, MPI_Comm, comm_world)
#define INT(handle) OBJECT(handle, MPI_Datatype, int)
#define SUM(handle) OBJECT(handle, MPI_Op, op_sum)
#else
#define LIBRARY "libmpich.so.12"
#define WORLD(handle) MPI_COMM_WORLD
#define INT(handle) MPI_INT
#define SUM(handle) MPI_SUM
#endif

static void* load(const char* file, int how) {
  void* const handle = dlopen(file, RTLD_NOW | how);
  if (handle == NULL) fprintf(stderr, "%s\n", dlerror());
  return handle;
}

static int by_name(int how) {
  void* const handle = load(LIBRARY, how);
  int (*init)(int*, char***), (*rank_of)(MPI_Comm, int*), (*size_of)(MPI_Comm, int*), (*finalize)(void);
  int (*allreduce)(const void*, void*, int, MPI_Datatype, MPI_Op, MPI_Comm);
  int (*iallreduce)(const void*, void*, int, MPI_Datatype, MPI_Op, MPI_Comm, MPI_Request*),
      (*wait)(MPI_Request*, MPI_Status*);
  int rank, ranks, sum = -1, i, wrong = 0;
  MPI_Request request;
  if (handle == NULL) return 1;
  *(void**)&init = dlsym(handle, "MPI_Init");
  *(void**)&rank_of = dlsym(handle, "MPI_Comm_rank");
  *(void**)&size_of = dlsym(handle, "MPI_Comm_size");
  *(void**)&finalize = dlsym(handle, "MPI_Finalize");
  *(void**)&allreduce = dlsym(handle, "MPI_Allreduce");
  *(void**)&iallreduce = dlsym(handle, "MPI_Iallreduce");
  *(void**)&wait = dlsym(handle, "MPI_Wait");
  init(NULL, NULL);
  rank_of(WORLD(handle), &rank);
  size_of(WORLD(handle), &ranks);
  for (i = 0; i < 5; ++i) {
    allreduce(&rank, &sum, 1, INT(handle), SUM(handle), WORLD(handle));
    wrong += sum != ranks * (ranks - 1) / 2;
  }
  iallreduce(&rank, &sum, 1, INT(handle), SUM(handle), WORLD(handle), &request);
  wait(&request, MPI_STATUS_IGNORE);
  wrong += sum != ranks * (ranks - 1) / 2;
  if (wrong == 0 && rank == 0) puts("loaded: ok");
  finalize();
  dlclose(handle);
  return wrong;
}

static int by_plugin(const char* file) {
  void* const plugin = load(file, RTLD_LOCAL);
  int (*run)(void);
  int wrong;
  if (plugin == NULL) return 1;
  *(void**)&run = dlsym(plugin, "run");
  wrong = run();
  if (wrong == 0) puts("loaded: ok");
  dlclose(plugin);
  return wrong;
}

int main(int argc, char** argv) {
  if (argc == 3 && strcmp(argv[1], "plugin") == 0) return by_plugin(argv[2]);
  if (argc == 2) return by_name(strcmp(argv[1], "global") == 0 ? RTLD_GLOBAL : RTLD_LOCAL);
  return 2;
}
