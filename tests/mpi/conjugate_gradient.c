/* A small program of the kind that MPI is used for: pipelined conjugate gradients (Ghysels and Vanroose, 2014) for -u''
 * = f on a line, whose sums are under way while the matrix is applied. The solution is known. */
#include <math.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

enum { kOwn = 200 }; /* points of each rank; a vector has one more at either end, for the neighbours' */

static int rank, ranks;

static void apply(double* x, double* y) {
  const int left = rank > 0 ? rank - 1 : MPI_PROC_NULL, right = rank + 1 < ranks ? rank + 1 : MPI_PROC_NULL;
  MPI_Request requests[4];
  x[0] = x[kOwn + 1] = 0;
  MPI_Irecv(&x[0], 1, MPI_DOUBLE, left, 0, MPI_COMM_WORLD, &requests[0]);
  MPI_Irecv(&x[kOwn + 1], 1, MPI_DOUBLE, right, 0, MPI_COMM_WORLD, &requests[1]);
  MPI_Isend(&x[1], 1, MPI_DOUBLE, left, 0, MPI_COMM_WORLD, &requests[2]);
  MPI_Isend(&x[kOwn], 1, MPI_DOUBLE, right, 0, MPI_COMM_WORLD, &requests[3]);
  MPI_Waitall(4, requests, MPI_STATUSES_IGNORE);
  for (int i = 1; i <= kOwn; ++i) y[i] = 2 * x[i] - x[i - 1] - x[i + 1];
}

static double dot(const double* a, const double* b) {
  double sum = 0;
  for (int i = 1; i <= kOwn; ++i) sum += a[i] * b[i];
  return sum;
}

static void add(double* to, double factor, const double* what) {
  for (int i = 1; i <= kOwn; ++i) to[i] += factor * what[i];
}

static void follow(double* to, double factor, const double* what) {
  for (int i = 1; i <= kOwn; ++i) to[i] = what[i] + factor * to[i];
}

int main(int argc, char** argv) {
  static double x[kOwn + 2], r[kOwn + 2], w[kOwn + 2], q[kOwn + 2], z[kOwn + 2], s[kOwn + 2], p[kOwn + 2];
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  const int points = kOwn * ranks;
  double tolerance = rank == 0 ? 1e-18 : 0, gammaBefore = 0, alpha = 0;
  MPI_Bcast(&tolerance, 1, MPI_DOUBLE, 0, MPI_COMM_WORLD);

  for (int i = 1; i <= kOwn; ++i) r[i] = 1; /* the right side, as x is 0 */
  apply(r, w);
  int steps = 0;
  for (; steps < 2 * points; ++steps) {
    double mine[2] = {dot(r, r), dot(w, r)}, sums[2];
    MPI_Request request;
    MPI_Iallreduce(mine, sums, 2, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD, &request);
    apply(w, q);
    MPI_Wait(&request, MPI_STATUS_IGNORE);
    if (sums[0] < tolerance) break;
    const double beta = steps > 0 ? sums[0] / gammaBefore : 0;
    alpha = steps > 0 ? sums[0] / (sums[1] - beta * sums[0] / alpha) : sums[0] / sums[1];
    gammaBefore = sums[0];
    follow(z, beta, q);
    follow(s, beta, w);
    follow(p, beta, r);
    add(x, alpha, p);
    add(r, -alpha, s);
    add(w, -alpha, z);
  }

  double* all = rank == 0 ? malloc(sizeof(double) * (size_t)points) : NULL;
  MPI_Gather(&x[1], kOwn, MPI_DOUBLE, all, kOwn, MPI_DOUBLE, 0, MPI_COMM_WORLD);
  int isRight = 1;
  for (int i = 0; rank == 0 && i < points; ++i) {
    const double expected = (i + 1.0) * (points - i) / 2;
    if (fabs(all[i] - expected) > 1e-6 * expected) isRight = 0;
  }
  if (rank == 0) printf("%s after %d steps\n", isRight ? "solved" : "wrong", steps);
  free(all);
  MPI_Finalize();
  return isRight ? 0 : 1;
}
