#include "executor/cuda/launch_order.h"

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

#include "executor/cuda/lists.h"

namespace kolo::executor::cuda {

Status LaunchOrder::allocate() {
  KOLO_CUDA(gpu_->driver(), cuEventCreate, (&last_, CU_EVENT_DISABLE_TIMING));
  for (CUevent& milestone : milestones_)
    KOLO_CUDA(gpu_->driver(), cuEventCreate, (&milestone, CU_EVENT_DISABLE_TIMING));
  return {};
}

LaunchOrder::~LaunchOrder() {
  const Gpu::Current current(*gpu_);
  const drivers::CudaDriver& driver = gpu_->driver();
  if (last_ != nullptr) (void)driver.cuEventDestroy(last_);
  for (const CUevent milestone : milestones_) {
    if (milestone != nullptr) (void)driver.cuEventDestroy(milestone);
  }
  for (const CapturedLaunch& launch : captures_) (void)driver.cuEventDestroy(launch.event);
}

Result<LaunchOrder::Capture> LaunchOrder::captureOf(CUstream stream) const {
  Capture capture;
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  cuuint64_t id = 0;
  KOLO_CUDA(gpu_->driver(), cuStreamGetCaptureInfo, (stream, &status, &id, &capture.graph, nullptr, nullptr));
  if (status == CU_STREAM_CAPTURE_STATUS_INVALIDATED)
    return error(koloInvalidUsage, "the stream's capture has been invalidated");
  capture.active = status == CU_STREAM_CAPTURE_STATUS_ACTIVE;
  capture.id = id;
  if (!capture.active) {
    KOLO_ASSIGN(capture.stream, gpu_->idOf(stream));
  }
  return capture;
}

bool LaunchOrder::isInOrder(const Capture& capture) const {
  return !launched_ || (capture.stream == lastStream_ && !mayReplay());
}

// Whether the last launch may have been one of a graph's.
bool LaunchOrder::mayReplay() const { return captured_ && !orderedSince_; }

// The graph, which has launches, tells when it is gone.
Status LaunchOrder::countGraph(CUgraph graph) {
  if (graphs_ == nullptr) graphs_ = std::make_shared<std::atomic<int>>(0);
  graphs_->fetch_add(1, std::memory_order_relaxed);
  return tellWhenGone(gpu_->driver(), graph,
                      [graphs = graphs_] { graphs->fetch_sub(1, std::memory_order_release); });  // [graph gone]
}

// Launches of a communicator run one after the other, whatever stream they are in, captured or not. Inside of a capture
// an event of the capture orders them; the first of a capture waits, each time that it is replayed, for what was
// launched last before.
Status LaunchOrder::begin(CUstream stream, const Capture& capture) {
  const drivers::CudaDriver& driver = gpu_->driver();
  if (!capture.active) {
    replaysAreOver_ = captured_ && graphs_ != nullptr && graphs_->load(std::memory_order_acquire) == 0;  // [graph gone]
    if (!isInOrder(capture)) KOLO_CUDA(driver, cuStreamWaitEvent, (stream, last_, CU_EVENT_WAIT_DEFAULT));
  } else if (const CapturedLaunch* const last = lastIn(capture); last != nullptr) {
    KOLO_CUDA(driver, cuStreamWaitEvent, (stream, last->event, CU_EVENT_WAIT_DEFAULT));
  } else {
    KOLO_CUDA(driver, cuStreamWaitEvent, (stream, last_, CU_EVENT_WAIT_EXTERNAL));
  }
  ++unrecorded_;
  return {};
}

Status LaunchOrder::end(CUstream stream, const Capture& capture) {
  KOLO_TRY(record(stream, capture));
  --unrecorded_;
  return capture.active ? Status() : passMilestone(stream);
}

Status LaunchOrder::record(CUstream stream, const Capture& capture) {
  const drivers::CudaDriver& driver = gpu_->driver();
  launched_ = true;
  if (!capture.active) {
    KOLO_CUDA(driver, cuEventRecord, (last_, stream));
    lastStream_ = capture.stream;
    orderedSince_ = replaysAreOver_;
    return {};
  }
  captured_ = true;
  orderedSince_ = false;
  if (countsGraphs_ && lastIn(capture) == nullptr) KOLO_TRY(countGraph(capture.graph));
  KOLO_ASSIGN(const CUgraphNode record, addRecord(capture, stream));
  return setLastIn(capture, stream, record);
}

// What records last_ in each replay, behind the launch that has just been captured. It is a leaf of the graph: the
// stream's next kernel does not wait for it, as it would for a record that the stream captured. The record behind the
// next launch does: so the last record of a replay is the one behind its last launch. What the stream's next node waits
// for is the kernel alone, by an edge without data: of others the driver would refuse to tell by this form of the call.
Result<CUgraphNode> LaunchOrder::addRecord(const Capture& capture, CUstream stream) const {
  const drivers::CudaDriver& driver = gpu_->driver();
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  const CUgraphNode* ends = nullptr;
  std::size_t count = 0;
  KOLO_CUDA(driver, cuStreamGetCaptureInfo, (stream, &status, nullptr, nullptr, &ends, &count));
  std::vector<CUgraphNode> after(ends, ends + count);
  if (const CapturedLaunch* const last = lastIn(capture); last != nullptr) after.push_back(last->record);
  CUgraphNode record = nullptr;
  KOLO_CUDA(driver, cuGraphAddEventRecordNode, (&record, capture.graph, after.data(), after.size(), last_));
  return record;
}

// nullptr: nothing was launched in this capture yet.
const LaunchOrder::CapturedLaunch* LaunchOrder::lastIn(const Capture& capture) const {
  const auto found = std::find_if(captures_.begin(), captures_.end(),
                                  [&](const CapturedLaunch& launch) { return launch.capture == capture.id; });
  return found != captures_.end() ? &*found : nullptr;
}

// Captures may be interleaved, so each has its own event; that of the one with the oldest launch is used again when
// there are too many.
Status LaunchOrder::setLastIn(const Capture& capture, CUstream stream, CUgraphNode record) {
  const drivers::CudaDriver& driver = gpu_->driver();
  auto place = std::find_if(captures_.begin(), captures_.end(),
                            [&](const CapturedLaunch& launch) { return launch.capture == capture.id; });
  if (place == captures_.end() && captures_.size() < kMostCaptures) {
    CUevent event = nullptr;
    KOLO_CUDA(driver, cuEventCreate, (&event, CU_EVENT_DISABLE_TIMING));
    place = captures_.insert(captures_.end(), CapturedLaunch{.capture = 0, .event = event, .record = nullptr});
  }
  if (place == captures_.end()) --place;
  std::rotate(captures_.begin(), place, place + 1);
  captures_.front().capture = capture.id;
  captures_.front().record = record;
  KOLO_CUDA(driver, cuEventRecord, (captures_.front().event, stream));
  return {};
}

// The number of a launch that has ended, and all before it: awaitMilestone() has seen that.
std::uint64_t LaunchOrder::lastEnded() const {
  const std::uint64_t reached = passed_ / kMilestone, behind = kMilestones;
  return reached > behind ? (reached - behind) * kMilestone : 0;
}

// Before the launch that is to record a milestone: the one in its place has been reached, and so are those before it.
// It is asked for and not waited for, since what the driver waits for it may wait for with its locks. A device that is
// broken is told by what is called next. A communicator that has failed waits for nothing: what stands before its
// launches in the stream may be there for long.
Status LaunchOrder::awaitMilestone(const device::Counter& stop) const {
  const std::uint64_t next = passed_ + 1;
  if (next % kMilestone != 0 || next <= kMilestone * kMilestones) return {};
  const Gpu::Current current(*gpu_);
  const CUevent milestone = milestones_[next / kMilestone % kMilestones];
  while (gpu_->driver().cuEventQuery(milestone) == CUDA_ERROR_NOT_READY) {
    if (device::loadRelaxed(stop) != 0) return error(koloAborted, "the communicator has failed meanwhile");  // [stop]
    std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
  return {};
}

// Launches are one after the other, whatever streams they are in: the event of one comes after those before it.
Status LaunchOrder::passMilestone(CUstream stream) {
  if (++passed_ % kMilestone != 0) return {};
  KOLO_CUDA(gpu_->driver(), cuEventRecord, (milestones_[passed_ / kMilestone % kMilestones], stream));
  return {};
}

// ---- the end

// Whether no kernel of this rank's runs any more, nor will: of graphs that have been made of its launches nobody knows,
// and of a launch behind which no event could be recorded neither.
bool LaunchOrder::hasEnded() const {
  if (!launched_ && !mayRunUnseen()) return true;
  return gpu_->driver().cuEventSynchronize(last_) == CUDA_SUCCESS && !captured_ && !mayRunUnseen();
}

Status LaunchOrder::broken() const {
  if (!launched_) return {};
  const Gpu::Current current(*gpu_);
  const CUresult result = gpu_->driver().cuEventQuery(last_);
  if (result == CUDA_SUCCESS || result == CUDA_ERROR_NOT_READY || result == CUDA_ERROR_CAPTURED_EVENT) return {};
  return drivers::cudaError(gpu_->driver(), result, "cuEventQuery");
}

Status LaunchOrder::drain() const {
  if (!launched_) return {};
  const Gpu::Current current(*gpu_);
  KOLO_CUDA(gpu_->driver(), cuEventSynchronize, (last_));
  return {};
}

}  // namespace kolo::executor::cuda
