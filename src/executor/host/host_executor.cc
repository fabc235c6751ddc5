// The production backend for host memory: every algorithm, instantiated once for the host thread.
#include "algorithms/execute.h"
#include "executor/context.h"
#include "executor/host/host_team.h"

namespace kolo::executor {
namespace {

class HostExecutor final : public Executor {
 public:
  void run(const device::Work& work, const Context& context) override {
    HostTeam team(work, context);
    algorithms::execute(team, work);
  }
};

}  // namespace

Executor& hostExecutor() {
  static auto* const only = new HostExecutor;  // never destroyed: global objects may call until the end
  return *only;
}

}  // namespace kolo::executor
