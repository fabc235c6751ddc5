// What was captured, as often as one likes, and what lives as long as it.

#include "mock_cuda/world.h"

namespace kolo::test::mock {
namespace {

// ---- user objects

void release(UserObject* object, unsigned references) {
  if (object->references.fetch_sub(references) != references) return;
  world->janitor.enqueue([object] {
    insideDestructor = true;
    object->destroy(object->data);
    insideDestructor = false;
    delete object;
    --world->userObjects;
  });
}

CUresult createObject(CUuserObject* handle, void* data, CUhostFn destroy, unsigned references, unsigned flags) {
  if (flags != CU_USER_OBJECT_NO_DESTRUCTOR_SYNC || references == 0) return CUDA_ERROR_INVALID_VALUE;
  *handle = reinterpret_cast<CUuserObject>(new UserObject{references, destroy, data});
  ++world->userObjects;
  return CUDA_SUCCESS;
}

CUresult retainObject(CUgraph handle, CUuserObject objectHandle, unsigned count, unsigned flags) {
  auto* const graph = reinterpret_cast<Graph*>(handle);
  auto* const object = reinterpret_cast<UserObject*>(objectHandle);
  const std::lock_guard lock(world->mutex);
  if (world->graphs.count(graph) == 0 || count == 0) return CUDA_ERROR_INVALID_VALUE;
  if ((flags & CU_GRAPH_USER_OBJECT_MOVE) == 0) object->references += count;
  graph->objects.emplace_back(object, [count](UserObject* held) { release(held, count); });
  return CUDA_SUCCESS;
}

// ---- execution

// Whether running the nodes one after another is the only order there is.
bool isChain(const Graph& graph) {
  for (std::size_t node = 1; node < graph.nodes.size(); ++node) {
    if (graph.nodes[node].after.count(node - 1) == 0) return false;
  }
  return true;
}

void run(const Graph& graph, const std::vector<Task>& tasks) {
  if (isChain(graph)) {
    for (const Task& task : tasks) task();
    return;
  }
  // Branches run side by side: their kernels may wait for each other.
  std::vector<Completion> done(tasks.size());
  std::vector<std::thread> threads;
  for (std::size_t node = 0; node < tasks.size(); ++node) {
    threads.emplace_back([&, node] {
      for (const std::size_t before : graph.nodes[node].after) done[before].wait();
      if (world->broken == CUDA_SUCCESS) tasks[node]();
      done[node].finish();
    });
  }
  for (std::thread& thread : threads) thread.join();
}

CUresult instantiate(CUgraphExec* exec, CUgraph handle, unsigned long long) {
  auto* const graph = reinterpret_cast<Graph*>(handle);
  const std::lock_guard lock(world->mutex);
  if (world->graphs.count(graph) == 0 || graph->capturing) return CUDA_ERROR_INVALID_VALUE;
  auto* const own = new GraphExec{.graph = std::make_shared<const Graph>(*graph), .last = nullptr};
  world->execs.insert(own);
  *exec = reinterpret_cast<CUgraphExec>(own);
  return CUDA_SUCCESS;
}

// Records and waits of nodes refer to the time of this call: waits to what was recorded before it, not to the graph's
// own records, for which it has its edges.
Task bindLaunch(const std::shared_ptr<const Graph>& graph, const std::shared_ptr<Completion>& before,
                const std::shared_ptr<Completion>& done) {
  std::vector<Task> tasks(graph->nodes.size());
  for (const bool waits : {true, false}) {
    for (std::size_t node = 0; node < tasks.size(); ++node) {
      if (graph->nodes[node].waits == waits) tasks[node] = graph->nodes[node].bind();
    }
  }
  return [graph, before, done, tasks] {
    if (before != nullptr) before->wait();
    run(*graph, tasks);
    done->finish();
  };
}

CUresult launch(CUgraphExec handle, CUstream streamHandle) {
  auto* const exec = reinterpret_cast<GraphExec*>(handle);
  waitForRoom(streamHandle);
  const std::lock_guard lock(world->mutex);
  const auto stream = findStream(streamHandle);
  if (stream == nullptr || world->execs.count(exec) == 0) return CUDA_ERROR_INVALID_HANDLE;
  if (stream->capture != nullptr) {  // becomes a part of the graph
    return submitLocked(*stream, streamHandle,
                        [graph = exec->graph] { return bindLaunch(graph, nullptr, std::make_shared<Completion>()); });
  }
  return submitLocked(*stream, streamHandle, [exec] {
    const auto before = exec->last;
    exec->last = std::make_shared<Completion>();
    return bindLaunch(exec->graph, before, exec->last);
  });
}

// What it refers to lives until the last launch has ended.
CUresult destroyExec(CUgraphExec handle) {
  auto* const exec = reinterpret_cast<GraphExec*>(handle);
  const std::lock_guard lock(world->mutex);
  if (world->execs.erase(exec) == 0) return CUDA_ERROR_INVALID_VALUE;
  delete exec;
  return CUDA_SUCCESS;
}

CUresult destroyGraph(CUgraph handle) {
  auto* const graph = reinterpret_cast<Graph*>(handle);
  const std::lock_guard lock(world->mutex);
  if (world->graphs.count(graph) == 0 || graph->capturing) return CUDA_ERROR_INVALID_VALUE;
  world->graphs.erase(graph);
  delete graph;
  return CUDA_SUCCESS;
}

}  // namespace

thread_local bool insideDestructor = false;

void addGraphs(drivers::CudaDriver& d) {
  d.cuUserObjectCreate = createObject;
  d.cuGraphRetainUserObject = retainObject;
}

void addGraphs(CudaForTests& table) {
  table.cuGraphInstantiate = instantiate;
  table.cuGraphLaunch = mock::launch;
  table.cuGraphExecDestroy = destroyExec;
  table.cuGraphDestroy = destroyGraph;
}

}  // namespace kolo::test::mock
