// sluice._core: ModuleRun for Python. Only the package's own files (sluice/) use it.
//
// Calls that may wait release the GIL. Errors are sluice.Error, with the engine's sentence.
#include "python/native/bindings.h"
// The include above must come first.
#include <pybind11/functional.h>
#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>
#include <torch/version.h>
#include <unistd.h>

#include <array>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "engine/checkpoint/remove_checkpoint.h"
#include "engine/comm/rank_context.h"
#include "engine/config/report.h"
#include "engine/config/resolve.h"
#include "engine/module/module_run.h"
#include "engine/preflight/machine_facts.h"
#include "engine/run/stored_state.h"
#include "engine/step/train_error.h"
#include "python/native/family_bindings.h"
#include "python/native/python_errors.h"
#include "python/native/start.h"
#include "swap/sealed_json.h"
#include "swap/stream_hash.h"

namespace py = pybind11;

namespace sluice::engine {
namespace {

// For a forked process: makes exit() only flush that process's streams. The parent's exit handlers
// refer to threads that only the parent has; oneTBB's allocator would wait for a lock that one of
// them held.
void leave_exit_handlers_to_parent() {
  on_exit(
      [](int status, void*) {
        std::fflush(nullptr);
        _exit(status);
      },
      nullptr);
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

// Calls Python for the tensors of a unit, from any thread. An exception must not leave an
// executor's thread, so it is stored, and raised once the work has ended.
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

// A method of a run that excludes other threads' calls, because no two calls may change a run at
// once.
template <typename Returned, typename... Given>
auto alone(Returned (ModuleRun::*method)(Given...)) {
  return [method](ModuleRun& run, Given... given) -> Returned {
    const py::gil_scoped_release no_gil;
    const std::lock_guard lock(run.calls());
    return (run.*method)(std::forward<Given>(given)...);
  };
}

// Adds a span of the script's thread to the trace.
void add_span(ModuleRun& run, std::size_t phase, std::int64_t begin_ns, std::int64_t end_ns) {
  constexpr std::array kNames = {"forward", "backward", "update"};
  if (phase < kNames.size())
    run.trace().add({.track = TraceTrack::kCompute,
                     .name = kNames[phase],
                     .begin_ns = begin_ns,
                     .end_ns = end_ns});
}

void define_values(py::module_& module) {
  module.def(
      "strict_config",
      [](const std::string& name, const py::bytes& text) {
        return value_of(config::plain_json({.name = name, .text = std::string(text)}));
      },
      py::arg("name"), py::arg("text"));
  py::class_<ResolvedConfig>(module, "Config")
      .def(py::init(&resolve_config), py::arg("text"), py::arg("of_deepspeed"),
           py::arg("overrides") = std::vector<std::string>(), py::arg("world") = 1)
      .def_readonly("ignored", &ResolvedConfig::ignored)
      .def_property_readonly("warnings", &warnings_of)
      .def_property_readonly(
          "precision", [](const ResolvedConfig& it) { return precision_name(it.config.precision); })
      .def_property_readonly("uses_gpu",
                             [](const ResolvedConfig& it) { return uses_cuda(it.config); })
      .def_property_readonly("accumulation",
                             [](const ResolvedConfig& it) { return it.config.batch.accumulation; })
      .def_property_readonly("micro_batch",
                             [](const ResolvedConfig& it) { return it.config.batch.micro; })
      .def_property(
          "run_dir", [](const ResolvedConfig& it) { return it.config.run.dir; },
          [](ResolvedConfig& it, const std::string& dir) { it.config.run.dir = dir; })
      .def_readwrite("given_run_dir", &ResolvedConfig::given_run_dir)
      .def_readonly("steps_per_print", &ResolvedConfig::steps_per_print)
      .def_property_readonly("saves_in_background",
                             [](const ResolvedConfig& it) {
                               return it.config.run.checkpoint_background == Tristate::kOn;
                             })
      .def("json", [](const ResolvedConfig& it) { return config::to_json(it.config); });

  module.def("leave_exit_handlers_to_parent", &leave_exit_handlers_to_parent);
  module.def("free_ram_bytes", [] {
    config::Config config;
    config.run.device = config::Device::kCpu;  // avoids creating a context on a GPU
    return host_free(machine_facts(config));
  });
  module.def("check_trace", [](const std::string& steps) {
    static_cast<void>(value_of(TraceLog::parse_steps(steps)));
  });
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

  py::class_<swap::StreamHash>(module, "ValuesHash")  // of contiguous CPU tensors
      .def(py::init<>())
      .def(
          "add",
          [](swap::StreamHash& hash, const at::Tensor& values) {
            hash.add(
                std::span(static_cast<const std::byte*>(values.const_data_ptr()), values.nbytes()));
          },
          NoGil())
      .def_property_readonly(
          "value", [](const swap::StreamHash& hash) { return swap::to_hex(hash.value()); });
  py::class_<SavedCheckpoint>(module, "SavedCheckpoint")
      .def_readonly("step", &SavedCheckpoint::step)
      .def_readonly("path", &SavedCheckpoint::path)
      .def_readonly("bytes", &SavedCheckpoint::bytes)
      .def_property_readonly(
          "stopped_s",
          [](const SavedCheckpoint& it) { return 1e-9 * static_cast<double>(it.stopped_ns); })
      .def_property_readonly(
          "took_s",
          [](const SavedCheckpoint& it) { return 1e-9 * static_cast<double>(it.took_ns); })
      .def_readonly("removed", &SavedCheckpoint::removed)
      .def_property_readonly("error", [](const SavedCheckpoint& it) -> std::optional<std::string> {
        if (it.status.ok()) return std::nullopt;
        return it.status.error().message();
      });
}

void define_run(py::module_& module) {
  py::class_<RankContext>(module, "RankContext")
      .def_readonly("rank", &RankContext::rank)
      .def_readonly("world", &RankContext::world)
      .def_readonly("local_rank", &RankContext::local_rank)
      .def_readonly("local_world", &RankContext::local_world);
  module.def("read_launch", [](const std::map<std::string, std::string>& environment) {
    return value_of(read_launch(Environment(environment.begin(), environment.end()))).context;
  });
  py::class_<Ranks>(module, "Ranks")
      .def(py::init<const std::map<std::string, std::string>&>(), py::arg("environment"), NoGil())
      .def_property_readonly("rank", [](const Ranks& it) { return it.context().rank; })
      .def_property_readonly("world", [](const Ranks& it) { return it.context().world; })
      .def_property_readonly("local_rank", [](const Ranks& it) { return it.context().local_rank; })
      .def_property_readonly("local_world",
                             [](const Ranks& it) { return it.context().local_world; })
      .def("abort", &Ranks::abort, py::arg("reason"), NoGil())
      .def("failure", &Ranks::failure, NoGil())
      .def("all_gather", &Ranks::all_gather, py::arg("text"), NoGil())
      .def("broadcast", &Ranks::broadcast, py::arg("values"), NoGil())
      .def("send_receive", &Ranks::send_receive, py::arg("sent"), py::arg("to"),
           py::arg("received"), py::arg("from_"), NoGil())
      .def("part", &Ranks::part, py::arg("ranks"), py::keep_alive<0, 1>(), NoGil());

  py::class_<ModuleRun>(module, "Run")
      .def(py::init(&make_run), py::arg("config"), py::arg("units"), py::arg("ranks"),
           py::arg("speeds") = "", py::arg("unix_s") = 0, py::arg("checkpointed") = 0.0,
           py::arg("stages") = py::none(), py::keep_alive<1, 4>(), py::keep_alive<1, 8>(), NoGil())
      .def(py::init(&make_family_run), py::arg("config"), py::arg("family"), py::arg("ranks"),
           py::arg("cache_path"), py::arg("checkpointed") = 0.0, py::keep_alive<1, 4>(), NoGil())
      .def(
          "initialise",
          [](ModuleRun& run, const py::function& values) {
            PythonValues from(values);
            Status done;
            {
              const py::gil_scoped_release no_gil;
              const std::lock_guard lock(run.calls());
              done = run.initialise(from.get());
            }
            from.raise();
            must_be(done);
          },
          py::arg("values"))
      .def("views", &ModuleRun::views)
      .def("acquire", alone(&ModuleRun::acquire))
      .def("release", alone(&ModuleRun::release))
      .def("prefetch", alone(&ModuleRun::prefetch))
      .def("expect", alone(&ModuleRun::expect))
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
            const std::lock_guard lock(run.calls());
            run.add(unit, defined, is_last);
          },
          py::arg("unit"), py::arg("gradients"), py::arg("is_last"))
      .def("begin_backward", alone(&ModuleRun::begin_backward))
      .def("end_micro_batch", alone(&ModuleRun::end_micro_batch))
      .def("abandon_step", alone(&ModuleRun::abandon_step))
      .def("fail", alone(&ModuleRun::fail), py::arg("reason"))
      .def_property_readonly("micro_batches", &ModuleRun::micro_batches)
      .def_property_readonly("micro_batch", &ModuleRun::micro_batch)
      .def_property_readonly("micro_batches_of_a_lane", &ModuleRun::micro_batches_of_a_lane)
      .def("number_in_step", &ModuleRun::number_in_step, py::arg("micro_batch"))
      .def_property_readonly("is_complete", &ModuleRun::is_complete)
      .def_property_readonly("loss_scale", &ModuleRun::loss_scale)
      .def_property_readonly("learning_rate", &ModuleRun::learning_rate)
      .def_property_readonly("global_step",
                             [](const ModuleRun& run) { return run.train_state().global_step; })
      .def_property_readonly("applied_step",
                             [](const ModuleRun& run) { return run.train_state().applied_step; })
      .def_property_readonly("keeping_costs", &ModuleRun::keeping_costs)
      .def_property_readonly("on_gpu", [](const ModuleRun& run) { return run.plan().cuda; })
      .def_property_readonly("memory", &memory_of)
      .def_property_readonly("notes", [](const ModuleRun& run) { return run.plan().notes; })
      .def_property_readonly("nvme_reads",
                             [](const ModuleRun& run) { return run.param_stats().reads; })
      .def("step", alone(&ModuleRun::step), py::arg("losses"))
      .def("expect_several_passes", alone(&ModuleRun::expect_several_passes))
      .def_property_readonly("can_have_several_passes", &ModuleRun::can_have_several_passes)
      .def_property_readonly("has_several_passes", &ModuleRun::has_several_passes)
      .def("drain", alone(&ModuleRun::drain))
      .def(
          "change",
          [](ModuleRun& run,
             const std::vector<std::tuple<int, int, at::Tensor, at::Tensor>>& changes) {
            std::vector<ModuleRun::NewValues> values;
            values.reserve(changes.size());
            for (const auto& [unit, parameter, now, before] : changes)
              values.push_back(
                  {.unit = unit, .parameter = parameter, .values = now, .before = before});
            const std::lock_guard lock(run.calls());
            must_be(run.change(values));
          },
          py::arg("changes"), NoGil())
      .def(
          "save",
          [](ModuleRun& run, const std::string& directory, const std::string& client,
             bool background, std::optional<double> loss, bool within_step) {
            const std::lock_guard lock(run.calls());
            return value_of(run.save({directory, client, background, loss, within_step}));
          },
          py::arg("directory"), py::arg("client"), py::arg("background") = false,
          py::arg("loss") = py::none(), py::arg("within_step") = false, NoGil())
      .def(
          "own_directory",
          [](ModuleRun& run, const std::string& directory) {
            const std::lock_guard lock(run.calls());
            must_be(run.own_directory(directory));
          },
          NoGil())
      .def("start_trace",
           [](ModuleRun& run, const std::string& steps) {
             const TraceLog::Options options = value_of(TraceLog::parse_steps(steps));
             run.trace().start(options);
             return options.last_step;
           })
      .def("begin_traced_step", [](ModuleRun& run, std::int64_t step,
                                   std::int64_t now_ns) { run.trace().begin_step(step, now_ns); })
      .def("add_span", &add_span)
      .def("wait_for_saves", alone(&ModuleRun::wait_for_saves))
      .def("finished_saves", alone(&ModuleRun::finished_saves))
      .def(
          "remove_checkpoint",
          [](ModuleRun& run, const std::string& path) {
            const std::lock_guard lock(run.calls());
            must_be(remove_checkpoint(run.file_queue(), path));
          },
          NoGil())
      .def_property_readonly("predicted_step_s", &ModuleRun::predicted_step_s)
      .def_property_readonly("assumptions", &ModuleRun::assumptions)
      .def(
          "load",
          [](ModuleRun& run, const std::vector<std::string>& paths, const py::function& accept) {
            std::exception_ptr raised;
            const auto ask = [&](const std::vector<std::string>& clients) -> Status {
              const py::gil_scoped_acquire gil;
              try {
                accept(clients);
                return {};
              } catch (...) {
                raised = std::current_exception();
                return Error(ErrorCode::kCancelled, "it was refused");
              }
            };
            std::optional<Result<std::string>> loaded;
            {
              const py::gil_scoped_release no_gil;
              const std::lock_guard lock(run.calls());
              loaded.emplace(run.load_parts(paths, ask));
            }
            if (raised) std::rethrow_exception(raised);
            return value_of(*std::move(loaded));
          },
          py::arg("paths"), py::arg("accept"))
      .def(
          "save_weights",
          [](ModuleRun& run, const std::string& path, const std::string& dtype) {
            const DType type = dtype == "fp32"   ? DType::kF32
                               : dtype == "fp16" ? DType::kF16
                                                 : DType::kBF16;
            const std::lock_guard lock(run.calls());
            must_be(run.save_weights(path, type));
          },
          py::arg("path"), py::arg("dtype"), NoGil());
}

}  // namespace

void define_errors(py::module_& module) {
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
}

void define_module_runs(py::module_& module) {
  define_values(module);
  define_family(module);
  define_run(module);
  define_spill(module);
  define_family_pass(module);
}

}  // namespace sluice::engine
