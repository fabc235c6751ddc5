/* kolo-perf's method of measuring (perf/README.md), for the programs beside it, in C and C++.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * After a barrier each rank times a batch of calls back to back, long enough for the timer; a sample is the slowest
 * rank's time for one call; the figure is the median of the samples. The constants are those of perf/statistics.h.
 *
 * Who includes this has defined call_t, and function_t, which takes a const call_t*; and defines the two functions
 * below.
 */
#pragma once

#include <stdlib.h>
#include <time.h>

#define BATCH_US 20.0
#define MAX_BATCH 256
#define BUDGET_US 150e3
#define MIN_SAMPLES 5
#define MAX_SAMPLES 2000
#define WARMUPS 5
#define TRIAL_BATCH 16

/* A barrier of all ranks. */
static void wait_for_all(void);
/* all[i]: the largest own[i] of all ranks, on every rank. */
static void maxima(double* own, double* all, int count);

static double now_us(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec * 1e6 + (double)t.tv_nsec * 1e-3;
}

/* Microseconds of one call on this rank, when `batch` calls run back to back. */
static double time_batch(function_t function, const call_t* call, int batch) {
  wait_for_all();
  const double begin = now_us();
  for (int i = 0; i < batch; ++i) function(call);
  return (now_us() - begin) / batch;
}

static double slowest(double own) {
  double result;
  maxima(&own, &result, 1);
  return result;
}

static int by_value(const void* a, const void* b) {
  const double x = *(const double*)a, y = *(const double*)b;
  return (x > y) - (x < y);
}

static double measure(function_t function, const call_t* call) {
  static double own[MAX_SAMPLES], all[MAX_SAMPLES];
  time_batch(function, call, WARMUPS);
  double us = slowest(time_batch(function, call, 1));
  if (us < BATCH_US * TRIAL_BATCH) us = slowest(time_batch(function, call, TRIAL_BATCH));
  if (us < 1e-3) us = 1e-3;
  const double wanted = BATCH_US / us;
  const int batch = wanted >= MAX_BATCH ? MAX_BATCH : wanted <= 1 ? 1 : (int)(wanted + 0.999999);
  const double fit = BUDGET_US / (us * batch);
  const int samples = fit < MIN_SAMPLES ? MIN_SAMPLES : fit > MAX_SAMPLES ? MAX_SAMPLES : (int)fit;
  for (int i = 0; i < samples; ++i) own[i] = time_batch(function, call, batch);
  maxima(own, all, samples);
  qsort(all, (size_t)samples, sizeof *all, by_value);
  return samples % 2 == 1 ? all[samples / 2] : (all[samples / 2 - 1] + all[samples / 2]) / 2;
}
