#include "python/native/start.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <span>
#include <string_view>

#include "aio/machine_info.h"
#include "engine/config/report.h"
#include "engine/config/schedule_outlook.h"
#include "engine/device/gpu.h"
#include "engine/preflight/leftovers.h"
#include "engine/run/config_facts.h"
#include "python/native/python_errors.h"

namespace sluice::engine {
namespace {

// Whether the script decides this itself: keys with these prefixes are ignored here.
bool is_the_scripts(std::string_view key) {
  constexpr std::array kBeginnings = {"model.",
                                      "data.",
                                      "run.eval_",
                                      "run.checkpoint_every",
                                      "run.checkpoint_minutes",
                                      "run.checkpoint_at_end",
                                      "run.epochs",
                                      "run.resume",
                                      "run.later_checkpoints",
                                      "run.hash_units",
                                      "wall_clock_breakdown",
                                      "flops_profiler.",
                                      "placement.wave_",
                                      "placement.recompute",
                                      "placement.unit_inputs_"};
  if (key == "data.sequence_length") return false;  // used by the planner
  return std::any_of(kBeginnings.begin(), kBeginnings.end(),
                     [key](std::string_view it) { return key.starts_with(it); });
}

// Worker threads on all ranks of this host, whose number changes no bit; 0: as many as compute.
int workers_of(const ResolvedConfig& config) {
  return config.has_threads ? 0 : static_cast<int>(std::ceil(aio::usable_cores()));
}

template <typename T>
T made_by_all(Result<T> made, const Ranks& ranks) {
  if (!made.ok()) ranks.abort(made.error().message());
  return value_of(std::move(made));
}

// Called before a run is planned.
void prepare_by_all(const config::Config& config, const Ranks& ranks) {
  Status ready = check_device(config);
  if (ready.ok()) ready = clear_leftovers(config, ranks.link());
  if (!ready.ok()) ranks.abort(ready.error().message());
  must_be(ready);
}

ModuleRun::Environment environment_of(const ResolvedConfig& config, const Ranks& ranks) {
  ModuleRun::Environment environment;
  environment.link = &ranks.link();
  environment.workers = workers_of(config);
  return environment;
}

}  // namespace

ResolvedConfig resolve_config(const std::string& text, bool of_deepspeed,
                              const std::vector<std::string>& overrides, int world) {
  config::Sources sources;
  sources.world_size = world;
  const config::Source source{"the configuration", text};
  (of_deepspeed ? sources.deepspeed : sources.run_file) = source;
  sources.overrides = overrides;
  config::Resolved resolved = value_of(config::resolve(sources));
  if (resolved.missing_facts.gpu) {
    sources.facts.gpu = gpu_kind(resolved.config);
    resolved = value_of(config::resolve(sources));
  }
  ResolvedConfig made{.config = resolved.config};
  // The CPU threads are LibTorch's, whose number this process has already set.
  made.has_threads = made.config.run.cpu_threads > 0;
  if (!made.has_threads) made.config.run.cpu_threads = at::get_num_threads();
  for (const config::KeyReport& report : resolved.reports) {
    made.asks_length |= report.given && report.path == "data.sequence_length";
    if (report.given && (report.path == "steps_per_print" || report.path == "run.log_every"))
      made.steps_per_print = resolved.config.run.log_every_steps;
    if (report.outcome == config::Outcome::kIgnored)
      made.ignored.emplace_back(report.path, report.reason);
    else if (report.given && is_the_scripts(report.path))
      made.ignored.emplace_back(report.path, "a script decides that itself");
  }
  made.resolved = std::move(resolved);
  return made;
}

std::vector<std::string> warnings_of(const ResolvedConfig& config) {
  std::vector<std::string> texts{config::renamed_keys(config.resolved),
                                 config::unused_keys(config.resolved),
                                 config::decay_before_warmup(config.config.schedule)};
  std::erase(texts, std::string());
  return texts;
}

Ranks::Ranks(const std::map<std::string, std::string>& environment) {
  const Launch launch = value_of(read_launch(Environment(environment.begin(), environment.end())));
  context_ = launch.context;
  link_ = value_of(meet_ranks(launch));
}

void Ranks::abort(const std::string& reason) const { link_->abort(reason); }

std::string Ranks::failure() const {
  const Status health = link_->health();
  return health.ok() ? std::string() : health.error().message();
}

std::vector<std::string> Ranks::all_gather(const std::string& text) const {
  return value_of(link_->all_gather_text(text));
}

void Ranks::broadcast(const at::Tensor& values) const {
  TORCH_CHECK(values.device().is_cpu() && values.is_contiguous());
  must_be(link_->broadcast(std::span(static_cast<std::byte*>(values.data_ptr()),
                                     static_cast<std::size_t>(values.nbytes())),
                           /*root=*/0));
}

void Ranks::send_receive(const std::optional<at::Tensor>& sent, int to,
                         const std::optional<at::Tensor>& received, int from) const {
  Messages messages;
  if (sent) {
    TORCH_CHECK(sent->device().is_cpu() && sent->is_contiguous());
    messages.sent = std::span(static_cast<const std::byte*>(sent->const_data_ptr()),
                              static_cast<std::size_t>(sent->nbytes()));
    messages.to = to;
  }
  if (received) {
    TORCH_CHECK(received->device().is_cpu() && received->is_contiguous());
    messages.received = std::span(static_cast<std::byte*>(received->data_ptr()),
                                  static_cast<std::size_t>(received->nbytes()));
    messages.from = from;
  }
  must_be(link_->send_receive(messages));
}

std::unique_ptr<Ranks> Ranks::part(const std::vector<int>& ranks) const {
  auto link = value_of(link_->part(ranks));
  RankContext context = context_;
  context.rank = link->rank();
  context.world = link->world_size();
  context.local_world = link->world_size(ProcessGroup::kNode);
  return std::unique_ptr<Ranks>(new Ranks(context, std::move(link)));
}

Ranks::Ranks(const RankContext& context, std::unique_ptr<Communicator> link)
    : context_(context), link_(std::move(link)) {}

ModuleLayout layout_of(const std::vector<PythonUnit>& described) {
  std::vector<ModuleUnit> units;
  units.reserve(described.size());
  for (const PythonUnit& unit : described)
    units.push_back({.name = unit.first, .parameters = unit.second});
  return value_of(ModuleLayout::create(std::move(units)));
}

std::unique_ptr<ModuleRun> make_family_run(const ResolvedConfig& asked, const FamilyModel& family,
                                           const Ranks& ranks, const std::string& cache_path,
                                           double checkpointed) {
  at::set_num_threads(static_cast<int>(asked.config.run.cpu_threads));
  prepare_by_all(asked.config, ranks);
  const FamilyModel::Asked what{.length = asked.asks_length,
                                .checkpoints = checkpointed > 0,
                                .on_gpu = uses_cuda(asked.config)};
  const config::Config config = family.configured(asked.config, what);
  ModulePlacement places =
      made_by_all(family.places(config, what, ranks.link(), cache_path), ranks);
  ModuleRun::Environment environment = environment_of(asked, ranks);
  environment.plan.places = std::move(places);
  return made_by_all(ModuleRun::create(config, family.layout(config), environment), ranks);
}

std::unique_ptr<ModuleRun> make_run(const ResolvedConfig& config,
                                    const std::vector<PythonUnit>& described, const Ranks& ranks,
                                    const std::string& speeds, std::int64_t unix_s,
                                    double checkpointed, const Ranks* stages) {
  at::set_num_threads(static_cast<int>(config.config.run.cpu_threads));
  prepare_by_all(config.config, ranks);
  ModuleRun::Environment environment = environment_of(config, ranks);
  if (stages != nullptr) {
    environment.stages = &stages->link();
    const int here = stages->link().world_size(ProcessGroup::kNode);
    environment.workers = environment.workers > 0 ? std::max(environment.workers / here, 1) : 0;
  }
  environment.plan.checkpointed = checkpointed;
  environment.plan.asked.cache_path = speeds;
  environment.plan.asked.unix_s = unix_s;
  return made_by_all(ModuleRun::create(config.config, layout_of(described), environment), ranks);
}

}  // namespace sluice::engine
