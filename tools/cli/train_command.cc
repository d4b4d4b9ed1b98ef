#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "aio/clock.h"
#include "aio/drive_names.h"
#include "engine/checkpoint/checkpoint_manifest.h"
#include "engine/observe/metrics_log.h"
#include "engine/train/run_checkpoints.h"
#include "engine/train/train_error.h"
#include "engine/train/training_run.h"
#include "tools/cli/command.h"
#include "tools/cli/config_options.h"
#include "tools/cli/run_folder.h"
#include "tools/cli/run_setup.h"
#include "tools/cli/train_session.h"
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
  std::int64_t steps = -1;
  double epochs = -1;
  bool overwrite = false;
  std::string resume;
  std::string trace;
  std::string save_weights;
  std::string dtype = "fp32";
  std::string init_from;
};

// --out DIR and the like are other words for keys.
void add_overrides(const Options& options, ConfigOptions& config) {
  const auto add = [&](const std::string& key, const std::string& value) {
    config.overrides.push_back(key + "=" + value);
  };
  if (!options.out.empty()) add("run.dir", options.out);
  if (options.steps >= 0) add("run.steps", std::to_string(options.steps));
  if (!options.init_from.empty()) add("model.init_from", options.init_from);
  if (!options.resume.empty()) add("run.resume", options.resume);
}

RunFolder::Entry entry_of(const Options& options, const config::Config& config) {
  if (!config.run.resume.empty()) return RunFolder::Entry::kResume;
  return options.overwrite ? RunFolder::Entry::kOverwrite : RunFolder::Entry::kNew;
}

Status write_config(const std::string& path, const config::Config& config) {
  std::ofstream file(path);
  file << config::to_json(config) << "\n";
  file.close();
  if (file.fail()) return Error(ErrorCode::kIo, path + " cannot be written");
  return {};
}

Result<std::int64_t> steps_of(const Options& options, const TrainingRun& run) {
  if (options.epochs < 0) {
    if (run.config().run.steps > 0) return run.config().run.steps;
    return Error(ErrorCode::kInvalidArgument,
                 "how long to train is not said: --steps N, --epochs N, or run.steps in the "
                 "configuration");
  }
  const double steps =
      options.epochs * static_cast<double>(run.samples_per_epoch()) /
      static_cast<double>(run.config().batch.micro * run.config().batch.accumulation);
  return std::max<std::int64_t>(1, static_cast<std::int64_t>(std::ceil(steps)));
}

// The checkpoint to go on from. A run that is to have as many threads as there are cores gets those
// that it had: their number may change last bits. The wish is taken out of `config`, which is kept
// with the run: whoever starts another one from it does not mean to resume that.
Result<std::optional<engine::CheckpointEntry>> find_checkpoint(const RunFolder& folder,
                                                               config::Config& config) {
  if (config.run.resume.empty()) return std::optional<engine::CheckpointEntry>();
  const std::string wanted = std::exchange(config.run.resume, {});
  SLUICE_ASSIGN_OR_RETURN(auto found, folder.find(wanted));
  if (!found) {
    std::cerr << "there is no checkpoint in " << folder.file("checkpoints")
              << " yet: starting at step 0\n";
    return found;
  }
  if (config.run.cpu_threads == 0) {
    SLUICE_ASSIGN_OR_RETURN(const auto manifest,
                            engine::read_checkpoint_manifest(folder.queue(), found->path));
    config.run.cpu_threads = manifest.state.run.cpu_threads;
  }
  return found;
}

Result<std::unique_ptr<engine::RunCheckpoints>> make_checkpoints(TrainingRun& run) {
  const config::Run& wanted = run.config().run;
  if (wanted.checkpoint_every_steps == 0 && !wanted.checkpoint_at_end)
    return std::unique_ptr<engine::RunCheckpoints>();
  return engine::RunCheckpoints::create(
      run, *run.drives().saves,
      {.directory = wanted.dir,
       .keep_last = static_cast<int>(wanted.keep_last_checkpoints),
       .background = run.plan().background_checkpoints});
}

// What is wanted once the last step is done.
Status finish(const Options& options, TrainingRun& run, const RunFolder& folder,
              engine::DType dtype) {
  if (!options.trace.empty()) {
    run.trace().end_steps(SteadyClock().now_ns());
    SLUICE_RETURN_IF_ERROR(run.trace().write_json(folder.file("trace.json")));
    std::cout << "trace: " << folder.file("trace.json")
              << " (open it in ui.perfetto.dev, or give it to tools/trace_summary)\n";
  }
  if (options.save_weights.empty()) return {};
  SLUICE_RETURN_IF_ERROR(run.save_weights(options.save_weights, dtype));
  std::cout << "weights: " << options.save_weights << "\n";
  return {};
}

// For a run that broke off in a step: which drives its state was on, and where it can go on.
std::string after_a_failure(const RunFolder& folder, const config::Config& config) {
  std::set<std::string> drives;
  for (const auto& paths : {config.param_nvme_paths(), config.optimizer_nvme_paths()})
    for (const std::string& path : paths) drives.insert(path + " on " + aio::describe_drive(path));
  std::string text;
  for (const std::string& drive : drives)
    text += (text.empty() ? ". Its state was in " : ", ") + drive;
  const auto newest = folder.find("newest");
  if (newest.ok() && *newest)
    return text + ". The newest checkpoint is " + (*newest)->path + ": --resume goes on from there";
  return text + ". There is no checkpoint yet";
}

