// The Python module kolo_torch._backend: how a group is made.
#include <pybind11/chrono.h>
#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>

#include <algorithm>
#include <chrono>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "torch/backend.h"

namespace kolo::pytorch {
namespace {

namespace py = pybind11;
using Options = KoloBackend::Options;

// A group's communicator. nullptr: it has none of Kolo's.
std::shared_ptr<Communicator> communicatorOf(const py::object& group) {
  if (group.is_none()) return nullptr;
  for (const py::handle device : group.attr("_device_types")) {
    const py::object backend = group.attr("_get_backend")(device);
    const py::object wrapped = py::getattr(backend, "wrapped_pg", backend);  // TORCH_DISTRIBUTED_DEBUG=DETAIL wraps it
    const auto kolo =
        c10::dynamic_intrusive_pointer_cast<KoloBackend>(wrapped.cast<c10::intrusive_ptr<c10d::Backend>>());
    if (kolo != nullptr) return kolo->onHost();
  }
  return nullptr;
}

// That of torch's default group, whose ranks are torch's global ranks.
std::shared_ptr<Communicator> ofDefaultGroup() {
  const py::gil_scoped_acquire here;
  return communicatorOf(py::module::import("torch.distributed").attr("group").attr("WORLD"));
}

std::shared_ptr<Communicator> mustHaveCommunicator(const py::object& group, const char* function) {
  std::shared_ptr<Communicator> found = communicatorOf(group);
  TORCH_CHECK_VALUE(found != nullptr, function, ": the group has no backend of Kolo's");
  return found;
}

std::pair<std::uint64_t, std::vector<int>> agree(const py::object& group, std::uint64_t flags) {
  return mustHaveCommunicator(group, "agree")->agree(flags);
}

py::bytes makeGrowthId(const py::object& group) {
  const koloUniqueId id = mustHaveCommunicator(group, "growth_id")->makeGrowthId();
  return {id.internal, sizeof id.internal};
}

// group: None in a new process. The root has to be kept until torch has made the group of it.
std::shared_ptr<Root> growRoot(const py::object& group, const std::string& id, const std::string& token, int rank,
                               int size, const c10::intrusive_ptr<Options>& options) {
  Growth growth{{}, token, rank, size, options == nullptr ? "" : options->settings.transports};
  TORCH_CHECK_VALUE(id.size() == sizeof growth.id.internal, "grow_group: the growth_id has ", id.size(),
                    " bytes, expected ", sizeof growth.id.internal, ", as growth_id() makes them");
  std::copy(id.begin(), id.end(), growth.id.internal);
  const auto old = group.is_none() ? nullptr : mustHaveCommunicator(group, "grow_group");
  return grow(old == nullptr ? KOLO_COMM_NULL : old->get(), growth);
}

c10::intrusive_ptr<c10d::Backend> create(const c10d::DistributedBackendOptions& given,
                                         const c10::intrusive_ptr<c10d::Backend::Options>& users) {
  auto options = c10::make_intrusive<Options>();
  if (users != nullptr) {
    const auto own = c10::dynamic_intrusive_pointer_cast<Options>(users);
    TORCH_CHECK_TYPE(own != nullptr, "pg_options are those of backend \"", users->backend,
                     "\", expected kolo_torch.Options");
    options = c10::make_intrusive<Options>(*own);
  }
  options->timeout = std::chrono::round<Milliseconds>(given.timeout);
  options->group_name = given.group_id;
  options->global_ranks_in_group.assign(given.global_ranks_in_group.begin(), given.global_ranks_in_group.end());
  Kin kin;
  if (!given.global_ranks_in_group.empty())
    kin = {ofDefaultGroup(),
           {given.global_ranks_in_group.begin(), given.global_ranks_in_group.end()},
           "the default group"};
  return c10::make_intrusive<KoloBackend>(given.store, given.group_rank, given.group_size, std::move(options), kin);
}

int version() {
  int version = 0;
  check(koloGetVersion(&version), "kolo:version");
  return version;
}

}  // namespace
}  // namespace kolo::pytorch

PYBIND11_MODULE(_backend, module) {
  using namespace kolo::pytorch;
  py::module::import("torch.distributed");  // which knows the classes that these derive from
  py::class_<Options, c10::intrusive_ptr<Options>, c10d::Backend::Options>(module, "Options", R"(
What a group may be given as pg_options. Fields that are left alone take the settings of the environment.)")
      .def(py::init<>())
      .def_property(
          "reproducible", [](const Options& options) { return options.settings.reproducible == 1; },
          [](Options& options, bool value) { options.settings.reproducible = value ? 1 : 0; },
          "Fold every element in the order of ranks, whatever the algorithm: the same bits on every run.")
      .def_property(
          "algorithm", [](const Options& options) { return options.settings.algorithm; },
          [](Options& options, std::string text) { options.settings.algorithm = std::move(text); },
          "As KOLO_ALGORITHM: \"all_reduce:ring,broadcast:^tree\".")
      .def_property(
          "transports", [](const Options& options) { return options.settings.transports; },
          [](Options& options, std::string text) { options.settings.transports = std::move(text); },
          "As KOLO_TRANSPORTS: names in order of preference, \"shm,tcp\".")
      .def_property(
          "windows", [](const Options& options) { return options.settings.windows; },
          [](Options& options, bool value) { options.settings.windows = value; },
          "Memory that the group allocates for tensors (FSDP2's set_allocate_memory_from_process_group_for_comm) is\n"
          "zero-copy. All ranks give the same. Some calls, the 1st, 3rd, 7th and so on, then wait for the other "
          "ranks.");
  module.def("create", &create, py::arg("group"), py::arg("options") = nullptr,
             py::call_guard<py::gil_scoped_release>());
  py::class_<Root, std::shared_ptr<Root>>(module, "Root").doc() = "A communicator of which those of groups are made.";
  module.def("agree", &agree, py::arg("group"), py::arg("flags"));
  module.def("growth_id", &makeGrowthId, py::arg("group"));
  module.def("grow", &growRoot, py::arg("group"), py::arg("id"), py::arg("token"), py::arg("rank"), py::arg("size"),
             py::arg("options") = nullptr);
  module.def("version", &version, "Kolo's version: 100 is 0.1.0.");
}
