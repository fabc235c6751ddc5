#include "perf/result.h"

#include "common/collectives.h"
#include "perf/names.h"
#include "perf/sizes.h"

namespace kolo::perf {

std::string Result::datatype() const {
  return operation.collective == koloCollectiveBarrier ? "none" : koloDataTypeName(operation.datatype);
}

std::string Result::op() const { return rowOf(operation.collective).folds ? koloRedOpName(operation.op) : "none"; }

double Result::algorithmBandwidth() const {
  return timeUs.median > 0 ? static_cast<double>(bytes) / timeUs.median / 1e3 : 0;
}

double Result::busBandwidth() const { return algorithmBandwidth() * busFactor(operation.collective, ranks); }

}  // namespace kolo::perf
