#include "perf/sweep.h"

#include <algorithm>
#include <chrono>
#include <memory>

#include "common/collectives.h"
#include "perf/before.h"
#include "perf/failure.h"
#include "perf/names.h"
#include "perf/sizes.h"
#include "perf/verify.h"

namespace kolo::perf {
namespace {

using Clock = std::chrono::steady_clock;  // clock_gettime(CLOCK_MONOTONIC), which kTimerSource says in the report

struct Point {
  Operation operation;
  Shape shape;
  const Buffers* buffers;
};

class Sweep {
 public:
  Sweep(koloComm_t comm, const Options& options, const Device& device, const AllBuffers& buffers, Exchange& exchange,
        Reporter* reporter)
      : comm_(comm), options_(options), device_(device), buffers_(buffers), exchange_(exchange), reporter_(reporter) {
    check(koloCommUserRank(comm, &ranks_.self), "koloCommUserRank");
    check(koloCommCount(comm, &ranks_.count), "koloCommCount");
    forceAlgorithms();
  }

  std::vector<Result> run() {
    std::vector<std::vector<Point>> sections;
    size_t points = 0;
    for (const koloCollective_t collective : options_.collectives) {
      sections.push_back(pointsOf(collective));
      points += sections.back().size();
    }
    if (reporter_ != nullptr) reporter_->begin(points);
    std::vector<Result> results;
    for (size_t i = 0; i < sections.size(); ++i) runSection(options_.collectives[i], sections[i], results);
    if (reporter_ != nullptr) reporter_->end(results);
    return results;
  }

 private:
  void runSection(koloCollective_t collective, const std::vector<Point>& points, std::vector<Result>& results) {
    if (reporter_ != nullptr) reporter_->section(collective);
    if (points.empty()) return note("not measured: not defined for these datatypes and reductions, or not in place");
    std::string noted;
    for (const Point& point : points) {
      noteOtherAlgorithm(point, noted);
      results.push_back(measure(point));
      if (reporter_ != nullptr) reporter_->row(results.back());
    }
  }

  void note(const std::string& text) {
    if (reporter_ != nullptr) reporter_->note(text);
  }

  koloPlan_t planOf(const Point& point, bool registered) {
    koloPlan_t plan{};
    check(koloCommGetPlan(comm_, point.operation.collective, point.shape.count, point.operation.datatype,
                          point.operation.op, registered ? 1 : 0, &plan),
          "koloCommGetPlan");
    return plan;
  }

  // Those that the library has for a collective; noteOtherAlgorithm() speaks about the rest.
  void forceAlgorithms() {
    std::vector<Wish> accepted;
    for (const Wish& wish : options_.wishes) {
      accepted.push_back(wish);
      const koloResult_t result = koloCommSetAlgorithm(comm_, wishesText(accepted).c_str());
      if (result == koloInvalidArgument && wish.conditions.empty()) {
        accepted.pop_back();
      } else {
        check(result, "koloCommSetAlgorithm");
      }
    }
  }

  // Tells the reader, once, where the library takes another algorithm than was asked for: because that one does not
  // fit, or because between windows it has the form of another. noted: what the reader has been told of this
  // collective.
  void noteOtherAlgorithm(const Point& point, std::string& noted) {
    const koloCollective_t collective = point.operation.collective;
    const size_t countBytes = point.shape.count * koloDataTypeSize(point.operation.datatype);
    const std::string asked = algorithmAskedFor(options_.wishes, collective, countBytes);
    const std::string taken = planOf(point, point.buffers->kind() == BufferKind::kRegistered).algorithm;
    if (asked.empty() || asked == taken) return;
    const bool fits = planOf(point, false).algorithm == asked;
    const std::string why = asked + (fits ? " has another form between windows" : " does not fit");
    if (why == noted) return;
    note(fmt::format("{}{}: {}, measured {}", koloCollectiveName(collective),
                     point.shape.bytes > 0 ? fmt::format(" of {} bytes", point.shape.bytes) : "", why, taken));
    noted = why;
  }

