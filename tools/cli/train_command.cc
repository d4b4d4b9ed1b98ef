#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <memory>
#include <optional>

#include "aio/log.h"
#include "aio/units.h"
#include "bench/interrupt.h"
#include "engine/observe/metrics_log.h"
#include "engine/observe/process_memory.h"
#include "engine/observe/run_totals.h"
#include "engine/observe/train_progress.h"
#include "engine/train/preflight.h"
#include "engine/train/training_run.h"
#include "tools/cli/command.h"
#include "tools/cli/config_options.h"
#include "tools/cli/run_setup.h"

namespace sluice::tools {
namespace {

using engine::StepMetrics;
using engine::TrainingRun;

struct Options {
  ConfigOptions config;
  std::string out;
  std::int64_t steps = -1;
  double epochs = -1;
  bool overwrite = false;
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
}

Result<engine::DType> weight_dtype(const std::string& text) {
  if (text == "fp32") return engine::DType::kF32;
  if (text == "bf16") return engine::DType::kBF16;
  if (text == "fp16") return engine::DType::kF16;
  return Error(ErrorCode::kInvalidArgument,
               "--dtype is \"" + text + "\"; it must be fp32, bf16 or fp16");
}

// Somebody's results are not overwritten by accident.
Status prepare_directory(const std::string& directory, bool overwrite) {
  std::error_code error;
  std::filesystem::create_directories(directory, error);
  if (error) {
    return Error(ErrorCode::kPermission,
                 "the run's directory " + directory + " cannot be made: " + error.message());
  }
  if (std::filesystem::is_empty(directory, error)) return {};
  if (!overwrite) {
    return Error(ErrorCode::kAlreadyExists,
                 directory +
                     " is not empty: choose another --out, or give --overwrite to replace "
                     "the run that is there");
  }
  for (const char* name : {"metrics.jsonl", "trace.json", "config.json"})
    std::filesystem::remove(std::filesystem::path(directory) / name, error);
  return {};
}

Status write_config(const std::string& path, const config::Config& config) {
  std::ofstream file(path);
  file << config::to_json(config) << "\n";
  file.close();
  if (file.fail()) return Error(ErrorCode::kIo, path + " cannot be written");
  return {};
}

class Session {
 public:
  Session(const Options& options, TrainingRun& run, engine::MetricsLog& log, std::int64_t steps)
      : options_(options),
        run_(run),
        log_(log),
        steps_(steps),
        progress_(
            {.total_steps = steps,
             .plain_every_steps = std::max<std::int64_t>(run.config().run.log_every_steps, 1)}) {}

  // false: interrupted.
  Result<bool> train(const bench::Interrupt& interrupt) {
    for (std::int64_t step = 1; step <= steps_; ++step) {
      SLUICE_RETURN_IF_ERROR(one_step(step));
      if (interrupt.requested()) return false;
    }
    return true;
  }

  void finish() {
    progress_.clear();
    std::cout << totals_.closing_table();
  }

 private:
  Status one_step(std::int64_t step) {
    const SteadyClock clock;
    const std::int64_t begin_ns = clock.now_ns();
    run_.trace().begin_step(step, begin_ns);
    const TrainingRun::Traffic before = run_.traffic();
    const engine::StepOutcome outcome = run_.step();
    const std::int64_t took_ns = clock.now_ns() - begin_ns;
    StepMetrics metrics = metrics_of(step, outcome, took_ns);
    count_traffic(before, run_.traffic(), metrics);
    if (!outcome.skipped) metrics.unit_hashes = run_.trainer().unit_hashes();
    if (evaluates_after(step)) {
      progress_.clear();
      metrics.val_loss = run_.evaluate();
      std::cerr << "step " << step << "  validation loss " << *metrics.val_loss << "\n";
    }
    totals_.add(metrics);
    progress_.update(metrics);
    return log_.append(metrics);
  }

  bool evaluates_after(std::int64_t step) const {
    const std::int64_t every = run_.config().run.eval_every_steps;
    return run_.has_validation() && (step == steps_ || (every > 0 && step % every == 0));
  }

