#include "engine/run/stored_state.h"

#include <utility>
#include <vector>

#include "aio/log.h"
#include "engine/config/changes.h"
#include "engine/config/stored_config.h"
#include "engine/exchange/stored_shape.h"
#include "engine/runtime/make_parts.h"

namespace sluice::engine {
namespace {

// Earlier versions stored no hash of all tokens, which is the last part.
bool is_same_data(const std::string& stored, const std::string& now) {
  return stored == now || now.starts_with(stored + "-");
}

// The difference between two runs whose data, or its order, is not the same.
std::string data_difference(const CheckpointState& stored, const CheckpointState& now) {
  const auto tokens = [](const CheckpointState& state) {
    return state.run.data_order.substr(state.run.data_order.find('-') + 1);
  };
  const bool other_tokens = !is_same_data(tokens(stored), tokens(now));
  const auto was = config::resolve_stored(stored.configuration);
  const auto is = config::resolve_stored(now.configuration);
  std::string text;
  if (was.ok() && is.ok()) {
    for (const config::KeyChange& change : config::changed_keys(*was, *is)) {
      // Moved files still contain the same text.
      const bool matters = change.path == "data.train" ? other_tokens
                                                       : change.path.starts_with("data.") &&
                                                             change.path != "data.validation";
      if (matters) text += (text.empty() ? "" : "; ") + config::to_text(change);
    }
  }
  if (!text.empty()) return text;
  return other_tokens
             ? "the tokens in the files of data.train have changed since the checkpoint was written"
             : "the files of data.train are split into samples differently than when the "
               "checkpoint was written";
}

ExpectedBase expected_base(const std::string& path) {
  return {.path = path.empty() ? "this run, which are random" : path,
          .advice = "set model.path (or model.init_from) to the weights that the run started from"};
}

std::string lanes_text(const SumsOfRun& sums) {
  return std::to_string(sums.lanes) + (sums.lanes == 1 ? " lane" : " lanes") +
         (sums.rounds == 1 ? "" : " in each of " + std::to_string(sums.rounds) + " rounds");
}

void warn_of_other_sums(const SumsOfRun& stored, const SumsOfRun& now) {
  if (!stored.by_use && now.by_use) {
    log::warning(
        "an earlier version wrote this checkpoint; it added the gradients of the tied embedding "
        "and head in another order: the run continues, but results may differ from that version's "
        "in the last bits");
  }
  if (stored.lanes == now.lanes && stored.rounds == now.rounds) return;
  log::warning("up to this checkpoint the run accumulated gradients in " + lanes_text(stored) +
               ", and now uses " + lanes_text(now) +
               ": results may differ in the last bits (run.lanes, run.rounds)");
}

}  // namespace

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

DType stored_moments(const NumberTypes& types) {
  return types.moments == offload::ElementType::kBf16 ? DType::kBF16 : DType::kF32;
}

void report_moments(DType stored, DType now) {
  if (stored == now) return;
  if (now == DType::kF32) {
    log::info(
        "the checkpoint has moments in bf16, and this run keeps them in fp32: they start with the "
        "same values (optimizer.params.moments)");
    return;
  }
  log::warning(
      "the checkpoint has moments in fp32, and this run keeps them in bf16: they are rounded "
      "stochastically, as in a step (optimizer.params.moments)");
}

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

StoredRun stored_run(const config::Config& config, const ModelLayout& model,
                     const std::string& data_order, const BaseFingerprint* base) {
  StoredRun run{.seed = static_cast<std::uint64_t>(config.run.seed),
                .data_order = data_order,
                .precision = precision_name(config.precision),
                .cpu_threads = compute_threads(config)};
  for (int unit = 0; unit < model.units(); ++unit)
    if (model.borrowed_sums(unit).elements > 0) run.sums.by_use = true;
  run.sums.lanes = config.run.lanes;
  run.sums.rounds = config.run.rounds;
  store_shape(config.model.shape(), run);
  const engine::LoraRecipe recipe = config.lora.recipe();
  if (!recipe.exists()) return run;
  run.adapters = stored_adapters(recipe);
  run.adapters->base = base->all();
  run.adapters->base_sample = base->sample();
  return run;
}

Status check_base(const StoredRun& stored, const BaseFingerprint& values, const std::string& path) {
  if (!stored.adapters || stored.adapters->base == values.all()) return {};
  return other_base(expected_base(path));
}

Status check_base(aio::IoQueue& queue, const StoredRun& stored, const ModelShape& shape,
                  const std::string& path) {
  if (path.empty() || !stored.adapters) return {};
  SLUICE_ASSIGN_OR_RETURN(const ModelWeights weights,
                          open_model_weights(queue, path, shape, HeadCheck::kBeginning));
  return check_base_sample(weights, stored, expected_base(path));
}

Status check_same_run(const CheckpointState& stored_state, const CheckpointState& state_now) {
  const StoredRun stored = complete(stored_state.run);
  const StoredRun& now = state_now.run;
  StoredRun comparable = complete(now);  // apart from what is described separately
  comparable.cpu_threads = stored.cpu_threads;
  comparable.data_order = stored.data_order;
  // May change like a learning rate; config::changed_keys() says so.
  const auto balance = stored.family_numbers.find(std::string(kBalanceCoefficient));
  if (balance != stored.family_numbers.end())
    comparable.family_numbers[balance->first] = balance->second;
  std::vector<std::string> differences =
      run_differences(stored, comparable, [&stored](const std::string& name, double value) {
        return family_number_text(stored.family, name, value);
      });
  if (!stored.imported() && !is_same_data(stored.data_order, now.data_order))
    differences.push_back(data_difference(stored_state, state_now));
  if (!differences.empty()) {
    std::string text;
    for (const std::string& difference : differences)
      text += (text.empty() ? "" : "; ") + difference;
    return Error(ErrorCode::kInvalidArgument,
                 "this run cannot continue from the checkpoint: " + text +
                     ". Use the configuration that it was written with, or start a new run from " +
                     (stored.adapters ? "its adapters (sluice export, and recipe.lora.adapter)"
                                      : "its weights (model.init_from)"));
  }
  return {};
}

void warn_of_other_bits(const CheckpointState& stored_state, const CheckpointState& state_now) {
  const StoredRun stored = complete(stored_state.run);
  const StoredRun& now = state_now.run;
  if (stored.imported()) return;
  if (stored.cpu_threads != now.cpu_threads) {
    log::warning("the checkpoint was written with " + std::to_string(stored.cpu_threads) +
                 " CPU threads, and this run has " + std::to_string(now.cpu_threads) +
                 ": results may differ in the last bits (run.cpu_threads)");
  }
  warn_of_other_sums(stored.sums, now.sums);
}

}  // namespace sluice::engine