Result<TrainSession::End> train(TrainSession& session, const Interrupt& interrupt,
                                const RunFolder& folder, const config::Config& config) {
  try {
    auto end = session.train(interrupt);
    if (end.ok()) return end;
    return std::move(end).error().with_suffix(after_a_failure(folder, config));
  } catch (const engine::TrainError& error) {
    throw engine::TrainError(error.what() + after_a_failure(folder, config));
  }
}

Result<int> run(const Options& options, aio::IoWatchdog& watchdog) {
  ConfigOptions config_options = options.config;
  add_overrides(options, config_options);
  SLUICE_ASSIGN_OR_RETURN(const config::Resolved resolved, resolve(config_options));
  config::Config config = resolved.config;
  watchdog.set_limit_s(config.run.io_watchdog_s);
  SLUICE_ASSIGN_OR_RETURN(const engine::DType dtype, weight_dtype(options.dtype));
  std::optional<engine::TraceLog::Options> trace;
  if (!options.trace.empty()) {
    SLUICE_ASSIGN_OR_RETURN(trace, engine::TraceLog::parse_steps(options.trace));
  }
  if (config.run.dir.empty()) {
    return Error(ErrorCode::kInvalidArgument,
                 "where the run's files shall lie is not said: --out DIR, or run.dir");
  }
  const Interrupt interrupt(kInterruptNotice);
  SLUICE_ASSIGN_OR_RETURN(const RunFolder folder,
                          RunFolder::open(config.run.dir, entry_of(options, config), watchdog));
  SLUICE_ASSIGN_OR_RETURN(const auto checkpoint, find_checkpoint(folder, config));
  auto made = set_up_run(config, checkpoint);
  if (!made.ok() && checkpoint)
    return folder.with_advice(std::move(made).error(), checkpoint->step);
  if (!made.ok()) return std::move(made).error();
  const std::unique_ptr<TrainingRun> run = *std::move(made);
  SLUICE_ASSIGN_OR_RETURN(const std::int64_t steps, steps_of(options, *run));
  const std::int64_t done = run->trainer().state().global_step;
  if (done >= steps) {
    std::cerr << "all " << steps << " steps are done: --steps N goes on to step N\n";
  }
  SLUICE_RETURN_IF_ERROR(write_config(folder.file("config.json"), config));
  SLUICE_ASSIGN_OR_RETURN(const auto log,
                          engine::MetricsLog::resume(folder.file("metrics.jsonl"), done));
  if (trace) run->trace().start(*trace);
  SLUICE_ASSIGN_OR_RETURN(const auto checkpoints, make_checkpoints(*run));

  TrainSession session({.run = run.get(), .log = log.get(), .checkpoints = checkpoints.get()},
                       steps);
  SLUICE_ASSIGN_OR_RETURN(const TrainSession::End end, train(session, interrupt, folder, config));
  session.print_totals();
  SLUICE_RETURN_IF_ERROR(finish(options, *run, folder, dtype));
  if (session.failed_saves() > 0) {
    std::cerr << "sluice: " << session.failed_saves()
              << " checkpoints are missing, because the disk was full\n";
    return kExitNotSaved;
  }
  if (end == TrainSession::End::kCompleted) return 0;
  if (!checkpoints) return kInterruptedExitCode;
  std::cerr << "interrupted; --resume goes on from here\n";
  return 0;
}

}  // namespace

Command add_train_command(CLI::App& sluice) {
  CLI::App* const command =
      sluice.add_subcommand("train", "Trains a GPT whose state may be larger than memory");
  command->footer(
      "  sluice train configs/demo.json --out runs/demo\n"
      "  sluice train configs/demo.json --out runs/demo --resume --steps 400\n"
      "  sluice train configs/demo.json --out runs/nvme --steps 100 \\\n"
      "      --set zero_optimization.offload_param.device=nvme --set "
      "budget.nvme_paths='[\"/nvme\"]'\n"
      "  sluice train --deepspeed ds_config.json --set model.preset=gpt2-xl \\\n"
      "      --set data.train='[\"train.bin\"]' --out runs/xl\n"
      "DIR gets config.json (resolved), metrics.jsonl (a line a step), checkpoints/ and, with "
      "--trace, trace.json.\n"
      "Ctrl-C or SIGTERM: the step is finished and saved, exit code 0. Exit code 1 where a full "
      "disk "
      "cost a checkpoint.");
  const auto options = std::make_shared<Options>();
  add_config_options(*command, options->config);
  command->add_option("--out", options->out, "The run's directory (run.dir)");
  auto* const overwrite = command->add_flag("--overwrite", options->overwrite,
                                            "Replaces the run in a directory that is not empty");
  command
      ->add_flag("--resume{newest}", options->resume,
                 "Goes on from the newest checkpoint in DIR, or with --resume=NAME from that one "
                 "(run.resume); where there is none yet, starts at step 0")
      ->excludes(overwrite);
  auto* const steps = command->add_option("--steps", options->steps, "Optimizer steps (run.steps)");
  command->add_option("--epochs", options->epochs, "Passes over the training data instead")
      ->excludes(steps);
  command->add_option("--init-from", options->init_from,
                      "Begins with the weights of a safetensors file or folder (model.init_from)");
  command->add_option("--save-weights", options->save_weights,
                      "Writes the final weights to this .safetensors file");
  command->add_option("--dtype", options->dtype,
                      "Of the saved weights: fp32 (default), bf16, fp16");
  command->add_option("--trace", options->trace,
                      "FIRST:LAST: a timeline of these steps, a track for each resource");
  return [options](aio::IoWatchdog& watchdog) { return run(*options, watchdog); };
}

}  // namespace sluice::tools
