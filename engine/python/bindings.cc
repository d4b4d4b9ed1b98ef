// sluice._core: ModuleRun for Python. The package's own files (sluice/) are all that uses it.
//
// Every call that may wait gives up the GIL. Errors are sluice.Error, with the engine's sentence.
#include <Python.h>
// The above has to come first.
#include <ATen/Parallel.h>
#include <pybind11/functional.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>
#include <torch/version.h>

#include <algorithm>
#include <array>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/config/resolve.h"
#include "engine/device/gpu.h"
#include "engine/python/module_run.h"
#include "engine/run/config_answers.h"
#include "engine/run/stored_state.h"
#include "engine/step/train_error.h"

namespace py = pybind11;

namespace sluice::engine {
namespace {

// What the user asked for cannot be had, as it was asked for.
class RefusedError : public TrainError {
  using TrainError::TrainError;
};

void must_be(const Status& status) {
  if (status.ok()) return;
  if (status.error().code() == ErrorCode::kInvalidArgument ||
      status.error().code() == ErrorCode::kUnsupported)
    throw RefusedError(status.error().message());
  throw TrainError(status.error().message());
}
template <typename T>
T value_of(Result<T> result) {
  must_be(result.ok() ? Status() : Status(result.error()));
  return std::move(result).value();
}

// A configuration as Python has it: JSON text, of a run file or of DeepSpeed's.
struct ResolvedConfig {
  config::Config config;
  std::vector<std::pair<std::string, std::string>> ignored;  // keys, and why
};

// What a script decides by itself: keys with these beginnings mean nothing here.
bool is_the_scripts(std::string_view key) {
  constexpr std::array kBeginnings = {
      "model.",          "data.",           "run.eval_",           "run.checkpoint_",
      "run.epochs",      "run.log_every",   "run.resume",          "run.later_checkpoints",
      "run.hash_units",  "run.dir",         "steps_per_print",     "wall_clock_breakdown",
      "flops_profiler.", "placement.wave_", "placement.recompute", "placement.boundaries_"};
  return std::any_of(kBeginnings.begin(), kBeginnings.end(),
                     [key](std::string_view it) { return key.starts_with(it); });
}

ResolvedConfig resolve_config(const std::string& text, bool of_deepspeed,
                              const std::vector<std::string>& overrides) {
  config::Sources sources;
  const config::Source source{"the configuration", text};
  (of_deepspeed ? sources.deepspeed : sources.run_file) = source;
  sources.overrides = overrides;
  config::Resolved resolved = value_of(config::resolve(sources));
  must_be(check_device(resolved.config));
  if (resolved.questions.gpu) {
    sources.answers.gpu = gpu_kind(resolved.config);
    resolved = value_of(config::resolve(sources));
  }
  ResolvedConfig made{.config = std::move(resolved.config)};
  // Threads are LibTorch's here, which this program has set.
  if (made.config.run.cpu_threads == 0) made.config.run.cpu_threads = at::get_num_threads();
  for (const config::KeyReport& report : resolved.reports) {
    if (report.outcome == config::Outcome::kIgnored)
      made.ignored.emplace_back(report.path, report.reason);
    else if (report.given && is_the_scripts(report.path))
      made.ignored.emplace_back(report.path, "a script decides that itself");
  }
  return made;
}

using PythonUnit = std::pair<std::string, std::vector<ModuleParameter>>;

std::unique_ptr<ModuleRun> make_run(const ResolvedConfig& config,
                                    const std::vector<PythonUnit>& described) {
  at::set_num_threads(static_cast<int>(config.config.run.cpu_threads));
  std::vector<ModuleUnit> units;
  units.reserve(described.size());
  for (const PythonUnit& unit : described)
    units.push_back({.name = unit.first, .parameters = unit.second});
  return value_of(
      ModuleRun::create(config.config, value_of(ModuleLayout::create(std::move(units)))));
}

std::vector<std::pair<std::string, std::uint64_t>> lines_of(const std::vector<MemoryLine>& lines) {
  std::vector<std::pair<std::string, std::uint64_t>> all;
  for (const MemoryLine& line : lines)
    if (line.bytes > 0) all.emplace_back(line.what, line.bytes);
  return all;
}

py::dict memory_of(const ModuleRun& run) {
  py::dict tiers;
  tiers["host"] = lines_of(run.plan().host);
  tiers["gpu"] = lines_of(run.plan().gpu);
  tiers["nvme"] = lines_of(run.plan().nvme);
  return tiers;
}

// Calls Python for the tensors of a unit, from whichever thread wants them. What it raises must not
// leave an executor's thread: it is kept, and raised once that work has ended.
class PythonValues {
 public:
  explicit PythonValues(const py::function& values) : values_(values) {}

