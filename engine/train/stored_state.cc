#include "engine/train/stored_state.h"

#include <vector>

#include "aio/log.h"
#include "engine/exchange/stored_shape.h"
#include "engine/train/run_parts.h"

namespace sluice::engine {
namespace {

std::string precision_name(config::Precision precision) {
  switch (precision) {
    case config::Precision::kBf16:
      return "bf16";
    case config::Precision::kFp16:
      return "fp16";
    case config::Precision::kFp32:
      break;
  }
  return "fp32";
}

}  // namespace

StoredPosition stored_position(const TrainState& state) {
  return {.global_step = state.global_step,
          .applied_step = state.applied_step,
          .samples_drawn = state.samples_drawn,
          .skipped_in_a_row = state.skipped_in_a_row,
          .loss_scale = {.scale = state.loss_scale.scale,
                         .steps = state.loss_scale.steps,
                         .last_overflow_step = state.loss_scale.last_overflow_step,
                         .hysteresis_left = state.loss_scale.hysteresis_left}};
}

TrainState train_state(const StoredPosition& position) {
  return {.global_step = position.global_step,
          .applied_step = position.applied_step,
          .samples_drawn = position.samples_drawn,
          .skipped_in_a_row = position.skipped_in_a_row,
          .loss_scale = {.scale = position.loss_scale.scale,
                         .steps = position.loss_scale.steps,
                         .last_overflow_step = position.loss_scale.last_overflow_step,
                         .hysteresis_left = position.loss_scale.hysteresis_left}};
}

StoredRun stored_run(const config::Config& config, const std::string& data_order) {
  return {.seed = static_cast<std::uint64_t>(config.run.seed),
          .data_order = data_order,
          .precision = precision_name(config.precision),
          .cpu_threads = compute_threads(config),
          .model = stored_model(gpt_shape(config.model)),
          .dropout = config.model.dropout};
}

Status check_same_run(const StoredRun& stored, const StoredRun& now) {
  StoredRun with_threads = now;
  with_threads.cpu_threads = stored.cpu_threads;
  const std::vector<std::string> differences = run_differences(stored, with_threads);
  if (!differences.empty()) {
    std::string text;
    for (const std::string& difference : differences)
      text += (text.empty() ? "" : "; ") + difference;
    return Error(ErrorCode::kInvalidArgument,
                 "this run cannot go on from the checkpoint: " + text +
                     ". Use the configuration it was written with, or begin anew from its weights "
                     "(model.init_from)");
  }
  if (!stored.imported() && stored.cpu_threads != now.cpu_threads) {
    log::warning("the checkpoint was written with " + std::to_string(stored.cpu_threads) +
                 " CPU threads, and this run has " + std::to_string(now.cpu_threads) +
                 ": results may differ in their last bits (run.cpu_threads)");
  }
  return {};
}

}  // namespace sluice::engine
