// Elements whose data do not lie as they move, and those data one behind the other: the MPI packs and unpacks, data of
// any length.
//
// Thread safety: all functions, as far as the MPI underneath was initialised for threads.
#pragma once

#include <cstddef>

#include "mpi/mpi_header.h"

namespace kolo::mpi {

// An error in the MPI's terms. In a call its error handler has been called; of a task it is told when the request is
// completed, and in words here.
struct MpiError {
  int code;
  const char* what = "the MPI could not pack, unpack or calculate";
};

// The elements of one datatype at one address.
struct Unpacked {
  unsigned char* elements;
  MPI_Count count;
  MPI_Datatype datatype;
  std::size_t size;  // of the data of one element, not 0
  MPI_Aint extent;   // from one element to the next
};

// Between the elements and count * size bytes. comm: whose handler is called for errors. Throws MpiError.
void pack(const Unpacked& from, unsigned char* to, MPI_Comm comm);
void unpack(const unsigned char* from, const Unpacked& to, MPI_Comm comm);

}  // namespace kolo::mpi