  ModuleRun::UnitValues get() {
    return [this](int unit) {
      const py::gil_scoped_acquire gil;
      try {
        return values_(unit).cast<std::vector<at::Tensor>>();
      } catch (...) {
        raised_ = std::current_exception();
        return std::vector<at::Tensor>();
      }
    };
  }
  void raise() const {
    if (raised_) std::rethrow_exception(raised_);
  }

 private:
  const py::function& values_;
  std::exception_ptr raised_;
};

using NoGil = py::call_guard<py::gil_scoped_release>;

void define_values(py::module_& module) {
  py::class_<ResolvedConfig>(module, "Config")
      .def(py::init(&resolve_config), py::arg("text"), py::arg("of_deepspeed"),
           py::arg("overrides") = std::vector<std::string>())
      .def_readonly("ignored", &ResolvedConfig::ignored)
      .def_property_readonly(
          "precision", [](const ResolvedConfig& it) { return precision_name(it.config.precision); })
      .def_property_readonly("accumulation",
                             [](const ResolvedConfig& it) { return it.config.batch.accumulation; })
      .def_property_readonly("micro_batch",
                             [](const ResolvedConfig& it) { return it.config.batch.micro; })
      .def_property(
          "run_dir", [](const ResolvedConfig& it) { return it.config.run.dir; },
          [](ResolvedConfig& it, const std::string& dir) { it.config.run.dir = dir; })
      .def("json", [](const ResolvedConfig& it) { return config::to_json(it.config); });

  py::class_<ModuleParameter>(module, "Parameter")
      .def(py::init([](std::string name, std::vector<std::int64_t> shape, bool trained) {
             return ModuleParameter{std::move(name), std::move(shape), trained};
           }),
           py::arg("name"), py::arg("shape"), py::arg("trained"));

  py::class_<StepOutcome>(module, "StepOutcome")
      .def_readonly("loss", &StepOutcome::loss)
      .def_readonly("grad_norm", &StepOutcome::grad_norm)
      .def_readonly("learning_rate", &StepOutcome::learning_rate)
      .def_readonly("loss_scale", &StepOutcome::loss_scale)
      .def_readonly("skipped", &StepOutcome::skipped)
      .def_readonly("warning", &StepOutcome::warning);
}

void define_run(py::module_& module) {
  py::class_<ModuleRun>(module, "Run")
      .def(py::init(&make_run), py::arg("config"), py::arg("units"), NoGil())
      .def(
          "initialise",
          [](ModuleRun& run, const py::function& values) {
            PythonValues from(values);
            Status done;
            {
              const py::gil_scoped_release no_gil;
              done = run.initialise(from.get());
            }
            from.raise();
            must_be(done);
          },
          py::arg("values"))
      .def("views", &ModuleRun::views)
      .def("acquire", &ModuleRun::acquire, NoGil())
      .def("release", &ModuleRun::release, NoGil())
      .def("prefetch", &ModuleRun::prefetch, NoGil())
      .def("expect", &ModuleRun::expect, NoGil())
      .def_property_readonly("most_acquired", &ModuleRun::most_acquired)
      .def(
          "add",
          [](ModuleRun& run, int unit, const std::vector<std::optional<at::Tensor>>& gradients,
             bool is_last) {
            std::vector<at::Tensor> defined;
            defined.reserve(gradients.size());
            for (const auto& gradient : gradients)
              defined.push_back(gradient.value_or(at::Tensor()));
            const py::gil_scoped_release no_gil;
            run.add(unit, defined, is_last);
          },
          py::arg("unit"), py::arg("gradients"), py::arg("is_last"))
      .def("begin_backward", &ModuleRun::begin_backward, NoGil())
      .def("end_micro_batch", &ModuleRun::end_micro_batch, NoGil())
      .def("abandon_step", &ModuleRun::abandon_step, NoGil())
      .def_property_readonly("micro_batches", &ModuleRun::micro_batches)
      .def_property_readonly("micro_batch", &ModuleRun::micro_batch)
      .def_property_readonly("is_complete", &ModuleRun::is_complete)
      .def_property_readonly("loss_scale", &ModuleRun::loss_scale)
      .def_property_readonly("learning_rate", &ModuleRun::learning_rate)
      .def_property_readonly("global_step",
                             [](const ModuleRun& run) { return run.train_state().global_step; })
      .def_property_readonly("applied_step",
                             [](const ModuleRun& run) { return run.train_state().applied_step; })
      .def_property_readonly("on_gpu", [](const ModuleRun& run) { return run.plan().cuda; })
      .def_property_readonly("memory", &memory_of)
      .def_property_readonly("notes", [](const ModuleRun& run) { return run.plan().notes; })
      .def_property_readonly("nvme_reads",
                             [](const ModuleRun& run) { return run.param_stats().reads; })
      .def("step", &ModuleRun::step, py::arg("losses"), NoGil())
      .def("drain", &ModuleRun::drain, NoGil())
      .def(
          "save",
          [](ModuleRun& run, const std::string& directory, const std::string& client) {
            return value_of(run.save(directory, client));
          },
          py::arg("directory"), py::arg("client"), NoGil())
      .def(
          "load",
          [](ModuleRun& run, const std::string& path, const py::function& accept) {
            std::exception_ptr raised;
            const auto ask = [&](const std::string& client) -> Status {
              const py::gil_scoped_acquire gil;
              try {
                accept(client);
                return {};
              } catch (...) {
                raised = std::current_exception();
                return Error(ErrorCode::kCancelled, "it was refused");
              }
            };
            std::optional<Result<std::string>> loaded;
            {
              const py::gil_scoped_release no_gil;
              loaded.emplace(run.load(path, ask));
            }
            if (raised) std::rethrow_exception(raised);
            return value_of(*std::move(loaded));
          },
          py::arg("path"), py::arg("accept"))
      .def(
          "save_weights",
          [](ModuleRun& run, const std::string& path, const std::string& dtype) {
            const DType type = dtype == "fp32"   ? DType::kF32
                               : dtype == "fp16" ? DType::kF16
                                                 : DType::kBF16;
            must_be(run.save_weights(path, type));
          },
          py::arg("path"), py::arg("dtype"), NoGil());
}

}  // namespace
}  // namespace sluice::engine

PYBIND11_MODULE(_core, module) {
  using namespace sluice::engine;  // NOLINT(google-build-using-namespace)
  module.doc() = "Sluice's engine, for the package sluice";
  module.attr("torch_version") = TORCH_VERSION;
  module.attr("version") = SLUICE_VERSION;
  static py::exception<TrainError> error(module, "Error", PyExc_RuntimeError);
  static py::exception<RefusedError> refused(module, "RefusedError", error.ptr());
  static py::exception<NonFiniteGradient> non_finite(module, "NonFiniteGradientError", error.ptr());
  for (const py::handle it : {py::handle(error), py::handle(refused), py::handle(non_finite)})
    py::setattr(it, "__module__", py::str("sluice"));
  py::register_exception_translator([](std::exception_ptr raised) {
    try {
      if (raised) std::rethrow_exception(std::move(raised));
    } catch (const RefusedError& it) {
      py::set_error(refused, it.what());
    } catch (const NonFiniteGradient& it) {
      py::set_error(non_finite, it.what());
    } catch (const TrainError& it) {
      py::set_error(error, it.what());
    }
  });
  define_values(module);
  define_run(module);
}
