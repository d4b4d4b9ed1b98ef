#include "tools/session/train_start.h"

#include <algorithm>
#include <filesystem>
#include <ostream>
#include <utility>

#include "aio/log.h"
#include "aio/real_file_system.h"
#include "engine/config/kept_keys.h"
#include "engine/config/report.h"
#include "engine/device/gpu.h"
#include "engine/device/host.h"
#include "engine/preflight/nvme_folders.h"
#include "engine/profile/step_flops.h"
#include "engine/run/stored_state.h"
#include "tools/session/change_notice.h"
#include "tools/session/open_queue.h"
#include "tools/session/run_tokenizer.h"
#include "tools/session/take_folder.h"
#include "tools/session/train_checks.h"
#include "tools/session/weight_dtype.h"

namespace sluice::tools {
namespace {

using engine::TrainingRun;

// --out DIR and the like are other names for keys.
void add_overrides(const TrainRequest& options, ConfigOptions& config) {
  const auto add = [&](const std::string& key, const std::string& value) {
    config.overrides.push_back(key + "=" + value);
  };
  if (!options.out.empty()) add("run.dir", options.out);
  if (!options.steps.empty()) add("run.steps", options.steps);
  if (!options.epochs.empty()) add("run.epochs", options.epochs);
  if (!options.log_every.empty()) add("run.log_every", options.log_every);
  if (!options.init_from.empty()) add("model.init_from", options.init_from);
  if (!options.resume.empty()) add("run.resume", options.resume);
  if (options.set_aside_later) add("run.later_checkpoints", "set_aside");
}

RunFolder::Entry entry_of(const TrainRequest& options, const config::Config& config) {
  if (!config.run.resume.empty()) return RunFolder::Entry::kResume;
  return options.overwrite ? RunFolder::Entry::kOverwrite : RunFolder::Entry::kNew;
}

// run.resume says in a file, or through --set, what --resume says; what CLI11 refuses beside one
// must be refused beside the other.
Status check_beside_resume(const TrainRequest& options, const config::Config& config) {
  if (config.run.resume.empty()) return {};
  const auto refused = [&](const std::string& option, const std::string& why) {
    return Error(ErrorCode::kInvalidArgument, option + " cannot be combined with run.resume (" +
                                                  config.run.resume + "): " + why);
  };
  if (options.overwrite) return refused("--overwrite", "it would remove the run that is resumed");
  if (!options.init_from.empty())
    return refused("--init-from", "the weights are those of the checkpoint");
  return {};
}

// Before the run's folder is opened, which may clear it.
Result<engine::TokenizerFiles> data_tokenizer(const config::Config& config, bool any,
                                              aio::IoWatchdog& watchdog) {
  SLUICE_ASSIGN_OR_RETURN(const FileQueue files, open_queue(watchdog));
  return check_training_data(*files.queue, config, any);
}

// What the run has had so far, where the configuration does not say otherwise: the number of
// threads and the order of additions, which may change last bits, and the keys of kept_keys.h.
void keep_what_it_had(const ResumePoint& point, config::Resolved& resolved, std::ostream& says) {
  std::int64_t& threads = resolved.config.run.cpu_threads;
  if (threads == 0) threads = point.stored.run.cpu_threads;
  if (point.stored.run.imported()) return;
  const engine::SumsOfRun& sums = point.stored.run.sums;
  const std::string& stored = point.stored.configuration;
  std::error_code error;
  const std::string here = std::filesystem::current_path(error).string();
  for (const std::string& said :
       {config::keep_lanes({.lanes = sums.lanes, .rounds = sums.rounds}, resolved),
        config::keep_decayed_parameters(stored, resolved),
        config::keep_number_of_checkpoints(stored, resolved),
        config::keep_origin(stored, here, resolved)})
    if (!said.empty()) says << said << "\n";
}

// Where to continue, with `wanted` adjusted for that. The request is removed from the
// configuration, which is kept with the run: starting another run from it does not mean resuming
// this one.
Result<ResumePoint> resume_point(const RunFolder& folder, const TrainRequest& options,
                                 const TrainSurroundings& around, WantedRun& wanted) {
  config::Config& config = wanted.resolved.config;
  SLUICE_ASSIGN_OR_RETURN(ResumePoint point, find_resume_point(folder, config.run, around.command));
  config.run.later_checkpoints = config::LaterCheckpoints::kRefuse;
  config.run.resume.clear();
  if (!point.checkpoint) {
    if (wanted.entry == RunFolder::Entry::kResume)
      around.says << "there is no checkpoint in " << folder.file("checkpoints")
                  << " yet: starting at step 0\n";
    if (wanted.entry == RunFolder::Entry::kResume) {  // it begins after all
      SLUICE_RETURN_IF_ERROR(check_init_from(config));
      SLUICE_ASSIGN_OR_RETURN(
          wanted.tokenizer,
          check_first_data(folder.queue(), config, wanted.tokenizer, options.any_tokenizer));
    }
    return point;
  }
  // Checkpoints of adapters do not have it.
  if (config.lora.rank > 0) {
    SLUICE_RETURN_IF_ERROR(check_init_from(config));
    SLUICE_RETURN_IF_ERROR(engine::check_base(folder.queue(), point.stored.run,
                                              config.model.shape(), config.model.init_from));
  }
  keep_what_it_had(point, wanted.resolved, around.says);
  SLUICE_ASSIGN_OR_RETURN(wanted.tokenizer,
                          check_resumed_data(folder.queue(), {.checkpoint = point.checkpoint->path,
                                                              .of_data = wanted.tokenizer,
                                                              .any = options.any_tokenizer}));
  return point;
}

// Says what the run is about to do; an error where that would have no effect.
Status check_steps(const WantedRun& wanted, const RunFolder& folder, const ResumePoint& from,
                   const std::string& config_file, std::ostream& says) {
  const config::Config& config = wanted.resolved.config;
  says << weights_text(config, from, config_file) << config::format_autos(wanted.resolved);
  if (const std::string unused = config::unused_keys(wanted.resolved); !unused.empty())
    log::warning(unused);
  SLUICE_RETURN_IF_ERROR(report_changes(wanted.resolved, from, says));
  const std::int64_t steps = config.run.steps;
  const std::int64_t done = from.checkpoint ? from.checkpoint->step : 0;
  if (done >= steps) {
    says << "all " << steps << " steps are done: --steps N continues to step N\n";
  }
  warn_of_rate(config, done);
  SLUICE_RETURN_IF_ERROR(check_flops_profile(config, done));
  if (!wanted.trace) return {};
  SLUICE_RETURN_IF_ERROR(check_traced_steps(*wanted.trace, done, steps));
  if (std::filesystem::exists(folder.file("trace.json")))
    says << folder.file("trace.json") << " will be replaced\n";
  return {};
}

Result<std::unique_ptr<engine::RunCheckpoints>> make_checkpoints(TrainingRun& run,
                                                                 const engine::SavePlan& saves,
                                                                 const RunFolder& folder) {
  const config::Run& wanted = run.config().run;
  if (!saves.saves()) return std::unique_ptr<engine::RunCheckpoints>();
  return engine::RunCheckpoints::create(
      run, *run.drives().saves,
      {.directory = wanted.dir,
       .keep_last = static_cast<int>(wanted.keep_last_checkpoints),
       .background = saves.background,
       .check_directory = [&folder] { return folder.check_there(); }});
}

// Those that the run's own saves will replace: those that it continues after, or that exist before
// it begins. What is set aside stays.
Result<std::int64_t> count_checkpoints(const RunFolder& folder, const ResumePoint& from) {
  if (!from.own) return std::int64_t{0};
  SLUICE_ASSIGN_OR_RETURN(const auto list, folder.checkpoints().list());
  return std::count_if(list.begin(), list.end(), [&](const engine::CheckpointEntry& entry) {
    return entry.complete() && (!from.checkpoint || entry.step <= from.checkpoint->step);
  });
}

// The run itself, with all that it is told of in `made`. kCancelled: it was told to stop.
Status set_up(const TrainRequest& request, const TrainSurroundings& around, StartedRun& made) {
  const WantedRun& wanted = made.wanted;
  if (around.before_set_up) SLUICE_RETURN_IF_ERROR(around.before_set_up(made));
  SLUICE_ASSIGN_OR_RETURN(const std::int64_t there, count_checkpoints(made.folder, made.from));
  const config::Config& config = wanted.resolved.config;
  const std::optional<engine::CheckpointEntry>& checkpoint = made.from.checkpoint;
  const SetUpOptions options{.files = {.complete_checkpoints = there,
                                       .weights = request.save_weights,
                                       .weight_dtype = wanted.weight_dtype},
                             .with_what_ifs = true,
                             .stop = around.stop,
                             .says = &around.says,
                             .link = around.link};
  SLUICE_ASSIGN_OR_RETURN(made.planned, plan_training(config, checkpoint, options));
  SLUICE_ASSIGN_OR_RETURN(MadeRun empty, make_run(config, made.planned, options));
  auto run = give_state(std::move(empty), checkpoint, options);
  if (!run.ok() && checkpoint)
    return with_older_one(std::move(run).error(), made.folder, *checkpoint, around.command);
  if (!run.ok()) return std::move(run).error();
  made.run = *std::move(run);
  if (wanted.trace) made.run->trace().start(*wanted.trace);
  SLUICE_ASSIGN_OR_RETURN(made.checkpoints,
                          make_checkpoints(*made.run, made.planned.saves, made.folder));
  if (around.stop()) return Error(ErrorCode::kCancelled, "interrupted");
  return {};
}

}  // namespace

Result<WantedRun> check_training(const TrainRequest& request, const engine::RankContext& context,
                                 aio::IoWatchdog& watchdog) {
  ConfigOptions config_options = request.config;
  config_options.world_size = context.world;
  add_overrides(request, config_options);
  WantedRun wanted;
  SLUICE_ASSIGN_OR_RETURN(wanted.resolved, resolve(config_options, LookAtData::kYes));
  config::Config& config = wanted.resolved.config;
  watchdog.set_limit_s(config.run.io_watchdog_s);
  if (request.gpus > 0 && !engine::uses_cuda(config)) {
    return Error(ErrorCode::kInvalidArgument,
                 "--gpus " + std::to_string(request.gpus) +
                     ", but run.device is \"cpu\": set it to \"auto\", or name --ranks");
  }
  SLUICE_RETURN_IF_ERROR(check_beside_resume(request, config));
  wanted.entry = entry_of(request, config);
  SLUICE_ASSIGN_OR_RETURN(wanted.weight_dtype, weight_dtype(request.dtype));
  if (!request.trace.empty()) {
    SLUICE_ASSIGN_OR_RETURN(wanted.trace, engine::TraceLog::parse_steps(request.trace));
  }
  if (config.run.dir.empty()) {
    SLUICE_ASSIGN_OR_RETURN(config.run.dir, run_directory_of(request.config));
  }
  if (config.run.dir.empty()) {
    return Error(ErrorCode::kInvalidArgument,
                 "no place is given for the run's files: --out DIR, or run.dir");
  }
  aio::RealFileSystem files;
  SLUICE_RETURN_IF_ERROR(engine::require_nvme_folders(config, files));
  SLUICE_RETURN_IF_ERROR(
      check_weights_output({.path = request.save_weights, .replaces = request.force}, config));
  SLUICE_RETURN_IF_ERROR(engine::RunData::check(config));
  if (config.run.resume.empty()) SLUICE_RETURN_IF_ERROR(check_init_from(config));
  SLUICE_ASSIGN_OR_RETURN(wanted.tokenizer,
                          data_tokenizer(config, request.any_tokenizer, watchdog));
  return wanted;
}

Result<std::unique_ptr<StartedRun>> begin_training(const TrainRequest& request, WantedRun wanted,
                                                   const TrainSurroundings& around) {
  const std::string directory = wanted.resolved.config.run.dir;
  SLUICE_ASSIGN_OR_RETURN(RunFolder folder,
                          RunFolder::open(directory, wanted.entry, around.watchdog));
  auto made = std::make_unique<StartedRun>(std::move(wanted), std::move(folder));
  SLUICE_ASSIGN_OR_RETURN(made->from, resume_point(made->folder, request, around, made->wanted));
  engine::share_compute_threads(around.context.world, around.context.local_world,
                                made->wanted.resolved.config);
  SLUICE_RETURN_IF_ERROR(
      check_steps(made->wanted, made->folder, made->from, request.config.file, around.says));
  SLUICE_RETURN_IF_ERROR(set_up(request, around, *made));
  SLUICE_ASSIGN_OR_RETURN(made->log, take_folder(made->folder, {.entry = made->wanted.entry,
                                                                .from = made->from,
                                                                .resolved = made->wanted.resolved,
                                                                .tokenizer = made->wanted.tokenizer,
                                                                .says = around.says}));
  TrainingRun& run = *made->run;
  around.events.begin(
      made->folder.file("events.jsonl"),
      {.step = run.trainer().state().global_step,
       .steps = run.config().run.steps,
       .tokens_per_step = run.tokens_per_step(),
       .family = run.config().model.family,
       .parameters = run.model().parameter_elements(),
       .trained_parameters = run.model().trained_elements(),
       .flops_per_token = engine::flops_of_token(run.model(), run.config().data.sequence_tokens),
       .resolved = made->wanted.resolved,
       .tiers = tiers_of(made->planned.memory, made->planned.rooms),
       .planned = made->planned.step ? &*made->planned.step : nullptr,
       .ranks = around.context.world});
  made->session =
      std::make_unique<TrainSession>(TrainSession::Parts{.run = made->run.get(),
                                                         .log = made->log.get(),
                                                         .checkpoints = made->checkpoints.get(),
                                                         .events = &around.events,
                                                         .says = &around.says,
                                                         .results = &around.results,
                                                         .shows_progress = around.shows_progress,
                                                         .after_step = around.after_step,
                                                         .ranks = around.context.world},
                                     made->planned.saves, run.config().run.steps);
  if (const auto& step = made->planned.step) {
    made->session->compare_with_plan(step->step_s);
    made->session->compare_with_limit(step->machine.speeds.gpu_matmul_flops_per_s);
  }
  return made;
}

}  // namespace sluice::tools
