#include "python/native/family_bindings.h"

#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>

#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/families/families.h"
#include "engine/families/make_model.h"
#include "engine/model/ops/products.h"
#include "engine/module/family_model.h"
#include "python/native/python_errors.h"

namespace py = pybind11;

namespace sluice::engine {
namespace {

using NoGil = py::call_guard<py::gil_scoped_release>;
using Parameters = std::vector<std::pair<std::string, std::vector<std::int64_t>>>;

std::vector<std::pair<std::string, Parameters>> units_of(const FamilyModel& family) {
  std::vector<std::pair<std::string, Parameters>> units;
  for (const ModuleUnit& unit : family.units()) {
    Parameters parameters;
    for (const ModuleParameter& parameter : unit.parameters)
      parameters.emplace_back(parameter.name, parameter.shape);
    units.emplace_back(unit.name, std::move(parameters));
  }
  return units;
}

std::unique_ptr<FamilyPass> make_passes(ModuleRun& run, const FamilyModel& family,
                                        std::int64_t padding_row) {
  return std::make_unique<FamilyPass>(run, make_model(family.options(run.config())),
                                      FamilyPass::Options{.padding_row = padding_row});
}

// Left-padded rows as documents: positions, starts, and the longest document's length.
using PythonDocuments = std::tuple<at::Tensor, at::Tensor, std::int64_t>;

std::shared_ptr<MicroBatchPass> forward(FamilyPass& passes, const at::Tensor& tokens,
                                        const at::Tensor& targets, double divisor,
                                        const std::optional<PythonDocuments>& documents,
                                        bool has_backward, bool drops, bool keeps,
                                        std::int64_t number) {
  const std::lock_guard lock(passes.run().calls());
  FamilyBatch batch{.tokens = tokens, .targets = targets, .documents = {}, .divisor = divisor};
  if (documents)
    batch.documents = Documents{.positions = std::get<0>(*documents),
                                .starts = std::get<1>(*documents),
                                .longest = std::get<2>(*documents),
                                .padded_tokens = batch.tokens.size(1)};
  return passes.forward(
      std::move(batch),
      {.has_backward = has_backward, .drops = drops, .keeps = keeps, .number = number});
}

}  // namespace

void define_family(py::module_& module) {
  module.def(
      "has_fast_products",
      [](const std::string& precision) {
        return precision == "bf16"   ? has_fast_products(at::kBFloat16)
               : precision == "fp16" ? has_fast_products(at::kHalf)
                                     : true;
      },
      py::arg("precision"),
      "Whether this processor multiplies numbers of the precision as fast as fp32's.");
  module.def(
      "module_classes",
      [] {
        std::map<std::string, std::pair<std::string, std::vector<std::string>>> classes;
        for (const ModuleClass& one : module_classes())
          classes[one.model_type] = {one.name, one.keys};
        return classes;
      },
      "By model_type: a class of transformers that a family computes, and its config's keys.");
  py::class_<FamilyModel>(module, "Family")
      .def(py::init([](const std::string& text) { return value_of(FamilyModel::read(text)); }),
           py::arg("config"))
      .def_property_readonly("units", &units_of)
      .def_property_readonly("name", [](const FamilyModel& it) { return it.shape().family; })
      .def_property_readonly("dropout", [](const FamilyModel& it) { return it.shape().dropout; })
      .def_property_readonly("context",
                             [](const FamilyModel& it) { return it.shape().context_tokens; })
      .def_property_readonly("vocab", [](const FamilyModel& it) { return it.shape().vocab; })
      .def("logits", &FamilyModel::logits, py::arg("values"), py::arg("tokens"), NoGil());
}

void define_family_pass(py::module_& module) {
  py::class_<MicroBatchPass, std::shared_ptr<MicroBatchPass>>(module, "MicroBatchPass")
      .def_property_readonly("loss", &MicroBatchPass::loss);
  py::class_<FamilyPass>(module, "FamilyPass")
      .def(py::init(&make_passes), py::arg("run"), py::arg("family"), py::arg("padding_row"),
           py::keep_alive<1, 2>())
      .def("forward", &forward, py::arg("tokens"), py::arg("targets"), py::arg("divisor"),
           py::arg("documents"), py::arg("has_backward"), py::arg("drops"), py::arg("keeps"),
           py::arg("number"), NoGil())
      .def(
          "backward",
          [](FamilyPass& passes, MicroBatchPass& pass, double scale) {
            const std::lock_guard lock(passes.run().calls());
            passes.backward(pass, scale);
          },
          py::arg("micro_batch"), py::arg("scale"), NoGil())
      .def(
          "logits",
          [](FamilyPass& passes, const MicroBatchPass& pass) {
            const std::lock_guard lock(passes.run().calls());
            return passes.logits(pass);
          },
          py::arg("micro_batch"), NoGil());
}

}  // namespace sluice::engine
