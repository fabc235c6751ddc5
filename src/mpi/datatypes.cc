#include "mpi/datatypes.h"

#include <cstdint>
#include <optional>
#include <unordered_map>
#include <vector>

namespace kolo::mpi {
namespace {

enum class Sign { kSigned, kUnsigned };

struct Listed {
  MPI_Datatype datatype;
  Kind kind;
  Sign sign = Sign::kSigned;
};

// MPI_CHAR is for text by MPI's rules, yet both MPIs calculate with it, and programs rely on that.
std::vector<Listed> listed() {
  using enum Kind;
  constexpr Sign kUnsigned = Sign::kUnsigned;
  // clang-format off
  return {
      {MPI_CHAR, kInteger}, {MPI_SIGNED_CHAR, kInteger}, {MPI_UNSIGNED_CHAR, kInteger, kUnsigned},
      {MPI_SHORT, kInteger}, {MPI_UNSIGNED_SHORT, kInteger, kUnsigned}, {MPI_INT, kInteger},
      {MPI_UNSIGNED, kInteger, kUnsigned},
      {MPI_LONG, kInteger}, {MPI_UNSIGNED_LONG, kInteger, kUnsigned}, {MPI_LONG_LONG_INT, kInteger},
      {MPI_UNSIGNED_LONG_LONG, kInteger, kUnsigned}, {MPI_INT8_T, kInteger}, {MPI_UINT8_T, kInteger, kUnsigned},
      {MPI_INT16_T, kInteger}, {MPI_UINT16_T, kInteger, kUnsigned}, {MPI_INT32_T, kInteger},
      {MPI_UINT32_T, kInteger, kUnsigned},
      {MPI_INT64_T, kInteger}, {MPI_UINT64_T, kInteger, kUnsigned},
      {MPI_INTEGER, kFortranInteger}, {MPI_INTEGER1, kFortranInteger}, {MPI_INTEGER2, kFortranInteger},
      {MPI_INTEGER4, kFortranInteger}, {MPI_INTEGER8, kFortranInteger},
      {MPI_FLOAT, kFloat}, {MPI_DOUBLE, kFloat}, {MPI_LONG_DOUBLE, kFloat}, {MPI_REAL, kFloat},
      {MPI_DOUBLE_PRECISION, kFloat},
      {MPI_REAL4, kFloat}, {MPI_REAL8, kFloat}, {MPI_REAL16, kFloat},
      {MPI_C_FLOAT_COMPLEX, kComplex}, {MPI_C_DOUBLE_COMPLEX, kComplex}, {MPI_C_LONG_DOUBLE_COMPLEX, kComplex},
      {MPI_CXX_FLOAT_COMPLEX, kComplex}, {MPI_CXX_DOUBLE_COMPLEX, kComplex}, {MPI_COMPLEX, kComplex},
      {MPI_DOUBLE_COMPLEX, kComplex},
      {MPI_COMPLEX8, kComplex}, {MPI_COMPLEX16, kComplex},
      {MPI_C_BOOL, kLogical}, {MPI_CXX_BOOL, kLogical}, {MPI_LOGICAL, kLogical}, {MPI_BYTE, kByte, kUnsigned},
      {MPI_AINT, kAddress}, {MPI_OFFSET, kAddress}, {MPI_COUNT, kAddress},
      {MPI_FLOAT_INT, kPair}, {MPI_DOUBLE_INT, kPair}, {MPI_LONG_INT, kPair}, {MPI_2INT, kPair},
      {MPI_SHORT_INT, kPair},
      {MPI_LONG_DOUBLE_INT, kPair}, {MPI_2REAL, kPair}, {MPI_2DOUBLE_PRECISION, kPair}, {MPI_2INTEGER, kPair}};
  // clang-format on
}

// The datatype of Kolo's with so many bytes, for data that only the MPI can calculate with.
std::optional<koloDataType_t> carrierOf(MPI_Aint bytes) {
  switch (bytes) {
    case 1: return koloUint8;
    case 2: return koloUint16;
    case 4: return koloUint32;
    case 8: return koloUint64;
    case 16: return koloComplex128;
    default: return std::nullopt;
  }
}

std::optional<koloDataType_t> integerOf(MPI_Aint bytes, Sign sign) {
  const bool isSigned = sign == Sign::kSigned;
  switch (bytes) {
    case 1: return isSigned ? koloInt8 : koloUint8;
    case 2: return isSigned ? koloInt16 : koloUint16;
    case 4: return isSigned ? koloInt32 : koloUint32;
    case 8: return isSigned ? koloInt64 : koloUint64;
    default: return std::nullopt;
  }
}

// The datatype of Kolo's that means the same.
std::optional<koloDataType_t> nativeOf(const Listed& entry, MPI_Aint bytes) {
  switch (entry.kind) {
    case Kind::kFloat:
      if (bytes == 4) return koloFloat32;
      return bytes == 8 ? std::optional(koloFloat64) : std::nullopt;
    case Kind::kComplex:
      if (bytes == 8) return koloComplex64;
      return bytes == 16 ? std::optional(koloComplex128) : std::nullopt;
    case Kind::kLogical: return bytes == 1 ? koloBool : integerOf(bytes, entry.sign);
    case Kind::kPair: return std::nullopt;
    default: return integerOf(bytes, entry.sign);
  }
}

struct Known {
  Form form;
  std::optional<Number> number;
};

Form measure(MPI_Datatype datatype) {
  MPI_Count size = 0;
  MPI_Aint begin = 0, extent = 0;
  PMPI_Type_size_x(datatype, &size);
  PMPI_Type_get_extent(datatype, &begin, &extent);
  return {static_cast<std::size_t>(size), extent, begin == 0 && extent == size};
}

Known examine(const Listed& entry) {
  Known known{measure(entry.datatype), std::nullopt};
  const MPI_Aint bytes = known.form.extent;
  if (const auto native = nativeOf(entry, bytes)) {
    known.number = Number{entry.kind, true, *native};
  } else if (const auto carrier = carrierOf(bytes)) {
    known.number = Number{entry.kind, false, *carrier};
  }
  return known;
}

using Table = std::unordered_map<std::uintptr_t, Known>;

// Some are MPI_DATATYPE_NULL, or have no bytes, where the MPI was built without a Fortran or C++ compiler that has
// them. Never destroyed: a program may call MPI from its own destructors.
const Table& table() {
  static const auto* const made = [] {
    auto* const all = new Table;
    for (const Listed& entry : listed()) {
      if (entry.datatype == MPI_DATATYPE_NULL) continue;
      const Known known = examine(entry);
      if (known.form.size != 0) all->emplace(keyOf(entry.datatype), known);
    }
    return all;
  }();
  return *made;
}

// The predefined datatype that the thread used last: what is known of it stays true.
struct LastDatatype {
  MPI_Datatype datatype;
  const Known* known;  // nullptr: none yet
};
[[gnu::tls_model("initial-exec")]] thread_local constinit LastDatatype lastDatatype = {};

[[gnu::noinline]] const Known* search(MPI_Datatype datatype) {
  const auto found = table().find(keyOf(datatype));
  if (found == table().end()) return nullptr;
  lastDatatype = {datatype, &found->second};
  return lastDatatype.known;
}

// nullptr: it is not predefined, or has no data here.
const Known* find(MPI_Datatype datatype) {
  return lastDatatype.known != nullptr && lastDatatype.datatype == datatype ? lastDatatype.known : search(datatype);
}

// How a datatype was made, and with how many numbers, addresses, large counts and datatypes.
struct Envelope {
  bool isPredefined() const {
    return combiner == MPI_COMBINER_NAMED || combiner == MPI_COMBINER_F90_REAL ||
           combiner == MPI_COMBINER_F90_COMPLEX || combiner == MPI_COMBINER_F90_INTEGER;
  }

