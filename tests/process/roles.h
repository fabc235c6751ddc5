// For what runs inside the processes: there is no Catch there; the first fault ends the process with 1.
#pragma once

#include <kolo/kolo.h>

#include <cstdio>
#include <cstdlib>
#include <string>

#define MUST(condition)                                                   \
  do {                                                                    \
    if (!(condition)) {                                                   \
      std::printf("%s:%d: not so: %s\n", __FILE__, __LINE__, #condition); \
      std::exit(1);                                                       \
    }                                                                     \
  } while (false)

#define MUST_OK(call)                                                                                              \
  do {                                                                                                             \
    if (const koloResult_t koloGot = (call); koloGot != koloSuccess) {                                             \
      std::printf("%s:%d: %s gave %d (%s): %s\n", __FILE__, __LINE__, #call, koloGot, koloGetErrorString(koloGot), \
                  koloGetLastError(nullptr));                                                                      \
      std::exit(1);                                                                                                \
    }                                                                                                              \
  } while (false)
