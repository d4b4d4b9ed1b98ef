#include "python/native/tool_bindings.h"
// The include above must come first.
#include <pybind11/stl.h>

#include <cmath>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "aio/unix_time.h"
#include "engine/module/family_model.h"
#include "engine/module/module_plan.h"
#include "engine/observe/metrics_log.h"
#include "engine/plan/report/plan_report.h"
#include "engine/preflight/leftovers.h"
#include "engine/preflight/preflight.h"
#include "engine/probe/machine_probe.h"
#include "tools/session/plan_here.h"
#include "tools/session/speeds_path.h"

namespace py = pybind11;

namespace sluice::tools {

ConfigOptions config_options(const std::string& file, const std::string& text,
                             const std::string& deepspeed,
                             const std::vector<std::string>& overrides) {
  ConfigOptions options{.file = file, .deepspeed = deepspeed, .overrides = overrides};
  if (!text.empty()) options.text = text;
  return options;
}

namespace {

using engine::value_of;

// A plan in the form for Python.
struct PlanTexts {
  bool fits = false;
  std::string text;    // as printed by `sluice plan`
  std::string json;    // as printed by `sluice plan --json`
  std::string reason;  // why it does not fit
  std::vector<std::string> warnings;
  std::vector<std::string> assumptions;  // of a module's plan
};

PlanTexts texts_of(const config::Config& config, const engine::RunPlan& plan,
                   const engine::ClusterShape& cluster) {
  PlanTexts made{.fits = plan.placement.fits,
                 .text = engine::format_plan(config, plan, cluster),
                 .json = engine::plan_json(config, plan, cluster)};
  if (!made.fits) made.reason = engine::does_not_fit(config, plan);
  const std::string busy = engine::busy_warning(plan.machine);
  if (!busy.empty()) made.warnings.push_back(busy);
  return made;
}

void set_described(const std::string& name, double value, engine::DescribedMachine& machine) {
  const std::vector<std::pair<const char*, std::optional<double>*>> known = {
      {"gpu_gib", &machine.gpu_gib},
      {"cpu_gib", &machine.cpu_gib},
      {"nvme_gib", &machine.nvme_gib},
      {"bus_gb_per_s", &machine.bus_gb_per_s},
      {"tflops", &machine.tflops},
      {"gpu_memory_gb_per_s", &machine.gpu_memory_gb_per_s},
      {"ram_gb_per_s", &machine.ram_gb_per_s},
      {"drive_read_gb_per_s", &machine.drive_read_gb_per_s},
      {"drive_write_gb_per_s", &machine.drive_write_gb_per_s},
      {"link_gb_per_s", &machine.link_gb_per_s},
      {"network_gb_per_s", &machine.network_gb_per_s},
      {"link_latency_us", &machine.link_latency_us}};
  std::string names;
  for (const auto& [key, member] : known) {
    if (name == key) {
      if (!(value > 0) || !std::isfinite(value))
        throw engine::RefusedError("machine: " + name + " must be above 0");
      *member = value;
      return;
    }
    names += (names.empty() ? "" : ", ") + std::string(key);
  }
  throw engine::RefusedError("machine has no " + name + "; possible are " + names);
}

using Machine = std::map<std::string, double>;

engine::DescribedMachine machine_of(const Machine& described) {
  engine::DescribedMachine machine;
  for (const auto& [name, value] : described) set_described(name, value, machine);
  return machine;
}

offload::Topology ranks_of(std::uint64_t gpus, std::uint64_t hosts) {
  return {.world = static_cast<int>(gpus * hosts), .local_world = static_cast<int>(gpus)};
}

// Adds warnings about budgets of parts that are not described, and about leftovers of killed runs,
// if the plan uses drives or does not fit.
void add_warnings(const config::Config& config, const engine::DescribedMachine& machine,
                  const engine::RunPlan& plan, const std::string& note, PlanTexts& texts) {
  config::Budget budget = config.budget;
  if (machine.cpu_gib) budget.cpu_gib.reset();
  if (machine.describes_gpu()) budget.gpu_gib.reset();
  for (const std::string& warning : engine::budget_warnings(budget, plan.facts))
    texts.warnings.push_back(warning);
  if (!note.empty() && (plan.memory.nvme_bytes() > 0 || !texts.fits))
    texts.warnings.push_back(note);
}

// Adds the note to an error, because the drive may have been too full to be measured.
engine::RunPlan value_or_note(Result<engine::RunPlan> plan, const std::string& note) {
  if (!plan.ok() && !note.empty())
    return value_of(Result<engine::RunPlan>(std::move(plan).error().with_suffix("; " + note)));
  return value_of(std::move(plan));
}

PlanTexts plan(const ConfigOptions& given, const Machine& described, std::uint64_t gpus,
               std::uint64_t hosts, bool refresh) {
  ConfigOptions options = given;
  const offload::Topology ranks = ranks_of(gpus, hosts);
  options.world_size = ranks.world;
  const engine::DescribedMachine machine = machine_of(described);
  const config::Resolved resolved = value_of(resolve(options));
  const std::string note = engine::leftovers_note(resolved.config);
  const engine::RunPlan made =
      value_or_note(plan_here(resolved.config, {.machine = machine,
                                                .refresh = refresh,
                                                .with_what_ifs = true,
                                                .with_growth = true,
                                                .with_longest_sequence = true,
                                                .ranks = ranks}),
                    note);
  PlanTexts texts = texts_of(resolved.config, made, {.gpus_per_node = gpus, .nodes = hosts});
  add_warnings(resolved.config, machine, made, note, texts);
  return texts;
}

PlanTexts plan_module(const engine::ResolvedConfig& config,
                      const std::vector<engine::PythonUnit>& units, const Machine& described,
                      std::uint64_t gpus, std::uint64_t hosts, bool refresh, double checkpointed) {
  config::Config named = config.config;
  named.model.family = "module";
  const engine::DescribedMachine machine = machine_of(described);
  const engine::ModuleLayout layout = engine::layout_of(units);
  const std::string note = engine::leftovers_note(named);
  std::vector<std::string> assumptions;
  const engine::RunPlan made =
      value_or_note(engine::plan_run_of_module(named, layout,
                                               {.checkpointed = checkpointed,
                                                .asked = {.cache_path = speeds_path(),
                                                          .refresh = refresh,
                                                          .unix_s = unix_s_now(),
                                                          .machine = machine,
                                                          .ranks = ranks_of(gpus, hosts)}},
                                               assumptions),
                    note);
  PlanTexts texts = texts_of(named, made, {.gpus_per_node = gpus, .nodes = hosts});
  add_warnings(named, machine, made, note, texts);
  if (!texts.fits) texts.reason += engine::smaller_units_hint(layout);
  texts.assumptions = std::move(assumptions);
  return texts;
}

PlanTexts plan_family(const engine::ResolvedConfig& config, const engine::FamilyModel& family,
                      const Machine& described, std::uint64_t gpus, std::uint64_t hosts,
                      bool refresh, double checkpointed) {
  const engine::DescribedMachine machine = machine_of(described);
  const engine::FamilyModel::Asked asked{
      .length = config.asks_length,
      .checkpoints = checkpointed > 0,
      .on_gpu = machine.describes_gpu() || engine::uses_cuda(config.config)};
  const config::Config named = family.configured(config.config, asked);
  const std::string note = engine::leftovers_note(named);
  std::vector<std::string> assumptions;
  const engine::RunPlan made = value_or_note(family.plan(named, asked,
                                                         {.cache_path = speeds_path(),
                                                          .refresh = refresh,
                                                          .unix_s = unix_s_now(),
                                                          .machine = machine,
                                                          .with_what_ifs = true,
                                                          .ranks = ranks_of(gpus, hosts)},
                                                         assumptions),
                                             note);
  PlanTexts texts = texts_of(named, made, {.gpus_per_node = gpus, .nodes = hosts});
  add_warnings(named, machine, made, note, texts);
  texts.assumptions = std::move(assumptions);
  return texts;
}

struct ProbeTexts {
  std::string text;
  std::string json;
  std::string warning;
};

ProbeTexts probe(const ConfigOptions& options, bool is_given, bool refresh) {
  config::Resolved resolved;
  if (is_given) {
    resolved = value_of(resolve(options));
  } else {
    resolved = value_of(resolve_for_probe(options));
  }
  const std::int64_t now = unix_s_now();
  const engine::ProbeReport report = value_of(engine::probe_machine(
      resolved.config, {.cache_path = speeds_path(), .refresh = refresh, .unix_s = now}));
  return {engine::format_report(report, now), engine::to_json(report),
          engine::busy_warning(report)};
}

template <typename T>
py::object value_for_python(const T& value) {
  return py::cast(value);
}
template <typename T>
py::object value_for_python(const std::optional<T>& value) {
  return value ? py::cast(*value) : py::none();
}
template <typename T>
py::object value_for_python(const std::vector<T>& all) {
  return all.empty() ? py::none() : py::cast(all);
}
py::object value_for_python(const std::vector<engine::UnitHashes>& all) {
  if (all.empty()) return py::none();
  py::dict hashes;
  for (const engine::UnitHashes& it : all)
    hashes[py::str(it.unit)] = py::make_tuple(it.gradient, it.parameters);
  return hashes;
}

}  // namespace

py::dict metrics_dict(const engine::StepMetrics& metrics) {
  py::dict dict;
  engine::for_each_metric(
      metrics, [&](const char* name, const auto& value) { dict[name] = value_for_python(value); });
  return dict;
}

void define_plans(py::module_& module) {
  py::class_<ConfigOptions>(module, "ConfigOptions")
      .def(py::init(&config_options), py::arg("file"), py::arg("text"), py::arg("deepspeed"),
           py::arg("overrides"));
  py::class_<PlanTexts>(module, "PlanTexts")
      .def_readonly("fits", &PlanTexts::fits)
      .def_readonly("text", &PlanTexts::text)
      .def_readonly("json", &PlanTexts::json)
      .def_readonly("reason", &PlanTexts::reason)
      .def_readonly("warnings", &PlanTexts::warnings)
      .def_readonly("assumptions", &PlanTexts::assumptions);
  py::class_<ProbeTexts>(module, "ProbeTexts")
      .def_readonly("text", &ProbeTexts::text)
      .def_readonly("json", &ProbeTexts::json)
      .def_readonly("warning", &ProbeTexts::warning);
  module.def("plan", &plan, py::arg("config"), py::arg("machine"), py::arg("gpus"),
             py::arg("hosts"), py::arg("refresh"), engine::NoGil());
  module.def("plan_module", &plan_module, py::arg("config"), py::arg("units"), py::arg("machine"),
             py::arg("gpus"), py::arg("hosts"), py::arg("refresh"), py::arg("checkpointed"),
             engine::NoGil());
  module.def("plan_family", &plan_family, py::arg("config"), py::arg("family"), py::arg("machine"),
             py::arg("gpus"), py::arg("hosts"), py::arg("refresh"), py::arg("checkpointed"),
             engine::NoGil());
  module.def("probe", &probe, py::arg("config"), py::arg("is_given"), py::arg("refresh"),
             engine::NoGil());
  module.def("speeds_path", &speeds_path);
  module.def("read_metrics", [](const std::string& path) {
    std::vector<engine::StepMetrics> all;
    {
      const py::gil_scoped_release no_gil;
      all = value_of(engine::read_metrics(path));
    }
    py::list list;
    for (const engine::StepMetrics& metrics : all) list.append(metrics_dict(metrics));
    return list;
  });
}

}  // namespace sluice::tools
