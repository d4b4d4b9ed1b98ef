#include <CLI/CLI.hpp>
#include <filesystem>
#include <iostream>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "aio/io_watchdog.h"
#include "aio/real_file_system.h"
#include "aio/small_file.h"
#include "engine/checkpoint/checkpoint_manifest.h"
#include "engine/config/decay_of_stored.h"
#include "engine/config/report.h"
#include "engine/config/stored_config.h"
#include "engine/observe/metrics_log.h"
#include "engine/train/nvme_folders.h"
#include "engine/train/run_checkpoints.h"
#include "engine/train/train_error.h"
#include "engine/train/training_run.h"
#include "tools/cli/command.h"
#include "tools/cli/config_options.h"
#include "tools/cli/open_queue.h"
#include "tools/cli/option_checks.h"
#include "tools/cli/plan_here.h"
#include "tools/cli/resume_point.h"
#include "tools/cli/run_folder.h"
#include "tools/cli/run_setup.h"
#include "tools/cli/run_tokenizer.h"
#include "tools/cli/same_command.h"
#include "tools/cli/schedule_notice.h"
#include "tools/cli/train_checks.h"
#include "tools/cli/train_session.h"
#include "tools/cli/train_work.h"
#include "tools/cli/weight_dtype.h"
#include "tools/support/interrupt.h"

