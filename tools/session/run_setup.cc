#include "tools/session/run_setup.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <iostream>
#include <utility>
#include <vector>

#include "aio/clock.h"
#include "aio/log.h"
#include "aio/machine_info.h"
#include "aio/real_file_system.h"
#include "aio/terminal_line.h"
#include "aio/text.h"
#include "aio/units.h"
#include "engine/budget/configured_model.h"
#include "engine/budget/save_plan.h"
#include "engine/device/gpu.h"
#include "engine/device/host.h"
#include "engine/families/families.h"
#include "engine/observe/text_table.h"
#include "engine/plan/plan_subject.h"
#include "engine/plan/report/plan_report.h"
#include "engine/plan/shared_placement.h"
#include "engine/preflight/host_shares.h"
#include "engine/preflight/leftovers.h"
#include "engine/preflight/nvme_folders.h"
#include "engine/preflight/preflight.h"
#include "engine/preflight/shared_file_systems.h"
#include "engine/probe/machine_probe.h"
#include "engine/run/run_checkpoints.h"
#include "engine/run/saved_run.h"
#include "engine/run/state_image.h"
#include "engine/run/stored_state.h"
#include "tools/session/plan_here.h"

namespace sluice::tools {

std::vector<TierUsage> tiers_of(const engine::MemoryPlan& plan, const TierCapacities& rooms) {
  std::vector<TierUsage> tiers;
  const auto add = [&](const char* tier, const std::vector<engine::MemoryLine>& lines,
                       std::uint64_t bytes, const std::optional<std::uint64_t>& budget_bytes) {
    if (bytes > 0) tiers.push_back({tier, lines, bytes, budget_bytes});
  };
  add("gpu", plan.gpu, plan.gpu_bytes(), rooms.gpu_bytes);
  add("cpu", plan.host, plan.host_bytes(), rooms.host_bytes);
  add("nvme", plan.nvme, plan.nvme_bytes(), rooms.nvme_bytes);
  return tiers;
}

namespace {

// The bytes that a save writes to the run's folder.
std::uint64_t checkpoint_bytes(const engine::ModelLayout& model, const engine::MemoryPlan& plan) {
  std::uint64_t elements = model.trained_elements();
  if (engine::saves_in_place(plan)) {
    elements = 0;
    for (const offload::SubGroup& it : plan.state.optimizer.placement)
      if (it.tier != offload::Tier::kNvme) elements += it.elements;
  }
  return engine::StateImage::bytes_for(elements, engine::stored_moments(plan.types));
}

// The run continues in the store of its checkpoint, whose space is taken already.
Status adopt_store(const engine::StoredRecords& records, engine::MemoryPlan& plan) {
  offload::OptimizerOffloader::Options& optimizer = plan.state.optimizer;
  if (optimizer.store.paths != records.store.paths)
    return Error(ErrorCode::kInvalidArgument,
                 "the run's state is in its store on " + joined(records.store.paths, " and ") +
                     ", and the configuration has it on " + joined(optimizer.store.paths, " and ") +
                     "; sluice copy makes a checkpoint of files, which any drives resume");
  optimizer.adopt = records.store;
  for (engine::MemoryLine& line : plan.nvme)
    if (line.use == engine::MemoryUse::kState) line.paths.clear();
  return {};
}

// Saves in the background need a copy of the state. It is planned if requested, or if there is room
// for it on every rank. Collective.
Status plan_checkpoint_copy(const config::Config& config, const engine::ModelLayout& model,
                            const engine::MachineFacts& facts, engine::Communicator& link,
                            PlannedRun& planned) {
  engine::MemoryPlan& plan = planned.memory;
  const config::Run& run = config.run;
  if (plan.purpose != engine::RunPurpose::kTraining || engine::saves_in_place(plan) ||
      run.checkpoint_background == Tristate::kOff ||
      (run.checkpoint_every_steps == 0 && run.checkpoint_minutes.value_or(0) == 0 &&
       !run.checkpoint_at_end && !run.keep_best))
    return {};
  const std::uint64_t bytes =
      engine::RunCheckpoints::image_bytes(model, engine::stored_moments(plan.types), plan.ranks);
  const auto room = engine::host_room(config.budget, facts);
  std::int64_t fitting = room && plan.host_bytes() + bytes <= *room ? 1 : 0;
  SLUICE_RETURN_IF_ERROR(link.sum(std::span(&fitting, 1)));
  const bool fits = fitting == link.world_size();
  const bool wants_on_the_way =
      run.checkpoint_every_steps > 0 || run.checkpoint_minutes.value_or(0) > 0 || run.keep_best;
  planned.saves.background =
      run.checkpoint_background == Tristate::kOn || (wants_on_the_way && fits);
  if (planned.saves.background)
    plan.host.push_back(
        {"checkpoint, copy of the state", engine::MemoryUse::kCheckpointCopy, bytes});
  return {};
}

std::string folder_of(const std::string& file) {
  const std::string folder = std::filesystem::path(file).parent_path().string();
  return folder.empty() ? "." : folder;
}

// The write speed of the folder's drive, if the folder exists and the plan has measured that drive.
std::optional<double> save_speed(const std::string& folder, const engine::ProbeReport& machine) {
  const std::string device = engine::device_number_of(folder);
  for (const engine::ProbedPath& drive : machine.paths)
    if (drive.rates.out_bytes_per_s > 0 && !device.empty() &&
        device == engine::device_number_of(drive.path))
      return drive.rates.out_bytes_per_s;
  return {};
}

// When the run saves; reported before its memory is taken.
engine::SavePlan saves_of(const config::Config& config,
                          const std::optional<engine::CheckpointEntry>& from, const RunFiles& files,
                          const PlannedRun& plan, std::ostream& notices) {
  if (config.run.dir.empty()) return {};
  const engine::ModelLayout model = engine::configured_layout(config, plan.memory.cuda);
  constexpr std::uint64_t kMetricsBytesAStep = 800;
  constexpr std::uint64_t kHashBytes = 64;  // per unit
  const std::int64_t first_step = from ? from->step + 1 : 1;
  const auto steps =
      static_cast<std::uint64_t>(std::max<std::int64_t>(config.run.steps - first_step + 1, 0));
  std::vector<engine::PathBytes> others = plan.memory.nvme_paths();
  others.push_back(
      {config.run.dir,
       steps *
           (kMetricsBytesAStep +
            (config.run.hash_units ? kHashBytes * static_cast<std::uint64_t>(model.units()) : 0))});
  if (!files.weights.empty()) {
    others.push_back({folder_of(files.weights),
                      model.trained_elements() * engine::element_bytes(files.weight_dtype)});
  }
  aio::RealFileSystem file_system;
  const engine::SharedRoom room =
      engine::room_beside(file_system, config.run.dir, others, engine::device_number_of);
  engine::SavePlan saves = engine::plan_saves(
      config.run, {.folder = config.run.dir,
                   .checkpoint_bytes = checkpoint_bytes(model, plan.memory),
                   .free_bytes = room.free_bytes,
                   .other_bytes = room.other_bytes,
                   .complete_checkpoints = files.complete_checkpoints,
                   .first_step = first_step,
                   .step_s = plan.step ? std::optional(plan.step->step_s) : std::nullopt,
                   .save_bytes_per_s =
                       plan.step ? save_speed(config.run.dir, plan.step->machine) : std::nullopt,
                   .in_place = engine::saves_in_place(plan.memory)});
  saves.background = plan.saves.background;
  if (saves.warning) log::warning(*saves.warning);
  notices << saves.schedule << "\n";
  if (saves.saves()) notices << engine::stop_sentence(saves.stop) << "\n";
  return saves;
}

// Whether a run is worth the seconds of a probe: if something is left to the planner, if a GPU
// computes, or if what is written per day is limited.
bool is_planned(const config::Config& config) {
  return engine::uses_cuda(config) || config.budget.nvme_tb_per_day ||
         config.zero.offload_param.device == config::OffloadDevice::kAuto ||
         (config.zero.offload_optimizer.device == config::OffloadDevice::kAuto &&
          !config.placement.optimizer_fractions);
}

// For the first rank, or the only one.
Result<engine::RunPlan> fitting_plan(const config::Config& config,
                                     const std::optional<engine::MeasuredLink>& link,
                                     const SetUpOptions& options) {
  SLUICE_ASSIGN_OR_RETURN(engine::RunPlan plan,
                          plan_here(config, {.machine = {},
                                             .with_what_ifs = options.with_what_ifs,
                                             .of_a_series = options.of_a_series,
                                             .ranks = options.link->topology(),
                                             .link = link}));
  if (!plan.placement.fits) {
    for (const std::string& warning : engine::budget_warnings(config.budget, plan.facts))
      log::warning(warning);
    *options.notices << engine::memory_table(plan);
    return Error(ErrorCode::kOutOfMemory, engine::does_not_fit(config, plan));
  }
  *options.notices << engine::plan_summary(plan) << "\n";
  const std::string wear = engine::wear_warning(config, plan);
  if (!wear.empty()) log::warning(wear);
  return plan;
}

Result<PlannedRun> literal_memory(const config::Config& config, const engine::ModelLayout& model,
                                  const engine::PlanOptions& options) {
  SLUICE_ASSIGN_OR_RETURN(engine::MemoryPlan memory, engine::plan_memory(config, model, options));
  return PlannedRun{.memory = std::move(memory)};
}

// The first rank's plan, whose placement the other ranks adopt.
Result<PlannedRun> planned_memory(const config::Config& config, const engine::ModelLayout& model,
                                  const offload::RankPart& ranks, const SetUpOptions& options) {
  SLUICE_ASSIGN_OR_RETURN(
      const engine::FirstRankPlan of_first,
      engine::first_rank_plan(*options.link, config, link_probe_here(),
                              [&](const std::optional<engine::MeasuredLink>& link) {
                                return fitting_plan(config, link, options);
                              }));
  if (of_first.plan) {
    const engine::RunPlan& plan = *of_first.plan;
    return PlannedRun{.memory = plan.memory,
                      .placement = of_first.places.to_text(),
                      .rooms = {.nvme_bytes = plan.input.budget.nvme},
                      .step = PlannedStep{.step_s = plan.placement.prediction.step_s,
                                          .machine = plan.machine,
                                          .prediction = engine::prediction_json(plan),
                                          .what_if = engine::what_if_json(plan)}};
  }
  SLUICE_ASSIGN_OR_RETURN(const auto of_rank,
                          of_first.places.options(model, ranks, engine::uses_cuda(config)));
  return literal_memory(config, model, of_rank);
}

// The placement of the run that continues in the store of its checkpoint.
Result<PlannedRun> adopted_memory(const config::Config& config, const engine::ModelLayout& model,
                                  const engine::PlanOptions& literal,
                                  const engine::StoredRecords& records,
                                  const SetUpOptions& options) {
  engine::PlanOptions as_before = literal;
  if (!records.placement.empty()) {
    SLUICE_ASSIGN_OR_RETURN(const auto placement,
                            engine::SharedPlacement::parse(records.placement));
    SLUICE_ASSIGN_OR_RETURN(as_before, placement.options(model, literal.ranks, literal.on_gpu));
  }
  SLUICE_ASSIGN_OR_RETURN(PlannedRun planned, literal_memory(config, model, as_before));
  if (!engine::saves_in_place(planned.memory)) return planned;  // the state leaves the store
  *options.notices << "the run keeps its placement, because it continues in the store of its "
                      "checkpoint (run.checkpoint_in_place)\n";
  SLUICE_RETURN_IF_ERROR(adopt_store(records, planned.memory));
  planned.placement = records.placement;
  return planned;
}

// ", 3.3B active"; empty: all parameters compute each token.
std::string active_share(const engine::ModelLayout& model) {
  const std::uint64_t active = model.active_elements();
  if (active == model.parameter_elements()) return {};
  return ", " + engine::compact(static_cast<double>(active)) + " active";
}

// ", and 44.0M in adapters"; empty: all parameters are trained.
std::string trained_share(const engine::ModelLayout& model) {
  if (!model.has_frozen()) return {};
  return ", and " + engine::compact(static_cast<double>(model.trained_elements())) + " in adapters";
}

void note_ranks(const config::Config& config, const offload::Topology& ranks) {
  const int of_host = ranks.local_world;
  if (ranks.world == 1) return;
  if (!ranks.is_regular)
    log::warning(
        "the hosts have different numbers of ranks, or the ranks of a host are not neighbours: "
        "gradients cross the network once per rank and not once per host. Number the ranks host by "
        "host, the same number on each");
  if (of_host > 1)
    log::info(std::to_string(of_host) +
              " ranks share this host: the memory shown is for one of them, which may use an equal "
              "part of the host's memory or of the budget; NVMe and advised settings are for all");
  const int threads = engine::compute_threads(config);
  const auto cores = static_cast<int>(std::ceil(aio::usable_cores()));
  if (of_host > 1 && threads > 1 && threads * of_host > cores)
    log::warning(std::to_string(of_host) + " ranks use " + std::to_string(threads) +
                 " threads each on " + std::to_string(cores) +
                 " cores, as the run did so far or as run.cpu_threads says, so threads wait for "
                 "each other: with --set run.cpu_threads=" +
                 std::to_string(std::max(cores / of_host, 1)) +
                 " they are faster, but results may differ in the last bits");
}

Result<PlannedRun> checked_plan(const config::Config& given, engine::RunPurpose purpose,
                                const SetUpOptions& options = {}) {
  config::Config config = given;  // this rank's, like `facts`
  aio::RealFileSystem files;
  SLUICE_RETURN_IF_ERROR(engine::require_nvme_folders(config, files));
  const engine::ModelShape shape = config.model.shape();
  SLUICE_RETURN_IF_ERROR(engine::validate(shape));
  SLUICE_RETURN_IF_ERROR(engine::check_device(config));
  const bool on_gpu = engine::uses_cuda(config);
  const engine::ModelLayout model = engine::configured_layout(config, on_gpu);
  if (purpose == engine::RunPurpose::kTraining) {
    SLUICE_RETURN_IF_ERROR(engine::check_fp8(config, model, /*is_module=*/false));
    SLUICE_RETURN_IF_ERROR(engine::check_fp8_of_gpu(config));
  }
  const offload::Topology topology = options.link->topology();
  const int host_ranks = topology.local_world;
  SLUICE_RETURN_IF_ERROR(engine::clear_leftovers(config, *options.link));
  const engine::MachineFacts facts =
      engine::facts_of_rank(engine::machine_facts(config), host_ranks);
  config.budget = engine::budget_of_rank(config.budget, host_ranks);
  const offload::RankPart ranks = topology.part(options.link->rank());
  note_ranks(config, topology);
  const bool planned = purpose == engine::RunPurpose::kTraining && is_planned(config);
  const engine::PlanOptions literal{.purpose = purpose,
                                    .on_gpu = on_gpu,
                                    .gpu_room_bytes = engine::gpu_room(config.budget, facts),
                                    .ranks = ranks};
  SLUICE_ASSIGN_OR_RETURN(PlannedRun plan,
                          options.adopts != nullptr
                              ? adopted_memory(config, model, literal, *options.adopts, options)
                          : planned ? planned_memory(given, model, ranks, options)
                                    : literal_memory(config, model, literal));
  SLUICE_RETURN_IF_ERROR(plan_checkpoint_copy(config, model, facts, *options.link, plan));
  *options.notices << shape.family << " model of "
                   << engine::compact(static_cast<double>(model.parameter_elements()))
                   << " parameters" << active_share(model) << trained_share(model) << ": "
                   << shape.layers << " layers x " << shape.hidden << ", "
                   << (on_gpu ? "on the GPU" : "on the CPU") << "\n";
  const engine::PreflightReport report =
      engine::preflight(config, engine::plan_of_host(plan.memory, host_ranks), facts, files);
  *options.notices << report.table;
  for (const std::string& note : report.notes) log::info(note);
  for (const std::string& warning : report.warnings) log::warning(warning);
  SLUICE_RETURN_IF_ERROR(report.verdict);
  plan.rooms.gpu_bytes = engine::gpu_room(config.budget, facts);
  plan.rooms.host_bytes = engine::host_room(config.budget, facts);
  if (!plan.rooms.nvme_bytes && config.budget.nvme_gib)
    plan.rooms.nvme_bytes = static_cast<std::uint64_t>(*config.budget.nvme_gib * kGiB);
  return plan;
}

void say_how_long(std::int64_t memory_ns, std::int64_t state_ns) {
  const auto text = [](std::int64_t ns) {
    return engine::decimals(static_cast<double>(ns) / 1e9, 1) + " s";
  };
  log::info("set up in " + text(memory_ns + state_ns) + ": memory and files " + text(memory_ns) +
            ", weights and optimizer state " + text(state_ns));
}

Status go_on(const SetUpOptions& options) {
  if (options.stop && options.stop()) return Error(ErrorCode::kCancelled, "interrupted");
  return options.link->health();
}

}  // namespace

Result<PlannedRun> plan_training(const config::Config& config,
                                 const std::optional<engine::CheckpointEntry>& from,
                                 const SetUpOptions& options) {
  SLUICE_ASSIGN_OR_RETURN(PlannedRun planned,
                          checked_plan(config, engine::RunPurpose::kTraining, options));
  SLUICE_RETURN_IF_ERROR(go_on(options));
  planned.saves = saves_of(config, from, options.files, planned, *options.notices);
  return planned;
}

Result<MadeRun> make_run(const config::Config& config, const PlannedRun& planned,
                         const SetUpOptions& options) {
  const SteadyClock clock;
  const std::int64_t begin_ns = clock.now_ns();
  SLUICE_ASSIGN_OR_RETURN(auto run,
                          engine::TrainingRun::create(config, planned.memory, *options.link));
  return MadeRun{.run = std::move(run), .took_ns = clock.now_ns() - begin_ns};
}

Result<std::unique_ptr<engine::TrainingRun>> give_state(
    MadeRun made, const std::optional<engine::CheckpointEntry>& from, const SetUpOptions& options) {
  const SteadyClock clock;
  const std::int64_t begin_ns = clock.now_ns();
  TerminalLine line;
  const auto shown = [&](const char* what) {
    return [&options, show = show_share(line, what)](std::uint64_t done, std::uint64_t total) {
      show(done, total);
      return go_on(options);
    };
  };
  auto run = std::move(made.run);
  const auto set = [&]() -> Status {
    if (!from) return run->initialise(shown("setting the weights"));
    SLUICE_ASSIGN_OR_RETURN(const auto checkpoint,
                            engine::CheckpointReader::open(*run->drives().reads, from->path, {}));
    return run->resume(*checkpoint, shown("reading the checkpoint"));
  };
  const Status own = set();
  // An interrupted rank does not wait for the others.
  if (!own.ok() && own.error().code() == ErrorCode::kCancelled) return own.error();
  SLUICE_RETURN_IF_ERROR(run->begin_together(own));
  line.clear();
  say_how_long(made.took_ns, clock.now_ns() - begin_ns);
  if (from)
    *options.notices << "continuing from " << from->path << ", after step " << from->step << "\n";
  return run;
}

Result<std::unique_ptr<engine::TrainingRun>> set_up_run(
    const config::Config& config, const std::optional<engine::CheckpointEntry>& from,
    const SetUpOptions& options) {
  SLUICE_ASSIGN_OR_RETURN(const PlannedRun planned, plan_training(config, from, options));
  SLUICE_ASSIGN_OR_RETURN(MadeRun made, make_run(config, planned, options));
  return give_state(std::move(made), from, options);
}

Result<std::unique_ptr<engine::EvaluationRun>> set_up_evaluation(const config::Config& config,
                                                                 const std::string& checkpoint) {
  SLUICE_ASSIGN_OR_RETURN(const PlannedRun plan,
                          checked_plan(config, engine::RunPurpose::kEvaluation));
  SLUICE_ASSIGN_OR_RETURN(auto run, engine::EvaluationRun::create(config, plan.memory));
  TerminalLine line;
  const auto progress = show_share(line, "reading the weights");
  if (checkpoint.empty()) {
    SLUICE_RETURN_IF_ERROR(run->load(progress));
    return run;
  }
  SLUICE_ASSIGN_OR_RETURN(
      const auto reader,
      engine::CheckpointReader::open(*run->drives().reads, checkpoint, {.moments = false}));
  SLUICE_RETURN_IF_ERROR(run->load(*reader, progress));
  return run;
}

Result<std::unique_ptr<engine::GenerationRun>> set_up_generation(const config::Config& config,
                                                                 const std::string& checkpoint) {
  SLUICE_ASSIGN_OR_RETURN(const PlannedRun plan,
                          checked_plan(config, engine::RunPurpose::kGeneration));
  SLUICE_ASSIGN_OR_RETURN(auto run, engine::GenerationRun::create(config, plan.memory));
  SLUICE_ASSIGN_OR_RETURN(
      const auto reader,
      engine::CheckpointReader::open(*run->drives().reads, checkpoint, {.moments = false}));
  TerminalLine line;
  SLUICE_RETURN_IF_ERROR(run->load(*reader, show_share(line, "reading the weights")));
  return run;
}

}  // namespace sluice::tools
