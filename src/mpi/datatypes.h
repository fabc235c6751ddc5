// What MPI's datatypes are to Kolo: bytes that move, or numbers that are reduced.
//
// Thread safety: all functions, as far as the MPI underneath was initialised for threads.
#pragma once

#include <kolo/kolo.h>

#include <cstddef>

#include "mpi/mpi_header.h"

namespace kolo::mpi {

// The kinds of numbers of MPI's chapter on reductions, which says what may be done with each.
enum class Kind { kInteger, kFortranInteger, kFloat, kComplex, kLogical, kByte, kAddress, kPair };

// A predefined datatype that can be reduced.
struct Number {
  Kind kind;
  bool isNative;  // Kolo's `datatype` means the same; else it only has as many bytes
  koloDataType_t datatype;
};
// nullptr: derived, without numbers, or of a length that no datatype of Kolo's has.
const Number* findNumber(MPI_Datatype datatype);

// How the data of elements lie in memory.
struct Form {
  std::size_t size;  // bytes of data in an element
  MPI_Aint extent;   // bytes from one element to the next
  bool isRun;        // element after element without gaps, in the order of the signature: data are moved as they lie
};
// MPI_DATATYPE_NULL has no data.
Form formOf(MPI_Datatype datatype);

}  // namespace kolo::mpi