  std::vector<Point> pointsOf(koloCollective_t collective) const {
    std::vector<Point> points;
    if (collective == koloCollectiveBarrier) {
      return {{.operation = {.collective = collective, .root = 0},
               .shape = shapeFor(collective, 0, 1, ranks_.count),
               .buffers = buffers_.front().get()}};
    }
    if (!isMeasurable(options_, collective)) return points;
    const std::vector<koloRedOp_t> ops = rowOf(collective).folds ? options_.ops : std::vector{koloSum};
    for (const auto& buffers : buffers_) {
      for (const koloDataType_t datatype : options_.datatypes) {
        for (const koloRedOp_t op : ops) {
          if (rowOf(collective).folds && koloRedOpIsDefined(op, datatype) == 0) continue;
          appendSizes({.collective = collective,
                       .datatype = datatype,
                       .op = op,
                       .root = rowOf(collective).isRooted() ? options_.root : 0,
                       .inPlace = options_.inPlace},
                      *buffers, points);
        }
      }
    }
    return points;
  }

  // Sizes that round to the same count are one point.
  void appendSizes(const Operation& operation, const Buffers& buffers, std::vector<Point>& points) const {
    size_t lastBytes = 0;
    for (const size_t bytes : options_.sizes) {
      const Shape shape = shapeFor(operation.collective, bytes, koloDataTypeSize(operation.datatype), ranks_.count);
      if (shape.bytes != lastBytes) points.push_back({operation, shape, &buffers});
      lastBytes = shape.bytes;
    }
  }

  Result measure(const Point& point) {
    const Operation& operation = point.operation;
    Result result{.operation = operation,
                  .ranks = ranks_.count,
                  .bytes = point.shape.bytes,
                  .elements = point.shape.elements,
                  .buffers = point.buffers->kind(),
                  .verified = options_.check > 0};
    result.plan = planOf(point, result.buffers == BufferKind::kRegistered);
    if (options_.check > 0) {
      const size_t wrong = runVerified(operation, point.shape, ranks_, *point.buffers, comm_, exchange_);
      result.wrong = static_cast<size_t>(exchange_.sum(static_cast<double>(wrong)));  // exact up to 2^53
    }
    const Placement at = place(operation, point.shape, ranks_, *point.buffers);
    const Schedule schedule = calibrate(point, at);
    std::vector<double> own(schedule.samples);
    for (double& sample : own) sample = timeBatch(point, at, schedule.batch);
    const std::vector<double> all = exchange_.gather(own);
    result.timeUs = summarize(slowestRank(all, static_cast<size_t>(ranks_.count), schedule.samples));
    result.iterations = schedule.samples * schedule.batch;
    return result;
  }

  // Microseconds of one call on this rank, when `batch` calls run back to back.
  double timeBatch(const Point& point, const Placement& at, size_t batch) {
    exchange_.barrier();
    const Clock::time_point begin = Clock::now();
    koloResult_t result = koloSuccess;
    for (size_t i = 0; i < batch && result == koloSuccess; ++i) {
      result = runOnce(point.operation, point.shape, at, ranks_, comm_, device_.stream());
    }
    device_.synchronize();
    const Clock::time_point end = Clock::now();
    check(result, koloCollectiveName(point.operation.collective));
    exchange_.finish();
    return std::chrono::duration<double, std::micro>(end - begin).count() / static_cast<double>(batch);
  }

  // Warms up, and finds a schedule on which all ranks agree.
  Schedule calibrate(const Point& point, const Placement& at) {
    constexpr size_t kTrialBatch = 16;
    if (options_.warmups > 0) (void)timeBatch(point, at, options_.warmups);
    const double batchUs = device_.ordinal() == KOLO_HOST ? kBatchUs : kGpuBatchUs;
    double us = exchange_.greatest(timeBatch(point, at, 1));
    // A single short call is mostly the ranks' unequal exit from the barrier: several tell more.
    if (us < batchUs * kTrialBatch) us = exchange_.greatest(timeBatch(point, at, kTrialBatch));
    return scheduleFor(us, options_.iterations, batchUs);
  }

  koloComm_t comm_;
  const Options& options_;
  const Device& device_;
  const AllBuffers& buffers_;
  Exchange& exchange_;
  Reporter* reporter_;
  Ranks ranks_{};
};

}  // namespace

AllBuffers makeBuffers(koloComm_t comm, const Options& options, const Device& device) {
  int ranks = 0;
  check(koloCommCount(comm, &ranks), "koloCommCount");
  const size_t capacity = bufferCapacity(options, ranks);
  AllBuffers buffers;
  for (const BufferKind kind : options.buffers)
    buffers.push_back(std::make_unique<Buffers>(comm, device, kind, capacity));
  return buffers;
}

std::vector<Result> runSweep(koloComm_t comm, const Options& options, const Device& device, const AllBuffers& buffers,
                             Exchange& exchange, Reporter* reporter) {
  return Sweep(comm, options, device, buffers, exchange, reporter).run();
}

}  // namespace kolo::perf
