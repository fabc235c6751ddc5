// Elements whose data do not lie as they move, and those data one behind the other: the MPI packs and unpacks, data of
// any length.
//
// Thread safety: all functions, as far as the MPI underneath was initialised for threads.
#pragma once

#include <cstddef>

#include "mpi/datatypes.h"
#include "mpi/mpi_header.h"

namespace kolo::mpi {

// An error in the MPI's terms. In a call its error handler has been called; of a task it is told when the request is
// completed, and in words here.
struct MpiError {
  int code;
  const char* what = "the MPI could not pack, unpack or calculate";
};

// A buffer of the program's, and what its elements are.
struct Elements {
  Elements(const void* buffer, MPI_Datatype datatype, MPI_Comm comm)
      : buffer(static_cast<unsigned char*>(const_cast<void*>(buffer))), datatype(datatype), comm(comm),
        form(formOf(datatype)) {}

  unsigned char* at(MPI_Count element) const { return buffer + element * form.extent; }
  std::size_t bytes(MPI_Count count) const { return static_cast<std::size_t>(count) * form.size; }

  unsigned char* buffer;
  MPI_Datatype datatype;
  MPI_Comm comm;
  Form form;
};

// Between elements at an address, which is not always the buffer's, and their packed bytes, so many. The handler of the
// elements' communicator is called for errors. Throw MpiError.
void pack(const Elements& its, const unsigned char* elements, std::size_t bytes, unsigned char* to);
void unpack(const Elements& its, const unsigned char* from, std::size_t bytes, unsigned char* elements);

}  // namespace kolo::mpi
