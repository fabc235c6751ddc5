#include "perf/sweep.h"

#include <algorithm>
#include <chrono>
#include <memory>

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
  Sweep(koloComm_t comm, const Options& options, Reporter* reporter)
      : comm_(comm), options_(options), reporter_(reporter) {
    check(koloCommUserRank(comm, &ranks_.self), "koloCommUserRank");
    check(koloCommCount(comm, &ranks_.count), "koloCommCount");
    if (options.root < 0 || options.root >= ranks_.count) {
      fail("root {} is outside 0..{}", options.root, ranks_.count - 1);
    }
    // A size below one element for each block is rounded up to that; 16 bytes is the largest element.
    const size_t capacity = std::max(options.sizes.back(), static_cast<size_t>(ranks_.count) * 16);
    for (const BufferKind kind : options.buffers) {
      buffers_.push_back(std::make_unique<Buffers>(comm, kind, capacity));
    }
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
    if (results.empty()) fail("nothing to measure: no collective asked for has the form asked for");
    if (reporter_ != nullptr) reporter_->end(results);
    return results;
  }

 private:
  void runSection(koloCollective_t collective, const std::vector<Point>& points, std::vector<Result>& results) {
    if (reporter_ != nullptr) reporter_->section(collective);
    if (points.empty()) return skip(0, "not defined for these datatypes and reductions, or not in place");
    if (!options_.algorithm.empty()) {
      const std::string text = fmt::format("{}:{}", koloCollectiveName(collective), options_.algorithm);
      if (koloCommSetAlgorithm(comm_, text.c_str()) != koloSuccess) {
        return skip(points.size(), koloGetLastError(nullptr));
      }
    }
    for (const Point& point : points) {
      results.push_back(measure(point));
      if (reporter_ != nullptr) reporter_->row(results.back());
    }
    if (!options_.algorithm.empty()) check(koloCommSetAlgorithm(comm_, ""), "koloCommSetAlgorithm");
  }

  void skip(size_t points, const std::string& why) {
    if (reporter_ != nullptr) reporter_->skipped(points, why);
  }

  std::vector<Point> pointsOf(koloCollective_t collective) const {
    std::vector<Point> points;
    if (collective == koloCollectiveBarrier) {
      return {{.operation = {.collective = collective, .root = 0},
               .shape = shapeFor(collective, 0, 1, ranks_.count),
               .buffers = buffers_.front().get()}};
    }
    if (options_.inPlace && !canBeInPlace(collective)) return points;
    const std::vector<koloRedOp_t> ops = isReduction(collective) ? options_.ops : std::vector{koloSum};
    for (const auto& buffers : buffers_) {
      for (const koloDataType_t datatype : options_.datatypes) {
        for (const koloRedOp_t op : ops) {
          if (isReduction(collective) && koloRedOpIsDefined(op, datatype) == 0) continue;
          appendSizes({.collective = collective,
                       .datatype = datatype,
                       .op = op,
                       .root = options_.root,
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
                  .verified = options_.verify};
    const int registered = result.buffers == BufferKind::kRegistered ? 1 : 0;
    check(koloCommGetPlan(comm_, operation.collective, point.shape.count, operation.datatype, operation.op, registered,
                          &result.plan),
          "koloCommGetPlan");
    if (options_.verify) {
      result.wrong = sumOverRanks(runVerified(operation, point.shape, ranks_, *point.buffers, comm_));
    }
    const Placement at = place(operation, point.shape, ranks_, *point.buffers);
    const Schedule schedule = calibrate(point, at);
    std::vector<double> own(schedule.samples);
    for (double& sample : own) sample = timeBatch(point, at, schedule.batch);
    const std::vector<double> all = gather(own);
    result.timeUs = summarize(slowestRank(all, static_cast<size_t>(ranks_.count), schedule.samples));
    result.iterations = schedule.samples * schedule.batch;
    return result;
  }

  // Microseconds of one call on this rank, when `batch` calls run back to back.
  double timeBatch(const Point& point, const Placement& at, size_t batch) {
    check(koloBarrier(comm_, nullptr), "koloBarrier");
    const Clock::time_point begin = Clock::now();
    koloResult_t result = koloSuccess;
    for (size_t i = 0; i < batch && result == koloSuccess; ++i) {
      result = runOnce(point.operation, point.shape, at, ranks_, comm_);
    }
    const Clock::time_point end = Clock::now();
    check(result, koloCollectiveName(point.operation.collective));
    return std::chrono::duration<double, std::micro>(end - begin).count() / static_cast<double>(batch);
  }

  // Warms up, and finds a schedule on which all ranks agree.
  Schedule calibrate(const Point& point, const Placement& at) {
    constexpr size_t kTrialBatch = 16;
    if (options_.warmups > 0) (void)timeBatch(point, at, options_.warmups);
    double us = maxOverRanks(timeBatch(point, at, 1));
    // A single short call is mostly the ranks' unequal exit from the barrier: several tell more.
    if (us < kBatchUs * kTrialBatch) us = maxOverRanks(timeBatch(point, at, kTrialBatch));
    return scheduleFor(us, options_.iterations);
  }

  // The ranks' values, one rank after the other.
  std::vector<double> gather(const std::vector<double>& own) {
    std::vector<double> all(own.size() * static_cast<size_t>(ranks_.count));
    check(koloAllGather(own.data(), all.data(), own.size(), koloFloat64, comm_, nullptr), "koloAllGather of samples");
    return all;
  }

  double maxOverRanks(double own) {
    const std::vector<double> all = gather({own});
    return *std::max_element(all.begin(), all.end());
  }

  // Exact up to 2^53 elements.
  size_t sumOverRanks(size_t own) {
    double sum = 0;
    for (const double each : gather({static_cast<double>(own)})) sum += each;
    return static_cast<size_t>(sum);
  }

  koloComm_t comm_;
  const Options& options_;
  Reporter* reporter_;
  Ranks ranks_{};
  std::vector<std::unique_ptr<Buffers>> buffers_;
};

}  // namespace

std::vector<Result> runSweep(koloComm_t comm, const Options& options, Reporter* reporter) {
  return Sweep(comm, options, reporter).run();
}

}  // namespace kolo::perf