  MPI_Count numbers = 0, addresses = 0, large = 0, types = 0;
  int combiner = MPI_COMBINER_NAMED;
};

Envelope envelopeOf(MPI_Datatype datatype) {
  Envelope its;
#if MPI_VERSION >= 4
  if (hasLargeCounts()) {
    PMPI_Type_get_envelope_c(datatype, &its.numbers, &its.addresses, &its.large, &its.types, &its.combiner);
    return its;
  }
#endif
  int numbers = 0, addresses = 0, types = 0;
  PMPI_Type_get_envelope(datatype, &numbers, &addresses, &types, &its.combiner);
  its.numbers = numbers;
  its.addresses = addresses;
  its.types = types;
  return its;
}

// What a derived datatype was made of. The constructors of MPI 4 that take large counts have these and displacements in
// one array; here both are where the other constructors have them.
class Contents {
 public:
  explicit Contents(MPI_Datatype datatype) {
    const Envelope its = envelopeOf(datatype);
    combiner = its.combiner;
    if (its.isPredefined()) return;
    std::vector<int> integers(static_cast<std::size_t>(its.numbers));
    displacements.resize(static_cast<std::size_t>(its.addresses));
    counts.resize(static_cast<std::size_t>(its.large));
    datatypes.resize(static_cast<std::size_t>(its.types));
#if MPI_VERSION >= 4
    if (hasLargeCounts())
      PMPI_Type_get_contents_c(datatype, its.numbers, its.addresses, its.large, its.types, integers.data(),
                               displacements.data(), counts.data(), datatypes.data());
    else
#endif
      PMPI_Type_get_contents(datatype, static_cast<int>(its.numbers), static_cast<int>(its.addresses),
                             static_cast<int>(its.types), integers.data(), displacements.data(), datatypes.data());
    if (its.large == 0) {
      counts.assign(integers.begin(), integers.end());
    } else if (combiner == MPI_COMBINER_STRUCT) {
      displacements.assign(counts.end() - its.types, counts.end());
    }
  }
  ~Contents() {
    for (MPI_Datatype each : datatypes) {
      if (!envelopeOf(each).isPredefined()) PMPI_Type_free(&each);
    }
  }
  Contents(const Contents&) = delete;
  Contents& operator=(const Contents&) = delete;

