// ParameterSpill for Python.
#include "python/native/bindings.h"
// The include above must come first: it has Python's header.
#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "engine/module/parameter_spill.h"
#include "engine/preflight/leftovers.h"

namespace py = pybind11;

namespace sluice::engine {

void define_spill(py::module_& module) {
  using NoGil = py::call_guard<py::gil_scoped_release>;
  using Use = ParameterSpill::Use;
  py::class_<ParameterSpill, std::shared_ptr<ParameterSpill>>(module, "Spill")
      .def_static(
          "create",
          [](const ResolvedConfig& config, std::optional<std::uint64_t> cache_bytes,
             int local_ranks) {
            must_be(clear_leftovers(config.config));
            return value_of(ParameterSpill::create(config.config, cache_bytes, local_ranks));
          },
          py::arg("config"), py::arg("cache_bytes"), py::arg("local_ranks"), NoGil())
      .def(
          "adopt",
          [](ParameterSpill& spill, const at::Tensor& tensor) {
            return value_of(spill.adopt(tensor));
          },
          py::arg("tensor"), NoGil())
      .def(
          "flush", [](ParameterSpill& spill) { must_be(spill.flush()); }, NoGil())
      .def_property_readonly("cache_bytes", &ParameterSpill::cache_bytes)
      .def_property_readonly("stats", [](const ParameterSpill& spill) {
        const ParameterSpill::Stats stats = spill.stats();
        py::dict named;
        named["values"] = stats.values;
        named["value_bytes"] = stats.value_bytes;
        named["resident_bytes"] = stats.resident_bytes;
        named["most_resident_bytes"] = stats.most_resident_bytes;
        named["written_bytes"] = stats.written_bytes;
        named["read_bytes"] = stats.read_bytes;
        return named;
      });
  py::enum_<Use>(module, "Use")
      .value("READ", Use::kRead)
      .value("CHANGE", Use::kChange)
      .value("ADDRESS", Use::kAddress);
  module.def("is_spilled", &ParameterSpill::has, py::arg("tensor"));
  module.def(
      "values_of",
      [](const at::Tensor& tensor) { return value_of(ParameterSpill::values_of(tensor)); },
      py::arg("tensor"), NoGil());
  module.def(
      "touch",
      [](const std::vector<at::Tensor>& tensors, Use use) {
        return value_of(ParameterSpill::touch(tensors, use));
      },
      py::arg("tensors"), py::arg("use"), NoGil());
  module.def(
      "flush_spills_of",
      [](const std::vector<at::Tensor>& tensors) {
        for (const auto& spill : ParameterSpill::spills_of(tensors)) must_be(spill->flush());
      },
      py::arg("tensors"), NoGil());
}

}  // namespace sluice::engine
