// The MPI underneath: its own functions, of those that are taken over. By their names, MPI_ and PMPI_ alike, they are
// the interposer's; so they are looked up behind it.
//
// Thread safety: all functions.
#pragma once

#include "mpi/mpi_header.h"

namespace kolo::mpi {

// The parameters of a nonblocking form: those of the other, and a place for the request.
#define KOLO_MPI_WITHOUT_PARENTHESES(...) __VA_ARGS__
#define KOLO_MPI_NONBLOCKING(parameters) (KOLO_MPI_WITHOUT_PARENTHESES parameters, MPI_Request * request)
#define KOLO_MPI_WITH_REQUEST(arguments) (KOLO_MPI_WITHOUT_PARENTHESES arguments, request)

// A function under its two names.
#define KOLO_MPI_DEFINE(name, parameters)                                                            \
  extern "C" __attribute__((visibility("default"))) int MPI_##name parameters;                       \
  extern "C" __attribute__((visibility("default"), alias("MPI_" #name))) int PMPI_##name parameters; \
  extern "C" int MPI_##name parameters

struct Underneath {
  using Count = int;
  using Counts = const int*;
  using Displs = const int*;
#define FUNCTION(Name, parameters, arguments) int(*Name) parameters;
#include "mpi/functions.inc"
#undef FUNCTION
};

// Ends the process where the MPI has no such function: then it is none.
const Underneath& underneath();
// What a program would call by the names without P if the interposer were not there: those of a tool that was loaded
// behind it, where the tool has them, or the MPI's.
const Underneath& following();
// Whether there is such a tool.
bool isToolBehind();

#if MPI_VERSION >= 4
struct UnderneathLarge {
  using Count = MPI_Count;
  using Counts = const MPI_Count*;
  using Displs = const MPI_Aint*;
#define KOLO_MPI_COUNTS_ONLY
#define FUNCTION(Name, parameters, arguments) int(*Name) parameters;
#include "mpi/functions.inc"
#undef FUNCTION
#undef KOLO_MPI_COUNTS_ONLY
};
const UnderneathLarge& underneathLarge();
const UnderneathLarge& followingLarge();
#endif

// A call that the thread has passed on to a tool behind the interposer. What the tool calls by the profiling interface
// leads here again, and then goes to the MPI.
class PassedOn {
 public:
  static bool isUnderWay() { return isUnderWay_; }
  // call(whether by what follows, not the MPI itself)
  template <class Call>
  static int carryOut(const Call& call) {
    if (isUnderWay_ || !isToolBehind()) return call(false);
    isUnderWay_ = true;
    const int code = call(true);
    isUnderWay_ = false;
    return code;
  }
  // call(the functions to go on by)
  template <class Call>
  static int carryOutBy(const Call& call) {
    return carryOut([&](bool isNext) { return call(isNext ? following() : underneath()); });
  }

 private:
  // clang-tidy takes a member of a thread for a variable of a namespace.
  // NOLINTNEXTLINE(readability-identifier-naming)
  [[gnu::tls_model("initial-exec")]] static inline thread_local constinit bool isUnderWay_ = false;
};

}  // namespace kolo::mpi