  StepMetrics metrics_of(std::int64_t step, const engine::StepOutcome& outcome,
                         std::int64_t took_ns) const {
    const auto ms = [](std::int64_t ns) { return static_cast<double>(ns) * 1e-6; };
    StepMetrics metrics;
    metrics.step = step;
    metrics.loss = outcome.loss;
    metrics.lr = outcome.learning_rate;
    metrics.grad_norm = outcome.grad_norm;
    metrics.loss_scale = outcome.loss_scale;
    metrics.skipped = outcome.skipped;
    metrics.step_ms = ms(took_ns);
    metrics.tokens_per_s =
        static_cast<double>(run_.tokens_per_step()) / (static_cast<double>(took_ns) * 1e-9);
    metrics.forward_ms = ms(outcome.times.forward_ns);
    metrics.backward_ms = ms(outcome.times.backward_ns);
    metrics.update_ms = ms(outcome.times.update_ns);
    metrics.update_exposed_ms = ms(outcome.times.update_exposed_ns);
    metrics.gpu_peak_bytes = run_.gpu_peak_bytes();
    const auto memory = engine::process_memory();
    if (memory.ok()) {
      metrics.host_pinned_bytes = memory->pinned_bytes;
      metrics.host_rss_bytes = memory->resident_bytes;
    }
    return metrics;
  }

  static void count_traffic(const TrainingRun::Traffic& before, const TrainingRun::Traffic& now,
                            StepMetrics& metrics) {
    metrics.nvme_read_bytes = now.nvme_read_bytes - before.nvme_read_bytes;
    metrics.nvme_write_bytes = now.nvme_write_bytes - before.nvme_write_bytes;
    metrics.h2d_bytes = now.h2d_bytes - before.h2d_bytes;
    metrics.d2h_bytes = now.d2h_bytes - before.d2h_bytes;
  }

  const Options& options_;
  TrainingRun& run_;
  engine::MetricsLog& log_;
  const std::int64_t steps_;
  engine::TrainProgress progress_;
  engine::RunTotals totals_;
};

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

Result<int> run(const Options& options) {
  ConfigOptions config_options = options.config;
  add_overrides(options, config_options);
  SLUICE_ASSIGN_OR_RETURN(const config::Resolved resolved, resolve(config_options));
  const config::Config& config = resolved.config;
  SLUICE_ASSIGN_OR_RETURN(const engine::DType dtype, weight_dtype(options.dtype));
  std::optional<engine::TraceLog::Options> trace;
  if (!options.trace.empty()) {
    SLUICE_ASSIGN_OR_RETURN(trace, engine::TraceLog::parse_steps(options.trace));
  }
  if (config.run.dir.empty()) {
    return Error(ErrorCode::kInvalidArgument,
                 "where the run's files shall lie is not said: --out DIR, or run.dir");
  }
  SLUICE_RETURN_IF_ERROR(prepare_directory(config.run.dir, options.overwrite));
  SLUICE_ASSIGN_OR_RETURN(const auto run, set_up_run(config));
  SLUICE_ASSIGN_OR_RETURN(const std::int64_t steps, steps_of(options, *run));
  const std::string directory = config.run.dir + "/";
  SLUICE_RETURN_IF_ERROR(write_config(directory + "config.json", config));
  SLUICE_ASSIGN_OR_RETURN(const auto log, engine::MetricsLog::create(directory + "metrics.jsonl"));
  if (trace) run->trace().start(*trace);

  const bench::Interrupt interrupt;
  Session session(options, *run, *log, steps);
  SLUICE_ASSIGN_OR_RETURN(const bool completed, session.train(interrupt));
  run->trainer().drain();
  session.finish();
  if (trace) {
    run->trace().end_steps(SteadyClock().now_ns());
    SLUICE_RETURN_IF_ERROR(run->trace().write_json(directory + "trace.json"));
    std::cout << "trace: " << directory << "trace.json (open it in ui.perfetto.dev)\n";
  }
  if (!options.save_weights.empty()) {
    SLUICE_RETURN_IF_ERROR(run->save_weights(options.save_weights, dtype));
    std::cout << "weights: " << options.save_weights << "\n";
  }
  return completed ? 0 : bench::kInterruptedExitCode;
}

}  // namespace

Command add_train_command(CLI::App& sluice) {
  CLI::App* const command =
      sluice.add_subcommand("train", "Trains a GPT whose state may be larger than memory");
  command->footer(
      "  sluice train configs/demo.json --out runs/demo\n"
      "  sluice train configs/demo.json --out runs/nvme --steps 100 \\\n"
      "      --set zero_optimization.offload_param.device=nvme --set "
      "budget.nvme_paths='[\"/nvme\"]'\n"
      "  sluice train --deepspeed ds_config.json --set model.preset=gpt2-xl \\\n"
      "      --set data.train='[\"train.bin\"]' --out runs/xl\n"
      "DIR gets config.json (resolved), metrics.jsonl (a line a step) and, with --trace, "
      "trace.json.");
  const auto options = std::make_shared<Options>();
  add_config_options(*command, options->config);
  command->add_option("--out", options->out, "The run's directory (run.dir)");
  command->add_flag("--overwrite", options->overwrite,
                    "Replaces the run in a directory that is not empty");
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
  return [options] { return run(*options); };
}

}  // namespace sluice::tools
