#include "tools/session/train_start.h"

#include <algorithm>
#include <filesystem>
#include <iosfwd>
#include <ostream>
#include <string>
#include <utility>

#include "aio/log.h"
#include "aio/real_file_system.h"
#include "aio/result.h"
#include "engine/budget/stripe_plan.h"
#include "engine/config/changes.h"
#include "engine/config/kept_keys.h"
#include "engine/config/report.h"
#include "engine/config/resolve.h"
#include "engine/config/schedule_outlook.h"
#include "engine/config/stored_config.h"
#include "engine/device/gpu.h"
#include "engine/device/host.h"
#include "engine/preflight/leftovers.h"
#include "engine/preflight/nvme_folders.h"
#include "engine/profile/step_flops.h"
#include "engine/run/stored_state.h"
#include "tools/session/open_queue.h"
#include "tools/session/resume_point.h"
#include "tools/session/run_folder.h"
#include "tools/session/run_tokenizer.h"
#include "tools/session/train_checks.h"
#include "tools/session/weight_dtype.h"

namespace sluice::tools {
namespace {

// What `sluice train` says before the first step: the length of the run, the end of its schedule
// and, for a resumed run, what has changed since the checkpoint.

void report_epochs(const config::Resolved& resolved, std::ostream& notices) {
  if (!resolved.config.run.epochs) return;
  for (const config::KeyReport& report : resolved.reports)
    if (report.path == "run.steps" && report.source.empty())
      notices << report.value << " steps: " << report.reason << "\n";
}

// Whether a change of this key gets a line of its own.
bool has_line(const std::string& path) {
  // The origin of the initial weights does not matter to a resumed run.
  return config::decides_results(path) && !path.starts_with("model.init") &&
         !config::concerns_schedule(path) && path != config::kDecayedKey;
}

void report_differences(const config::Config& was, const config::Config& now,
                        const config::RunPosition& position, std::ostream& notices) {
  // Checkpoints have absolute paths.
  std::error_code error;
  const auto here = config::stored_config(now, std::filesystem::current_path(error).string());
  if (!here.ok()) {
    log::warning("the changes since the checkpoint are not known: " + here.error().message());
    return;
  }
  for (const config::KeyChange& change : config::changed_keys(was, *here))
    if (has_line(change.path))
      notices << "changed since the checkpoint: " << config::to_text(change) << "\n";
  const std::string schedule = config::change_of_schedule(was, now, position);
  const std::string keys = config::changed_schedule_keys(was, now);
  if (!schedule.empty())
    notices << schedule << "\n";
  else if (!keys.empty())
    notices << keys << "; the schedule does not change\n";
}

// Writes to `says` a line for each changed key that affects results, and one line for all keys of
// the schedule. No such line if the checkpoint was imported. kInvalidArgument if the rest of the
// schedule would change no weight.
Status report_changes(const config::Resolved& resolved, const ResumePoint& from,
                      std::ostream& notices) {
  config::RunPosition position;
  report_epochs(resolved, notices);
  if (from.configuration) {
    position = {.global_step = from.stored.position.global_step,
                .applied_step = from.stored.position.applied_step};
    const auto& was = *from.configuration;
    if (was.ok())
      report_differences(*was, resolved.config, position, notices);
    else  // an older program's, with a value that is refused today
      log::warning("the changes since the checkpoint are not known: " + was.error().message());
  }
  SLUICE_RETURN_IF_ERROR(config::check_steps_left(resolved.config, position));
  const std::string end = config::end_of_schedule(resolved.config, position);
  if (!end.empty()) log::warning(end);
  return {};
}

using engine::TrainingRun;

// Options such as --out DIR are other names for keys.
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

// run.resume in a file or through --set has the meaning of --resume. Options that CLI11 refuses
// with --resume must therefore be refused with run.resume.
Status check_resume_conflicts(const TrainRequest& options, const config::Config& config) {
  if (config.run.resume.empty()) return {};
  const auto refused = [&](const std::string& option, const std::string& why) {
    return Error(ErrorCode::kInvalidArgument, option + " cannot be combined with run.resume (" +
                                                  config.run.resume + "): " + why);
  };
  if (options.overwrite) return refused("--overwrite", "it would remove the run that is resumed");
  if (!options.init_from.empty())
    return refused("--init-from", "the weights come from the checkpoint");
  return {};
}

// Called before the run's folder is opened, which may clear it.
Result<engine::TokenizerFiles> data_tokenizer(const config::Config& config, bool any,
                                              aio::IoWatchdog& watchdog) {
  SLUICE_ASSIGN_OR_RETURN(const FileQueue files, open_queue(watchdog));
  return check_training_data(*files.queue, config, any);
}

// Keeps what the run has used so far unless the configuration sets it: the number of threads, the
// order of additions and the keys of kept_keys.h. The first two may change last bits.
void keep_what_it_had(const ResumePoint& point, config::Resolved& resolved, std::ostream& notices) {
  std::int64_t& threads = resolved.config.run.cpu_threads;
  if (threads == 0) threads = point.stored.run.cpu_threads;
  if (point.stored.run.imported()) return;
  const engine::SumsOfRun& sums = point.stored.run.sums;
  const std::string& stored = point.stored.configuration;
  std::error_code error;
  const std::string here = std::filesystem::current_path(error).string();
  for (const std::string& said :
       {point.own && point.records ? config::keep_checkpoint_in_place(resolved) : "",
        config::keep_lanes({.lanes = sums.lanes, .rounds = sums.rounds}, resolved),
        config::keep_decayed_parameters(stored, resolved),
        config::keep_number_of_checkpoints(stored, resolved),
        config::keep_best_checkpoint(stored, resolved),
        config::keep_origin(stored, here, resolved)})
    if (!said.empty()) notices << said << "\n";
}

// Adjusts the wanted run to where it continues. The configuration is stored with the run, so
// run.resume is removed: starting another run from it does not mean resuming this one.
Result<CheckedRequest> adjusted(CheckedRequest wanted, const RunFolder& folder,
                                const ResumePoint& from, std::ostream& notices) {
  config::Config& config = wanted.resolved.config;
  const bool any_tokenizer = wanted.request.any_tokenizer;
  config.run.later_checkpoints = config::LaterCheckpoints::kRefuse;
  config.run.resume.clear();
  if (!from.checkpoint) {
    if (wanted.entry != RunFolder::Entry::kResume) return wanted;
    notices << "there is no checkpoint in " << folder.file("checkpoints")
            << " yet: starting at step 0\n";
    SLUICE_RETURN_IF_ERROR(check_init_from(config));  // the run begins at step 0 after all
    SLUICE_ASSIGN_OR_RETURN(wanted.tokenizer, check_first_data(folder.queue(), config,
                                                               wanted.tokenizer, any_tokenizer));
    return wanted;
  }
  // Checkpoints of adapters do not contain the model's weights.
  if (config.lora.rank > 0) {
    SLUICE_RETURN_IF_ERROR(check_init_from(config));
    SLUICE_RETURN_IF_ERROR(engine::check_base(folder.queue(), from.stored.run, config.model.shape(),
                                              config.model.init_from));
  }
  keep_what_it_had(from, wanted.resolved, notices);
  SLUICE_ASSIGN_OR_RETURN(wanted.tokenizer,
                          check_resumed_data(folder.queue(), {.checkpoint = from.checkpoint->path,
                                                              .of_data = wanted.tokenizer,
                                                              .any = any_tokenizer}));
  return wanted;
}

// Reports what the run is about to do; an error if it would have no effect.
Status check_steps(const LocatedRun& located, std::ostream& notices) {
  const auto& [wanted, folder, from] = located;
  const config::Config& config = wanted.resolved.config;
  notices << weights_text(config, from, wanted.request.config.file)
          << config::format_autos(wanted.resolved);
  for (const std::string& text :
       {config::renamed_keys(wanted.resolved), config::unused_keys(wanted.resolved)})
    if (!text.empty()) log::warning(text);
  SLUICE_RETURN_IF_ERROR(report_changes(wanted.resolved, from, notices));
  const std::int64_t steps = config.run.steps;
  const std::int64_t done = from.checkpoint ? from.checkpoint->step : 0;
  if (done >= steps) {
    notices << "all " << steps << " steps are done: --steps N continues to step N\n";
  }
  warn_of_rate(config, done);
  SLUICE_RETURN_IF_ERROR(check_flops_profile(config, done));
  if (!wanted.trace) return {};
  SLUICE_RETURN_IF_ERROR(check_traced_steps(*wanted.trace, done, steps));
  if (std::filesystem::exists(folder.file("trace.json")))
    notices << folder.file("trace.json") << " will be replaced\n";
  return {};
}

Result<std::unique_ptr<engine::RunCheckpoints>> make_checkpoints(TrainingRun& run,
                                                                 const PlannedRun& planned,
                                                                 const RunFolder& folder) {
  const config::Run& wanted = run.config().run;
  if (!planned.saves.saves()) return std::unique_ptr<engine::RunCheckpoints>();
  return engine::RunCheckpoints::create(
      run, *run.drives().saves,
      {.directory = wanted.dir,
       .keep_last = static_cast<int>(wanted.keep_last_checkpoints),
       .keep_best = wanted.keep_best,
       .background = planned.saves.background,
       .placement = planned.placement,
       .check_directory = [&folder] { return folder.check_there(); }});
}

// The number of checkpoints that the run's own saves will replace: those up to its first step.
// Checkpoints that are set aside stay.
Result<std::int64_t> count_checkpoints(const RunFolder& folder, const ResumePoint& from) {
  if (!from.own) return std::int64_t{0};
  SLUICE_ASSIGN_OR_RETURN(const auto list, folder.checkpoints().list());
  return std::count_if(list.begin(), list.end(), [&](const engine::CheckpointEntry& entry) {
    return entry.complete() && (!from.checkpoint || entry.step <= from.checkpoint->step);
  });
}

// The store in which the run continues: that of its own checkpoint. A run that was moved or copied
// takes another, since two runs must never share one.
const engine::StoredRecords* store_of(const LocatedRun& located) {
  const auto& records = located.from.records;
  if (!records || !located.from.own) return nullptr;
  const std::string name =
      engine::store_name(located.wanted.resolved.config, "optimizer", offload::RankPart());
  return records->store.run == name ? &*records : nullptr;
}

// The run with its state. If the checkpoint cannot be read, the error names an older one.
Result<std::unique_ptr<TrainingRun>> set_up(const LocatedRun& located, const PlannedRun& planned,
                                            const SetUpOptions& options,
                                            const ResumeCommand& command) {
  const std::optional<engine::CheckpointEntry>& checkpoint = located.from.checkpoint;
  SLUICE_ASSIGN_OR_RETURN(MadeRun made, make_run(located.wanted.resolved.config, planned, options));
  auto run = give_state(std::move(made), checkpoint, options);
  if (run.ok() || !checkpoint) return run;
  return with_older_one(std::move(run).error(), located.folder, *checkpoint, command);
}

}  // namespace

Result<CheckedRequest> check_training(const TrainRequest& request,
                                      const engine::RankContext& context,
                                      aio::IoWatchdog& watchdog) {
  ConfigOptions config_options = request.config;
  config_options.world_size = context.world;
  add_overrides(request, config_options);
  CheckedRequest wanted;
  wanted.request = request;
  SLUICE_ASSIGN_OR_RETURN(wanted.resolved, resolve(config_options, LookAtData::kYes));
  config::Config& config = wanted.resolved.config;
  watchdog.set_limit_s(config.run.io_watchdog_s);
  if (request.gpus > 0 && !engine::uses_cuda(config)) {
    return Error(ErrorCode::kInvalidArgument,
                 "--gpus " + std::to_string(request.gpus) +
                     ", but run.device is \"cpu\": set it to \"auto\", or use --ranks");
  }
  SLUICE_RETURN_IF_ERROR(check_resume_conflicts(request, config));
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
                 "no folder is given for the run's files: use --out DIR, or run.dir");
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

Result<std::unique_ptr<const LocatedRun>> locate_training(CheckedRequest wanted,
                                                          const TrainEnvironment& environment) {
  const config::Run& run = wanted.resolved.config.run;
  SLUICE_ASSIGN_OR_RETURN(RunFolder folder,
                          RunFolder::open(run.dir, wanted.entry, environment.watchdog));
  SLUICE_ASSIGN_OR_RETURN(ResumePoint from, find_resume_point(folder, run, environment.command));
  SLUICE_ASSIGN_OR_RETURN(wanted, adjusted(std::move(wanted), folder, from, environment.notices));
  engine::share_compute_threads(environment.context.world, environment.context.local_world,
                                wanted.resolved.config);
  auto located = std::make_unique<const LocatedRun>(LocatedRun{
      .wanted = std::move(wanted), .folder = std::move(folder), .from = std::move(from)});
  SLUICE_RETURN_IF_ERROR(check_steps(*located, environment.notices));
  return located;
}

Result<RunningTraining> begin_training(std::unique_ptr<const LocatedRun> located,
                                       const TrainEnvironment& environment) {
  const auto& [wanted, folder, from] = *located;
  const int ranks = environment.context.world;
  if (!wanted.resolved.config.samples.prompts.empty() && !environment.make_samples)
    return Error(ErrorCode::kUnsupported,
                 "samples.prompts works only with the command sluice train: leave it out");
  SLUICE_ASSIGN_OR_RETURN(const std::int64_t there, count_checkpoints(folder, from));
  const SetUpOptions options{.files = {.complete_checkpoints = there,
                                       .weights = wanted.request.save_weights,
                                       .weight_dtype = wanted.weight_dtype},
                             .adopts = store_of(*located),
                             .with_what_ifs = true,
                             .stop = environment.stop,
                             .notices = &environment.notices,
                             .link = &environment.link};
  SLUICE_ASSIGN_OR_RETURN(PlannedRun planned,
                          plan_training(wanted.resolved.config, from.checkpoint, options));
  // The new run's store has the name of the one that it replaces.
  if (wanted.entry == RunFolder::Entry::kOverwrite)
    SLUICE_RETURN_IF_ERROR(engine::remove_stored_run(wanted.resolved.config, folder.queue()));
  SLUICE_ASSIGN_OR_RETURN(auto run, set_up(*located, planned, options, environment.command));
  if (wanted.trace) run->trace().start(*wanted.trace);
  SLUICE_ASSIGN_OR_RETURN(auto checkpoints, make_checkpoints(*run, planned, folder));
  if (environment.stop()) return Error(ErrorCode::kCancelled, "interrupted");
  SLUICE_ASSIGN_OR_RETURN(auto log, take_folder(*located, environment.notices));
  const config::Config& config = run->config();
  environment.events.begin(
      folder.file("events.jsonl"),
      {.step = run->trainer().state().global_step,
       .steps = config.run.steps,
       .tokens_per_step = run->tokens_per_step(),
       .family = config.model.family,
       .parameters = run->model().parameter_elements(),
       .trained_parameters = run->model().trained_elements(),
       .flops_per_token = engine::flops_of_token(run->model(), config.data.sequence_tokens),
       .resolved = wanted.resolved,
       .tiers = tiers_of(planned.memory, planned.rooms),
       .planned = planned.step ? &*planned.step : nullptr,
       .ranks = ranks});
  auto session = std::make_unique<TrainSession>(
      TrainSession::Parts{.run = run.get(),
                          .log = log.get(),
                          .checkpoints = checkpoints.get(),
                          .events = &environment.events,
                          .notices = &environment.notices,
                          .results = &environment.results,
                          .shows_progress = environment.shows_progress,
                          .stop = environment.stop,
                          .after_step = environment.after_step,
                          .evaluations = from.stored.evaluations,
                          .make_samples = environment.make_samples,
                          .ranks = ranks},
      planned.saves, config.run.steps);
  if (planned.step) {
    session->compare_with_plan(planned.step->step_s);
    session->compare_with_limit(planned.step->machine.speeds.gpu_matmul_flops_per_s);
  }
  return RunningTraining{.located = std::move(located),
                         .planned = std::move(planned),
                         .run = std::move(run),
                         .checkpoints = std::move(checkpoints),
                         .log = std::move(log),
                         .session = std::move(session)};
}

}  // namespace sluice::tools
