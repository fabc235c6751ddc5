#include "mpi/loaded.h"

#include <dlfcn.h>
#include <link.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "mpi/mpi_header.h"

namespace kolo::mpi {
namespace {

// A function of every MPI that is not taken over.
constexpr const char* kAny = "PMPI_Get_library_version";

bool isVisible() { return dlsym(RTLD_DEFAULT, kAny) != nullptr; }

// When the interposer was loaded.
const bool wasVisible = isVisible();

[[noreturn]] void fail(const std::string& what) {
  std::fprintf(stderr, "kolo-mpi: %s\n", what.c_str());
  std::abort();
}

std::string fileOf(void* symbol) {
  Dl_info where{};
  return symbol != nullptr && dladdr(symbol, &where) != 0 && where.dli_fname != nullptr ? where.dli_fname : "";
}

std::vector<std::string> loadedFiles() {
  std::vector<std::string> files;
  const auto note = [](dl_phdr_info* info, std::size_t, void* all) {
    if (info->dlpi_name != nullptr && *info->dlpi_name != '\0')
      static_cast<std::vector<std::string>*>(all)->emplace_back(info->dlpi_name);
    return 0;
  };
  dl_iterate_phdr(note, &files);
  return files;
}

// The library of an MPI whose symbols only the library that loaded it sees; empty: there is none.
std::string hiddenMpi() {
  for (const std::string& file : loadedFiles()) {
    void* const library = dlopen(file.c_str(), RTLD_LAZY | RTLD_NOLOAD);
    if (library == nullptr) continue;
    std::string found = fileOf(dlsym(library, kAny));  // maybe in a library that this one needs
    dlclose(library);
    if (!found.empty()) return found;
  }
  return {};
}

// The MPI stays loaded then, as the interposer does.
bool makeVisible() {
  const std::string file = hiddenMpi();
  return !file.empty() && dlopen(file.c_str(), RTLD_LAZY | RTLD_NOLOAD | RTLD_GLOBAL) != nullptr && isVisible();
}

// In the first line of its words, as a program could ask for them before MPI_Init.
std::string wordsOfMpi() {
  const auto ask = reinterpret_cast<int (*)(char*, int*)>(dlsym(RTLD_DEFAULT, kAny));
  std::vector<char> words(std::max(MPI_MAX_LIBRARY_VERSION_STRING, 1 << 14), '\0');  // MPIs differ on the most
  int length = 0;
  ask(words.data(), &length);
  const std::string all = words.data();
  return all.substr(0, all.find('\n'));
}

// Calls that were bound before the MPI was there lead nowhere.
void refuseEarlyBinding() {
  const char* const atOnce = std::getenv("LD_BIND_NOW");
  if (atOnce == nullptr || *atOnce == '\0') return;
  fail("LD_BIND_NOW is set, and the program has loaded its MPI, " + nameOfMpi() +
       ", when it ran; expected LD_BIND_NOW unset, or the MPI's library in LD_PRELOAD behind this one");
}

bool reach() {
#ifdef OPEN_MPI
  constexpr bool kIsOpenMpi = true;
#else
  constexpr bool kIsOpenMpi = false;
#endif
  if (!isVisible() && !makeVisible()) {
    fail(std::string("no MPI is loaded that has ") + kAny +
         "; expected the program, or what it loads, to be linked with the library of its MPI");
  }
  if ((wordsOfMpi().find("Open MPI") != std::string::npos) != kIsOpenMpi) {
    fail("this library is for " + std::string(kIsOpenMpi ? "Open MPI" : "MPICH and its relatives") +
         ", but the program's MPI is " + nameOfMpi() +
         "; start it by kolo-mpirun with the mpirun of that MPI (KOLO_MPIRUN)");
  }
  if (!wasVisible) refuseEarlyBinding();
  return true;
}

}  // namespace

void reachMpi() { [[maybe_unused]] static const bool isReached = reach(); }

std::string nameOfMpi() { return wordsOfMpi() + " (" + fileOf(dlsym(RTLD_DEFAULT, kAny)) + ")"; }

bool isInMpi(const char* name) {
  reachMpi();
  return dlsym(RTLD_DEFAULT, name) != nullptr;
}

void* findInMpi(const char* name) {
  reachMpi();
  void* const found = dlsym(RTLD_DEFAULT, name);
  if (found == nullptr) {
    fail("the program's MPI, " + nameOfMpi() + ", has no " + name +
         "; expected the one that this library was built for, or a newer one");
  }
  return found;
}

}  // namespace kolo::mpi