namespace sluice::tools {
namespace {

using engine::TrainingRun;

constexpr const char* kInterruptNotice =
    "\nfinishing the step and saving it; once more stops at once, and goes on from the last "
    "checkpoint\n";

struct Options {
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
};

// --out DIR and the like are other words for keys.
void add_overrides(const Options& options, ConfigOptions& config) {
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

RunFolder::Entry entry_of(const Options& options, const config::Config& config) {
  if (!config.run.resume.empty()) return RunFolder::Entry::kResume;
  return options.overwrite ? RunFolder::Entry::kOverwrite : RunFolder::Entry::kNew;
}

// Whole or not at all: on a full disk the one of a resumed run stays as it is.
Status write_config(const RunFolder& folder, const config::Resolved& resolved) {
  std::error_code error;
  const std::string here = std::filesystem::current_path(error).string();
  SLUICE_ASSIGN_OR_RETURN(const std::string text, config::run_folder_json(resolved, here));
  return aio::write_small_file(folder.queue(), folder.file("config.json"), text + "\n");
}

// Where to go on. A run that is to have as many threads as there are cores gets those that it had:
// their number may change last bits. The wish is taken out of the configuration, which is kept with
// the run: whoever starts another one from it does not mean to resume that.
Result<ResumePoint> resume_point(const RunFolder& folder, config::Resolved& resolved,
                                 const ResumeCommand& command) {
  config::Config& config = resolved.config;
  SLUICE_ASSIGN_OR_RETURN(ResumePoint point, find_resume_point(folder, config.run, command));
  config.run.later_checkpoints = config::LaterCheckpoints::kRefuse;
  const bool wanted = !std::exchange(config.run.resume, {}).empty();
  if (wanted && !point.checkpoint) {
    std::cerr << "there is no checkpoint in " << folder.file("checkpoints")
              << " yet: starting at step 0\n";
  }
  if (!point.checkpoint) return point;
  SLUICE_ASSIGN_OR_RETURN(const auto manifest,
                          engine::read_checkpoint_manifest(folder.queue(), point.checkpoint->path));
  const engine::CheckpointState& stored = manifest.state;
  if (config.run.cpu_threads == 0) config.run.cpu_threads = stored.run.cpu_threads;
  if (!stored.run.imported()) {
    const std::string said = config::keep_decayed_parameters(stored.configuration, resolved);
    if (!said.empty()) std::cerr << said << "\n";
  }
  std::cerr << changes_text(stored, config);
  return point;
}

// Once nothing can be refused any more: what the run replaces or leaves behind is moved away, or,
// with --overwrite, removed.
Result<std::unique_ptr<engine::MetricsLog>> take_folder(const Options& options,
                                                        const RunFolder& folder,
                                                        const ResumePoint& point,
                                                        std::int64_t done) {
  if (options.overwrite) {
    SLUICE_RETURN_IF_ERROR(folder.clear());
  }
  SLUICE_ASSIGN_OR_RETURN(const std::string cut_path, make_way(folder, point));
  SLUICE_ASSIGN_OR_RETURN(auto log, engine::MetricsLog::resume(folder.file("metrics.jsonl"),
                                                               point.own ? done : 0, cut_path));
  if (log->cut_lines() > 0) {
    std::cerr << "metrics of later steps, " << log->cut_lines() << " lines, are now in "
              << log->cut_path() << "\n";
  }
  return log;
}

Result<std::unique_ptr<engine::RunCheckpoints>> make_checkpoints(TrainingRun& run,
                                                                 const RunFolder& folder) {
  const config::Run& wanted = run.config().run;
  if (!run.plan().saves.saves()) return std::unique_ptr<engine::RunCheckpoints>();
  return engine::RunCheckpoints::create(
      run, *run.drives().saves,
      {.directory = wanted.dir,
       .keep_last = static_cast<int>(wanted.keep_last_checkpoints),
       .background = run.plan().background_checkpoints,
       .check_directory = [&folder] { return folder.check_there(); }});
}

// Those that a run goes on after, or that are there before it begins.
Result<std::int64_t> count_checkpoints(const RunFolder& folder,
                                       const std::optional<engine::CheckpointEntry>& from) {
  SLUICE_ASSIGN_OR_RETURN(const auto list, folder.checkpoints().list());
  return std::count_if(list.begin(), list.end(), [&](const engine::CheckpointEntry& entry) {
    return entry.complete() && (!from || entry.step <= from->step);
  });
}

// What was typed, with another --resume; an option in `more` takes the place of the same one.
std::string resume_command(const CLI::App& command, const std::string& resume,
                           const std::string& more) {
  const std::string other = more.substr(0, more.find(' '));
  return same_command(command, {"--resume", "--set-aside-later", other}) + " --resume" +
         (resume.empty() ? "" : "=" + shell_word(resume)) + (more.empty() ? "" : " " + more);
}

// Before the run's folder is opened, which may clear it.
Result<engine::TokenizerFiles> data_tokenizer(const config::Config& config, bool any,
                                              aio::IoWatchdog& watchdog) {
  SLUICE_ASSIGN_OR_RETURN(const FileQueue files, open_queue(watchdog));
  return check_training_data(*files.queue, config, any);
}

Result<int> run(const Options& options, const ResumeCommand& command, aio::IoWatchdog& watchdog) {
  ConfigOptions config_options = options.config;
  add_overrides(options, config_options);
  SLUICE_ASSIGN_OR_RETURN(config::Resolved resolved, resolve(config_options, LookAtData::kYes));
  config::Config& config = resolved.config;
  watchdog.set_limit_s(config.run.io_watchdog_s);
  SLUICE_ASSIGN_OR_RETURN(const engine::DType dtype, weight_dtype(options.dtype));
  std::optional<engine::TraceLog::Options> trace;
  if (!options.trace.empty()) {
    SLUICE_ASSIGN_OR_RETURN(trace, engine::TraceLog::parse_steps(options.trace));
  }
  if (config.run.dir.empty()) {
    SLUICE_ASSIGN_OR_RETURN(config.run.dir, run_directory_of(options.config));
  }
  if (config.run.dir.empty()) {
    return Error(ErrorCode::kInvalidArgument,
                 "where to put the run's files is not said: --out DIR, or run.dir");
  }
  aio::RealFileSystem files;
  SLUICE_RETURN_IF_ERROR(engine::require_nvme_folders(config, files));
  SLUICE_RETURN_IF_ERROR(
      check_weights_output({.path = options.save_weights, .replaces = options.force}, config));
  SLUICE_RETURN_IF_ERROR(engine::RunData::check(config));
  if (config.run.resume.empty()) SLUICE_RETURN_IF_ERROR(check_init_from(config));
  SLUICE_ASSIGN_OR_RETURN(auto tokenizer, data_tokenizer(config, options.any_tokenizer, watchdog));
  const bool begins = config.run.resume.empty();
  const Interrupt interrupt(kInterruptNotice);
  fail_writes_without_reader();
  SLUICE_ASSIGN_OR_RETURN(const RunFolder folder,
                          RunFolder::open(config.run.dir, entry_of(options, config), watchdog));
  SLUICE_ASSIGN_OR_RETURN(const ResumePoint point, resume_point(folder, resolved, command));
  const auto& checkpoint = point.checkpoint;
  if (!checkpoint && !begins) {
    SLUICE_RETURN_IF_ERROR(check_init_from(config));
    SLUICE_ASSIGN_OR_RETURN(
        tokenizer, check_first_data(folder.queue(), config, tokenizer, options.any_tokenizer));
  }
  if (checkpoint) {
    SLUICE_ASSIGN_OR_RETURN(tokenizer,
                            check_resumed_data(folder.queue(), {.checkpoint = checkpoint->path,
                                                                .of_data = tokenizer,
                                                                .any = options.any_tokenizer}));
  }
  std::cerr << weights_text(config, checkpoint, options.config.file)
            << config::format_autos(resolved);
  SLUICE_RETURN_IF_ERROR(tell_schedule(resolved, folder, checkpoint));
  const std::int64_t steps = config.run.steps;
  const std::int64_t done = checkpoint ? checkpoint->step : 0;
  if (done >= steps) {
    std::cerr << "all " << steps << " steps are done: --steps N goes on to step N\n";
  }
  if (trace) SLUICE_RETURN_IF_ERROR(check_traced_steps(*trace, done, steps));
  if (trace && std::filesystem::exists(folder.file("trace.json")))
    std::cerr << folder.file("trace.json") << " will be replaced\n";
  SLUICE_ASSIGN_OR_RETURN(const std::int64_t there, count_checkpoints(folder, checkpoint));
  std::optional<PlannedStep> planned;
  auto made = set_up_run(config, checkpoint,
                         {.files = {.complete_checkpoints = there,
                                    .weights = options.save_weights,
                                    .weight_dtype = dtype},
                          .planned = &planned});
  if (!made.ok() && checkpoint &&
      made.error().message().find(checkpoint->path) != std::string::npos)
    return with_older_one(std::move(made).error(), folder, *checkpoint, command);
  if (!made.ok()) return std::move(made).error();
  const std::unique_ptr<TrainingRun> run = *std::move(made);
  if (trace) run->trace().start(*trace);
  SLUICE_ASSIGN_OR_RETURN(const auto checkpoints, make_checkpoints(*run, folder));
  SLUICE_ASSIGN_OR_RETURN(const auto log, take_folder(options, folder, point, done));
  SLUICE_RETURN_IF_ERROR(write_config(folder, resolved));
  SLUICE_RETURN_IF_ERROR(keep_run_tokenizer(folder.queue(), config, tokenizer, done + 1));

  TrainSession session({.run = run.get(), .log = log.get(), .checkpoints = checkpoints.get()},
                       steps);
  if (planned) session.compare_with_plan(planned->step_s);
  const TrainWork work{.session = session,
                       .interrupt = interrupt,
                       .folder = folder,
                       .run = *run,
                       .traces = trace.has_value(),
                       .weights = options.save_weights,
                       .weight_dtype = dtype,
                       .planned = planned ? &*planned : nullptr};
  return at_work(train_and_finish(work));
}

}  // namespace

Command add_train_command(CLI::App& sluice) {
  CLI::App* const command =
      sluice.add_subcommand("train", "Train a GPT whose state may be larger than memory");
  command->footer(
      "  sluice train configs/demo.json --out runs/demo\n"
      "  sluice train configs/demo.json --out runs/demo --resume --steps 400\n"
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
  const auto options = std::make_shared<Options>();
  add_config_options(*command, options->config);
  command->add_option("--out", options->out, "The run's directory (run.dir)");
  auto* const overwrite = command->add_flag("--overwrite", options->overwrite,
                                            "Replaces the run in a directory that is not empty");
  auto* const resume =
      command
          ->add_flag("--resume{newest}", options->resume,
                     "Goes on from the newest checkpoint in DIR, or with --resume=NAME from that "
                     "one (run.resume); where there is none yet, starts at step 0")
          ->multi_option_policy(CLI::MultiOptionPolicy::Throw)
          ->excludes(overwrite);
  command
      ->add_flag("--set-aside-later", options->set_aside_later,
                 "With --resume=NAME: keeps the checkpoints after that one aside, in "
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
  command->add_option("--trace", options->trace,
                      "FIRST:LAST: a timeline of these steps, a track for each resource");
  return [options, command](aio::IoWatchdog& watchdog) {
    const auto resumed = [command](const std::string& name, const std::string& more) {
      return resume_command(*command, name, more);
    };
    return run(*options, resumed, watchdog);
  };
}

}  // namespace sluice::tools
