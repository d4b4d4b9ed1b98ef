#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>
#include <iostream>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "aio/io_watchdog.h"
#include "aio/real_file_system.h"
#include "engine/config/kept_keys.h"
#include "engine/config/report.h"
#include "engine/device/gpu.h"
#include "engine/device/host.h"
#include "engine/preflight/nvme_folders.h"
#include "engine/run/run_checkpoints.h"
#include "engine/run/stored_state.h"
#include "engine/run/training_run.h"
#include "tools/cli/change_notice.h"
#include "tools/cli/command.h"
#include "tools/cli/config_options.h"
#include "tools/cli/error_text.h"
#include "tools/cli/open_queue.h"
#include "tools/cli/option_checks.h"
#include "tools/cli/plan_here.h"
#include "tools/cli/rank_options.h"
#include "tools/cli/resume_point.h"
#include "tools/cli/run_events.h"
#include "tools/cli/run_folder.h"
#include "tools/cli/run_setup.h"
#include "tools/cli/run_tokenizer.h"
#include "tools/cli/same_command.h"
#include "tools/cli/start_ranks.h"
#include "tools/cli/take_folder.h"
#include "tools/cli/train_checks.h"
#include "tools/cli/train_ranks.h"
#include "tools/cli/train_session.h"
#include "tools/cli/train_work.h"
#include "tools/cli/weight_dtype.h"
#include "tools/support/interrupt.h"

