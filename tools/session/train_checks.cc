#include "tools/session/train_checks.h"

#include <algorithm>
#include <filesystem>

#include "aio/log.h"
#include "aio/text.h"
#include "engine/config/lr_schedule.h"
#include "engine/exchange/described_model.h"
#include "engine/run/run_checkpoints.h"
#include "tools/support/output_file.h"

namespace sluice::tools {
namespace {

namespace fs = std::filesystem;

constexpr const char* kEnding = ".safetensors";

// Whether the run file is next to the checkpoints of another run.
bool lies_in_another_run(const std::string& config_file, const std::string& directory) {
  std::error_code error;
  const fs::path folder = fs::absolute(config_file, error).parent_path();
  return fs::is_directory(engine::RunCheckpoints::folder_of(folder.string()), error) &&
         !fs::equivalent(folder, directory, error);
}

}  // namespace

Status check_weights_output(const WantedWeights& wanted, const config::Config& config) {
  if (wanted.path.empty()) return {};
  if (!wanted.path.ends_with(kEnding))
    return Error(ErrorCode::kInvalidArgument,
                 "--save-weights " + wanted.path + ": the name must end in " + kEnding);
  return check_output_file({.option = "--save-weights",
                            .path = wanted.path,
                            .replaces = wanted.replaces,
                            .made_folder = config.run.dir});
}

Status check_init_from(const config::Config& config) {
  const std::string& path = config.model.init_from;
  std::error_code error;
  if (path.empty()) return {};
  const auto status = fs::status(path, error);
  const std::string key = path == config.model.path ? "model.path" : "model.init_from";
  if (!fs::exists(status))
    return Error(ErrorCode::kNotFound,
                 key + ": there is no file or folder " + path +
                     (config.lora.rank == 0 ? ""
                                            : ", the base model of the adapters: --set " + key +
                                                  "=FOLDER sets its new place") +
                     engine::download_hint(path));
  if (fs::is_regular_file(status) || fs::is_directory(status)) return {};
  return Error(ErrorCode::kInvalidArgument,
               key + ": " + path + " is neither a regular file nor a folder");
}

Status check_flops_profile(const config::Config& config, std::int64_t done) {
  const config::FlopsProfiler& wanted = config.flops_profiler;
  if (!wanted.enabled) return {};
  if (wanted.step <= done || wanted.step > config.run.steps) {
    log::warning("flops_profiler.profile_step is " + std::to_string(wanted.step) +
                 ", but the remaining steps are " + std::to_string(done + 1) + " to " +
                 std::to_string(config.run.steps) + ": no step will be profiled");
  }
  return check_output_file({.option = "flops_profiler.output_file",
                            .path = wanted.output_file,
                            .replaces = true,
                            .made_folder = config.run.dir});
}

void warn_of_rate(const config::Config& config, std::int64_t done) {
  constexpr double kMostUsualRate = 1;
  constexpr std::int64_t kStepsSeen = 1024;  // steps of the schedule to check, evenly spread
  // A range test increases the rate beyond what works on purpose.
  if (config.schedule.type == config::ScheduleType::kRangeTest) return;
  const std::int64_t stride = std::max<std::int64_t>((config.run.steps - done) / kStepsSeen, 1);
  double most = 0;
  for (std::int64_t step = done; step < config.run.steps; step += stride) {
    most = std::max(most, config::learning_rate(config.schedule, step));
    const bool scales_groups =
        config.schedule.base_lr > 0 || !config::names_its_rates(config.schedule.type);
    for (const config::ParameterGroup& group : config.optimizer.groups)
      if (group.learning_rate && scales_groups)
        most = std::max(most, config::learning_rate(config.schedule, step, *group.learning_rate));
  }
  if (most < kMostUsualRate) return;
  log::warning("the learning rate reaches " + significant(most) +
               ", and AdamW moves each weight by up to that much in a step: the model is "
               "unlikely to learn. Usual rates are 1e-6 to 1e-2 (optimizer.params.lr, scheduler)");
}

Status check_traced_steps(const engine::TraceLog::Options& trace, std::int64_t done,
                          std::int64_t steps) {
  if (trace.first_step > done && trace.last_step <= steps) return {};
  const std::string wanted =
      "--trace " + std::to_string(trace.first_step) + ":" + std::to_string(trace.last_step);
  return Error(ErrorCode::kInvalidArgument,
               done >= steps ? wanted + ": all " + std::to_string(steps) +
                                   " steps are done, so there is no step left to trace"
                             : wanted + ": the steps of this run are " + std::to_string(done + 1) +
                                   " to " + std::to_string(steps));
}

namespace {

// A line about what is trained; empty if it is the whole model.
std::string adapters_text(const config::Config& config, const ResumePoint& from) {
  const config::Lora& lora = config.lora;
  if (lora.rank == 0) return {};
  std::string targets;
  for (const std::string& target : lora.targets) targets += (targets.empty() ? "" : ", ") + target;
  const std::string begin = from.checkpoint        ? ", from " + from.checkpoint->path
                            : lora.adapter.empty() ? std::string(", with random values")
                                                   : ", from " + lora.adapter;
  return "adapters of rank " + std::to_string(lora.rank) + " on top of " + targets + begin +
         "; the model's own weights stay unchanged\n";
}

}  // namespace

std::string weights_text(const config::Config& config, const ResumePoint& from,
                         const std::string& config_file) {
  const bool has_adapters = config.lora.rank > 0;  // then no checkpoint has the model's weights
  if (from.checkpoint && !has_adapters && from.stored.run.imported())
    return "weights: from " + from.checkpoint->path +
           ", which was imported; the optimizer state starts at zero\n";
  if (from.checkpoint && !has_adapters)
    return "weights: from " + from.checkpoint->path + ", with their optimizer state, after step " +
           std::to_string(from.checkpoint->step) + "\n";
  if (!config.model.init_from.empty())
    return "weights: from " + config.model.init_from + " (model.init_from)\n" +
           adapters_text(config, from);
  std::string text = "weights: random, from seed " + std::to_string(config.model.init_seed) +
                     " (model.init_seed)\n" + adapters_text(config, from);
  if (!config_file.empty() && lies_in_another_run(config_file, config.run.dir)) {
    const std::string folder = fs::path(config_file).parent_path().string();
    text += "the weights of the run in " + (folder.empty() ? "." : folder) +
            " are not used: --resume=" + (folder.empty() ? "" : folder + "/") +
            "checkpoints/NAME starts from those of a checkpoint (sluice ls lists them)\n";
  }
  return text;
}

}  // namespace sluice::tools
