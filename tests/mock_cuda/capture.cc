// Recording of what streams are told, instead of doing it.
#include <algorithm>

#include "mock_cuda/world.h"

namespace kolo::test::mock {
namespace {

thread_local CUstreamCaptureMode threadMode = CU_STREAM_CAPTURE_MODE_GLOBAL;

CUresult begin(CUstream handle, CUstreamCaptureMode mode) {
  if (handle == nullptr || handle == CU_STREAM_LEGACY) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  const std::lock_guard lock(world->mutex);
  const auto stream = findStream(handle);
  if (stream == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (stream->capture != nullptr) return CUDA_ERROR_ILLEGAL_STATE;
  auto graph = std::make_unique<Graph>();
  const auto capture = std::make_shared<Capture>();
  *capture = {.id = ++world->lastId,
              .mode = mode,
              .thread = std::this_thread::get_id(),
              .origin = stream.get(),
              .members = {stream.get()},
              .graph = graph.get()};
  stream->capture = capture;
  world->captures.insert(capture);
  world->graphs.insert(graph.release());
  return CUDA_SUCCESS;
}

// Whether all that was captured comes before the end of the origin.
bool isJoined(const Capture& capture) {
  const std::vector<Graph::Node>& nodes = capture.graph->nodes;
  Nodes before = capture.origin->frontier;
  for (std::size_t node = nodes.size(); node-- > 0;) {
    if (nodes[node].isAdded) continue;
    if (before.count(node) == 0) return false;
    before.insert(nodes[node].after.begin(), nodes[node].after.end());
  }
  return true;
}

// The streams are free again.
void close(const std::shared_ptr<Capture>& capture) {
  for (Stream* member : capture->members) {
    member->capture = nullptr;
    member->frontier.clear();
  }
  capture->members.clear();
  capture->ended = true;
  capture->graph->capturing = false;
  world->captures.erase(capture);
}

void dropGraph(Capture& capture) {
  world->graphs.erase(capture.graph);
  delete capture.graph;
  capture.graph = nullptr;
}

CUresult end(CUstream handle, CUgraph* graph) {
  *graph = nullptr;
  const std::lock_guard lock(world->mutex);
  const auto stream = findStream(handle);
  if (stream == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  const std::shared_ptr<Capture> capture = stream->capture;
  if (capture == nullptr) return CUDA_ERROR_ILLEGAL_STATE;
  if (capture->origin != stream.get()) {
    capture->invalid = true;
    return CUDA_ERROR_STREAM_CAPTURE_UNMATCHED;
  }
  if (capture->mode != CU_STREAM_CAPTURE_MODE_RELAXED && capture->thread != std::this_thread::get_id()) {
    capture->invalid = true;
    return CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
  }
  const CUresult result = capture->invalid      ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED
                          : !isJoined(*capture) ? CUDA_ERROR_STREAM_CAPTURE_UNJOINED
                                                : CUDA_SUCCESS;
  close(capture);
  if (result == CUDA_SUCCESS) *graph = reinterpret_cast<CUgraph>(capture->graph);
  else dropGraph(*capture);
  return result;
}

// ends: of the nodes for which the next one waits; valid until the thread asks again.
CUresult info(CUstream handle, CUstreamCaptureStatus* status, cuuint64_t* id, CUgraph* graph,
              std::vector<CUgraphNode>& ends) {
  ends.clear();
  const std::lock_guard lock(world->mutex);
  const auto stream = findStream(handle);
  if (stream == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (conflictsWithCapture(*stream, handle, false)) return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
  const Capture* const capture = stream->capture.get();
  *status = capture == nullptr ? CU_STREAM_CAPTURE_STATUS_NONE
            : capture->invalid ? CU_STREAM_CAPTURE_STATUS_INVALIDATED
                               : CU_STREAM_CAPTURE_STATUS_ACTIVE;
  if (*status != CU_STREAM_CAPTURE_STATUS_ACTIVE) return CUDA_SUCCESS;
  if (id != nullptr) *id = capture->id;
  if (graph != nullptr) *graph = reinterpret_cast<CUgraph>(capture->graph);
  for (const std::size_t node : stream->frontier) ends.push_back(nodeHandle(node));
  return CUDA_SUCCESS;
}

}  // namespace

bool forbiddenByCapture() {
  if (threadMode == CU_STREAM_CAPTURE_MODE_RELAXED) return false;
  const std::lock_guard lock(world->mutex);
  bool forbidden = false;
  for (const auto& capture : world->captures) {
    const bool everywhere =
        capture->mode == CU_STREAM_CAPTURE_MODE_GLOBAL && threadMode == CU_STREAM_CAPTURE_MODE_GLOBAL;
    const bool here = capture->mode != CU_STREAM_CAPTURE_MODE_RELAXED && capture->thread == std::this_thread::get_id();
    if (!everywhere && !here) continue;
    capture->invalid = true;
    forbidden = true;
  }
  return forbidden;
}

void abandonCapture(Stream& stream) {
  const std::shared_ptr<Capture> capture = stream.capture;
  if (capture == nullptr) return;
  capture->invalid = true;
  capture->members.erase(&stream);
  stream.capture = nullptr;
  if (capture->origin != &stream) return;
  close(capture);
  dropGraph(*capture);
}

void addCapture(drivers::CudaDriver& d) {
  d.cuStreamGetCaptureInfo = [](CUstream stream, CUstreamCaptureStatus* status, cuuint64_t* id, CUgraph* graph,
                                const CUgraphNode** nodes, std::size_t* count) {
    static thread_local std::vector<CUgraphNode> ends;
    const CUresult result = info(stream, status, id, graph, ends);
    if (nodes != nullptr) *nodes = ends.data();
    if (count != nullptr) *count = ends.size();
    return result;
  };
  d.cuThreadExchangeStreamCaptureMode = [](CUstreamCaptureMode* mode) {
    std::swap(*mode, threadMode);
    return CUDA_SUCCESS;
  };
}

void addCapture(CudaForTests& table) {
  table.cuStreamBeginCapture = begin;
  table.cuStreamEndCapture = end;
}

}  // namespace kolo::test::mock
