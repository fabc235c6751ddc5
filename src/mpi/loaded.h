// The MPI that the program has loaded, whatever its library is called and however it came: linked with the program, or
// with a plugin whose symbols nobody else sees.
//
// The interposer is linked with no MPI. It is loaded before any, and also into processes that have none (a shell that
// starts the program). So what it uses of the MPI is looked up when it is first used: functions by the dynamic linker,
// lazily, and Open MPI's handles, which are addresses of its objects, by mpiObject().
//
// Thread safety: all functions.
#pragma once

#include <algorithm>
#include <cstddef>
#include <string>

namespace kolo::mpi {

// Makes the MPI's symbols visible to the interposer. Before any function of the MPI's is called by its name. Ends the
// process where there is no MPI, or one whose handles are not those that the interposer was built for.
void reachMpi();
// What the MPI calls itself, and where its library is.
std::string nameOfMpi();
// An object of the MPI's. Ends the process where it has none of the name.
void* findInMpi(const char* name);
// Whether the MPI has a symbol.
bool isInMpi(const char* name);

template <std::size_t size>
struct Name {
  constexpr Name(const char (&from)[size]) { std::copy_n(from, size, text); }  // NOLINT: converting on purpose
  char text[size];
};

template <Name name>
void* mpiObject() {
  static void* const found = findInMpi(name.text);
  return found;
}

}  // namespace kolo::mpi