namespace sluice::tools {
namespace {

using engine::TrainingRun;

constexpr const char* kTrainInterruptNotice =
    "\nfinishing the step, if one has begun, and saving it; interrupt again to stop immediately\n";

struct TrainOptions {
  ConfigOptions config;
  std::string out;
  std::string steps;  // as they are given: the keys' own checks apply
  std::string epochs;
  bool overwrite = false;
  std::string resume;
  bool set_aside_later = false;
  std::string trace;
  std::string save_weights;
  std::string dtype = "fp32";
  bool force = false;
  std::string init_from;
  bool any_tokenizer = false;
  RankOptions ranks;
};

// --out DIR and the like are other names for keys.
void add_overrides(const TrainOptions& options, ConfigOptions& config) {
  const auto add = [&](const std::string& key, const std::string& value) {
    config.overrides.push_back(key + "=" + value);
  };
  if (!options.out.empty()) add("run.dir", options.out);
  if (!options.steps.empty()) add("run.steps", options.steps);
  if (!options.epochs.empty()) add("run.epochs", options.epochs);
  if (!options.init_from.empty()) add("model.init_from", options.init_from);
  if (!options.resume.empty()) add("run.resume", options.resume);
  if (options.set_aside_later) add("run.later_checkpoints", "set_aside");
}

RunFolder::Entry entry_of(const TrainOptions& options, const config::Config& config) {
  if (!config.run.resume.empty()) return RunFolder::Entry::kResume;
  return options.overwrite ? RunFolder::Entry::kOverwrite : RunFolder::Entry::kNew;
}

// run.resume says in a file, or through --set, what --resume says; what CLI11 refuses beside one
// must be refused beside the other.
Status check_beside_resume(const TrainOptions& options, const config::Config& config) {
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

// What a command line asks for, checked as far as possible without the run's folder.
struct Wanted {
  config::Resolved resolved;
  RunFolder::Entry entry = RunFolder::Entry::kNew;
  engine::DType weight_dtype = engine::DType::kF32;
  std::optional<engine::TraceLog::Options> trace;
  engine::TokenizerFiles tokenizer;
};

// Before the run's folder is opened, which may clear it.
Result<engine::TokenizerFiles> data_tokenizer(const config::Config& config, bool any,
                                              aio::IoWatchdog& watchdog) {
  SLUICE_ASSIGN_OR_RETURN(const FileQueue files, open_queue(watchdog));
  return check_training_data(*files.queue, config, any);
}

// Ranks of a host share its cores. Threads change last bits, so their number is one for all ranks,
// and kept with the run.
void deal_threads(const engine::RankContext& context, config::Config& config) {
  if (context.world == 1 || config.run.cpu_threads > 0) return;
  config.run.cpu_threads =
      std::max<std::int64_t>(engine::compute_threads(config) / context.local_world, 1);
}

Result<Wanted> check(const TrainOptions& options, const engine::RankContext& context,
                     aio::IoWatchdog& watchdog) {
  ConfigOptions config_options = options.config;
  config_options.world_size = context.world;
  add_overrides(options, config_options);
  Wanted wanted;
  SLUICE_ASSIGN_OR_RETURN(wanted.resolved, resolve(config_options, LookAtData::kYes));
  config::Config& config = wanted.resolved.config;
  watchdog.set_limit_s(config.run.io_watchdog_s);
  if (options.ranks.gpus > 0 && !engine::uses_cuda(config)) {
    return Error(ErrorCode::kInvalidArgument,
                 "--gpus " + std::to_string(options.ranks.gpus) +
                     ", but run.device is \"cpu\": set it to \"auto\", or name --ranks");
  }
  SLUICE_RETURN_IF_ERROR(check_beside_resume(options, config));
  wanted.entry = entry_of(options, config);
  SLUICE_ASSIGN_OR_RETURN(wanted.weight_dtype, weight_dtype(options.dtype));
  if (!options.trace.empty()) {
    SLUICE_ASSIGN_OR_RETURN(wanted.trace, engine::TraceLog::parse_steps(options.trace));
  }
  if (config.run.dir.empty()) {
    SLUICE_ASSIGN_OR_RETURN(config.run.dir, run_directory_of(options.config));
  }
  if (config.run.dir.empty()) {
    return Error(ErrorCode::kInvalidArgument,
                 "no place is given for the run's files: --out DIR, or run.dir");
  }
  aio::RealFileSystem files;
  SLUICE_RETURN_IF_ERROR(engine::require_nvme_folders(config, files));
  SLUICE_RETURN_IF_ERROR(
      check_weights_output({.path = options.save_weights, .replaces = options.force}, config));
  SLUICE_RETURN_IF_ERROR(engine::RunData::check(config));
  if (config.run.resume.empty()) SLUICE_RETURN_IF_ERROR(check_init_from(config));
  SLUICE_ASSIGN_OR_RETURN(wanted.tokenizer,
                          data_tokenizer(config, options.any_tokenizer, watchdog));
  return wanted;
}

// What the run has had so far, where the configuration does not say otherwise: the number of
// threads and the order of additions, which may change last bits, and the keys of kept_keys.h.
void keep_what_it_had(const ResumePoint& point, config::Resolved& resolved) {
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
    if (!said.empty()) std::cerr << said << "\n";
}

// Where to continue, with `wanted` adjusted for that. The request is removed from the
// configuration, which is kept with the run: starting another run from it does not mean resuming
// this one.
Result<ResumePoint> resume_point(const RunFolder& folder, const TrainOptions& options,
                                 const ResumeCommand& command, Wanted& wanted) {
  config::Config& config = wanted.resolved.config;
  SLUICE_ASSIGN_OR_RETURN(ResumePoint point, find_resume_point(folder, config.run, command));
  config.run.later_checkpoints = config::LaterCheckpoints::kRefuse;
  config.run.resume.clear();
  if (!point.checkpoint) {
    if (wanted.entry == RunFolder::Entry::kResume)
      std::cerr << "there is no checkpoint in " << folder.file("checkpoints")
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
  keep_what_it_had(point, wanted.resolved);
  SLUICE_ASSIGN_OR_RETURN(wanted.tokenizer,
                          check_resumed_data(folder.queue(), {.checkpoint = point.checkpoint->path,
                                                              .of_data = wanted.tokenizer,
                                                              .any = options.any_tokenizer}));
  return point;
}

// Says what the run is about to do; an error where that would have no effect.
Status check_steps(const Wanted& wanted, const RunFolder& folder, const ResumePoint& from,
                   const std::string& config_file) {
  const config::Config& config = wanted.resolved.config;
  std::cerr << weights_text(config, from, config_file) << config::format_autos(wanted.resolved);
  SLUICE_RETURN_IF_ERROR(report_changes(wanted.resolved, from));
  const std::int64_t steps = config.run.steps;
  const std::int64_t done = from.checkpoint ? from.checkpoint->step : 0;
  if (done >= steps) {
    std::cerr << "all " << steps << " steps are done: --steps N continues to step N\n";
  }
  SLUICE_RETURN_IF_ERROR(check_flops_profile(config, done));
  if (!wanted.trace) return {};
  SLUICE_RETURN_IF_ERROR(check_traced_steps(*wanted.trace, done, steps));
  if (std::filesystem::exists(folder.file("trace.json")))
    std::cerr << folder.file("trace.json") << " will be replaced\n";
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

// What was typed, with a different --resume; an option in `more` replaces the same one.
std::string resume_command(const CLI::App& command, const std::string& resume,
                           const std::string& more) {
  const std::string other = more.substr(0, more.find(' '));
  return same_command(command, {"--resume", "--set-aside-later", other}) + " --resume" +
         (resume.empty() ? "" : "=" + shell_word(resume)) + (more.empty() ? "" : " " + more);
}

// The command that begins again where this one did, once the folder is the run's.
std::string begin_again(const CLI::App& command, RunFolder::Entry entry, const ResumePoint& from) {
  if (entry == RunFolder::Entry::kResume)
    return resume_command(command, from.checkpoint ? from.checkpoint->path : "", "");
  return same_command(command, {"--overwrite"}) + " --overwrite";
}

struct SetUp {
  std::unique_ptr<TrainingRun> run;
  std::unique_ptr<engine::RunCheckpoints> checkpoints;  // null: none are wanted
  std::optional<PlannedStep> planned;
  std::vector<TierUse> tiers;
  engine::SavePlan saves;
};

// kCancelled: interrupted.
Result<SetUp> set_up(const Wanted& wanted, const RunFolder& folder, const ResumePoint& from,
                     const std::string& weights, const ResumeCommand& command,
                     const Interrupt& interrupt, engine::Communicator* link) {
  SetUp made;
  if (link != nullptr)
    SLUICE_RETURN_IF_ERROR(
        hand_out(*link, wanted.resolved.config, folder, from.checkpoint, wanted.trace));
  SLUICE_ASSIGN_OR_RETURN(const std::int64_t there, count_checkpoints(folder, from));
  bool reads_checkpoint = false;
  auto run = set_up_run(wanted.resolved.config, from.checkpoint,
                        {.files = {.complete_checkpoints = there,
                                   .weights = weights,
                                   .weight_dtype = wanted.weight_dtype},
                         .planned = &made.planned,
                         .with_what_ifs = true,
                         .tiers = &made.tiers,
                         .saves = &made.saves,
                         .interrupt = &interrupt,
                         .reads_checkpoint = &reads_checkpoint,
                         .link = link});
  if (!run.ok() && reads_checkpoint)
    return with_older_one(std::move(run).error(), folder, *from.checkpoint, command);
  if (!run.ok()) return std::move(run).error();
  made.run = *std::move(run);
  if (wanted.trace) made.run->trace().start(*wanted.trace);
  SLUICE_ASSIGN_OR_RETURN(made.checkpoints, make_checkpoints(*made.run, made.saves, folder));
  if (interrupt.requested()) return Error(ErrorCode::kCancelled, "interrupted");
  return made;
}

// Of the first rank, or the only one. Where it ends with a code that is not 0 and has said why,
// `reason` is what to tell the others.
Result<int> run(const TrainOptions& options, const CLI::App& app,
                const engine::RankContext& context, engine::Communicator* link,
                aio::IoWatchdog& watchdog, std::string& reason) {
  const ResumeCommand command = [&](const std::string& name, const std::string& more) {
    return resume_command(app, name, more);
  };
  RunEvents events;
  SLUICE_ASSIGN_OR_RETURN(Wanted wanted, check(options, context, watchdog));
  const config::Config& config = wanted.resolved.config;
  const Interrupt interrupt(kTrainInterruptNotice);
  fail_writes_without_reader();
  SLUICE_ASSIGN_OR_RETURN(const RunFolder folder,
                          RunFolder::open(config.run.dir, wanted.entry, watchdog));
  SLUICE_ASSIGN_OR_RETURN(const ResumePoint from, resume_point(folder, options, command, wanted));
  deal_threads(context, wanted.resolved.config);
  SLUICE_RETURN_IF_ERROR(check_steps(wanted, folder, from, options.config.file));
  auto made = set_up(wanted, folder, from, options.save_weights, command, interrupt, link);
  if (!made.ok() && made.error().code() == ErrorCode::kCancelled && interrupt.requested()) {
    std::cerr << "interrupted before the first step: nothing was changed\n";
    return kInterruptedExitCode;
  }
  if (!made.ok()) return std::move(made).error();
  SLUICE_ASSIGN_OR_RETURN(const auto log, take_folder(folder, {.entry = wanted.entry,
                                                               .from = from,
                                                               .resolved = wanted.resolved,
                                                               .tokenizer = wanted.tokenizer}));
  const auto& planned = made->planned;
  events.begin(folder.file("events.jsonl"), {.run = *made->run,
                                             .resolved = wanted.resolved,
                                             .tiers = made->tiers,
                                             .planned = planned ? &*planned : nullptr,
                                             .ranks = context.world});
  TrainSession session({.run = made->run.get(),
                        .log = log.get(),
                        .checkpoints = made->checkpoints.get(),
                        .events = &events,
                        .ranks = context.world},
                       made->saves, config.run.steps);
  if (planned) {
    session.compare_with_plan(planned->step_s);
    session.compare_with_limit(planned->machine.speeds.gpu_matmul_flops_per_s);
  }
  const TrainWork work{.session = session,
                       .interrupt = interrupt,
                       .folder = folder,
                       .run = *made->run,
                       .events = events,
                       .trace = wanted.trace,
                       .weights = options.save_weights,
                       .weight_dtype = wanted.weight_dtype,
                       .planned = planned ? &*planned : nullptr,
                       .again = begin_again(app, wanted.entry, from)};
  const Result<int> ended = train_and_finish(work);
  if (!ended.ok()) {
    reason = ended.error().message();
    // Before the run goes, which would tell the others that all is done.
    if (link != nullptr) link->abort(reason);
  }
  return at_work(ended);
}

Result<int> run_rank(const TrainOptions& options, const CLI::App& app, aio::IoWatchdog& watchdog) {
  SLUICE_ASSIGN_OR_RETURN(const engine::Launch launch, launch_of_this_process());
  SLUICE_ASSIGN_OR_RETURN(const auto ended, start_ranks(options.ranks, launch));
  if (ended) return *ended;
  see_own_gpu(launch.context);
  const int listener = begin_as_rank();
  SLUICE_ASSIGN_OR_RETURN(const auto link, meet(launch, listener));
  if (launch.context.rank > 0) return follow_first_rank(launch.context, *link, watchdog);
  const auto failed = [&](Error error) {
    if (link) link->abort(error.message());
    return error;
  };
  try {
    std::string reason = "the first rank has ended";
    auto done = run(options, app, launch.context, link.get(), watchdog, reason);
    if (!done.ok()) return failed(std::move(done).error());
    if (link && *done != 0) link->abort(reason);
    return done;
  } catch (const std::exception& error) {
    return failed(error_of(error));
  }
}

}  // namespace

Command add_train_command(CLI::App& sluice) {
  CLI::App* const command =
      sluice.add_subcommand("train", "Train a transformer whose state may be larger than memory");
  command->footer(
      "  sluice train configs/demo.json --out runs/demo\n"
      "  sluice train configs/demo.json --out runs/demo --resume --steps 400\n"
      "  sluice train configs/qwen3_0.6b.json --set model.path=Qwen3-0.6B --out runs/qwen\n"
      "  sluice train configs/demo.json --out runs/nvme --steps 100 \\\n"
      "      --set zero_optimization.offload_param.device=nvme --set "
      "budget.nvme_paths='[\"/nvme\"]'\n"
      "  sluice train --deepspeed ds_config.json --set model.preset=gpt2-xl \\\n"
      "      --set data.train='[\"train.bin\"]' --out runs/xl\n"
      "DIR gets config.json (resolved; paths are absolute, or relative to DIR where they lie in "
      "it),\n"
      "tokenizer/, metrics.jsonl (one line per step), checkpoints/ and, with --trace, trace.json. "
      "It\n"
      "may be moved or copied, and DIR/config.json is a CONFIG whose run is in DIR.\n"
      "Ctrl-C, SIGTERM or SIGHUP finishes the step, saves it and exits with 0; a second Ctrl-C or\n"
      "SIGTERM stops at once. Exit code 1: a checkpoint, metrics or another file could not be "
      "written.");
  const auto options = std::make_shared<TrainOptions>();
  add_config_options(*command, options->config);
  command->add_option("--out", options->out, "The run's directory (run.dir)");
  auto* const overwrite = command->add_flag("--overwrite", options->overwrite,
                                            "Replaces the run in a directory that is not empty");
  auto* const resume =
      command
          ->add_flag("--resume{newest}", options->resume,
                     "Continues from the newest checkpoint in DIR, or with --resume=NAME from that "
                     "one (run.resume); where there is none yet, starts at step 0")
          ->multi_option_policy(CLI::MultiOptionPolicy::Throw)
          ->excludes(overwrite);
  command
      ->add_flag("--set-aside-later", options->set_aside_later,
                 "With --resume=NAME: sets the checkpoints after that one aside, in "
                 "DIR/checkpoints/set-aside-at-NAME (run.later_checkpoints)")
      ->needs(resume);
  auto* const steps = command->add_option("--steps", options->steps, "Optimizer steps (run.steps)")
                          ->type_name("N")
                          ->check(at_least(1));
  command
      ->add_option("--epochs", options->epochs,
                   "Passes over the training data instead, fractions too (run.epochs)")
      ->type_name("N")
      ->check(above_zero())
      ->excludes(steps);
  command
      ->add_option("--init-from", options->init_from,
                   "Begins with the weights of a safetensors file or folder (model.init_from)")
      ->excludes(resume);
  auto* const save = command->add_option("--save-weights", options->save_weights,
                                         "Writes the final weights to this .safetensors file");
  command->add_option("--dtype", options->dtype, "Of the saved weights: fp32 (default), bf16, fp16")
      ->needs(save);
  command->add_flag("--force", options->force, "Replaces the file of --save-weights")->needs(save);
  add_any_tokenizer(*command, options->any_tokenizer);
  add_rank_options(*command, options->ranks);
  command->add_option("--trace", options->trace,
                      "FIRST:LAST: a timeline of these steps, a track for each resource");
  return [options, command](aio::IoWatchdog& watchdog) -> Result<int> {
    return run_rank(*options, *command, watchdog);
  };
}

}  // namespace sluice::tools