  int combiner;
  std::vector<MPI_Count> counts;
  std::vector<MPI_Aint> displacements;
  std::vector<MPI_Datatype> datatypes;
};

bool isDense(MPI_Datatype datatype);

bool isRun(MPI_Datatype datatype) { return measure(datatype).isRun && isDense(datatype); }

// Blocks of elements, one behind the other?
bool isDenseStruct(const Contents& its) {
  MPI_Aint end = 0;
  for (std::size_t i = 0; i < its.datatypes.size(); ++i) {
    const MPI_Count count = its.counts[i + 1];
    if (count == 0) continue;
    if (its.displacements[i] != end) return false;
    if (count == 1 ? !isDense(its.datatypes[i]) : !isRun(its.datatypes[i])) return false;
    end += static_cast<MPI_Aint>(measure(its.datatypes[i]).size) * static_cast<MPI_Aint>(count);
  }
  return true;
}

// Whether the data of one element lie from its begin on without gaps, and in the order of its signature. "No" is always
// safe: the data are packed then.
bool isDense(MPI_Datatype datatype) {
  const Contents its(datatype);
  switch (its.combiner) {
    case MPI_COMBINER_NAMED: return measure(datatype).isRun;
    case MPI_COMBINER_DUP:
    case MPI_COMBINER_RESIZED: return isDense(its.datatypes[0]);
    case MPI_COMBINER_CONTIGUOUS: return isRun(its.datatypes[0]);
    case MPI_COMBINER_VECTOR:  // count, length of a block, stride
      return isRun(its.datatypes[0]) && (its.counts[0] <= 1 || its.counts[1] == its.counts[2]);
    case MPI_COMBINER_STRUCT: return isDenseStruct(its);
    default: return false;
  }
}

}  // namespace

const Number* findNumber(MPI_Datatype datatype) {
  const Known* const known = find(datatype);
  return known != nullptr && known->number.has_value() ? &*known->number : nullptr;
}

Form formOf(MPI_Datatype datatype) {
  if (datatype == MPI_DATATYPE_NULL) return {0, 0, true};
  if (const Known* const known = find(datatype)) return known->form;
  Form form = measure(datatype);
  form.isRun = form.isRun && isDense(datatype);
  return form;
}

}  // namespace kolo::mpi
