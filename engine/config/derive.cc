#include "engine/config/derive.h"

#include <algorithm>

#include "engine/families/families.h"

namespace sluice::config {
namespace {

// Runs before the schedule's rules, which use the optimizer's numbers.
void derive_optimizer(Derivation& derivation) {
  Optimizer& optimizer = derivation.config.optimizer;
  if (optimizer.type == OptimizerType::kAdamW && !optimizer.adam_w_mode) {
    optimizer.adam_w_mode = true;
    derivation.note("optimizer.params.adam_w_mode",
                    "optimizer.type AdamW always decouples weight decay");
  }
  if (optimizer.type == OptimizerType::kAdam && optimizer.adam_w_mode)
    derivation.note("optimizer.type", "with decoupled weight decay, as AdamW");
  constexpr std::string_view kRate = "optimizer.params.lr";
  if (derivation.says_auto(kRate)) {
    constexpr double kOfTrainer = 5e-5;
    optimizer.learning_rate = kOfTrainer;
    derivation.note(kRate, "Hugging Face's learning_rate");
  }
  constexpr std::string_view kDecay = "optimizer.params.weight_decay";
  const bool mentioned = derivation.given(kDecay) || derivation.is_auto(kDecay);
  if (optimizer.torch_adam && optimizer.adam_w_mode && !mentioned) {
    constexpr double kTorchDefault = 0.01;
    optimizer.weight_decay = kTorchDefault;
    derivation.note(kDecay, "PyTorch's default for AdamW, because of torch_adam");
  }
}

// PyTorch users clip by norm or by value; an "auto" norm is none if the value is given.
void derive_clipping(Derivation& derivation) {
  Config& config = derivation.config;
  constexpr std::string_view kNorm = "gradient_clipping";
  const bool by_value = config.gradient_clipping_value > 0;
  if (derivation.is_auto(kNorm)) {
    config.gradient_clipping_norm = by_value ? 0 : 1;
    derivation.note(kNorm, by_value ? "gradient_clipping_value is used instead"
                                    : "Hugging Face's max_grad_norm");
  }
  if (!by_value || config.gradient_clipping_norm == 0) return;
  derivation.reject(
      "gradient_clipping and gradient_clipping_value cannot both clip: set one of them to 0");
}

void derive_decayed_parameters(Derivation& derivation) {
  constexpr std::string_view kDecayed = "optimizer.params.decayed";
  if (derivation.given(kDecayed)) return;
  const bool all = derivation.has_deepspeed_file();
  derivation.config.optimizer.decayed_parameters =
      all ? DecayedParameters::kAll : DecayedParameters::kMatrices;
  derivation.note(kDecayed, all ? "as DeepSpeed does, because a DeepSpeed file is given"
                                : "no decay of biases and norms, as in GPT-2");
}

constexpr std::string_view kFate = "run.non_finite_step";
constexpr std::string_view kFateInBf16 = "bf16.check_grad_overflow";

// DeepSpeed has a separate switch for bf16 runs: the later source wins.
void apply_fate_in_bf16(Derivation& derivation) {
  Config& config = derivation.config;
  const NonFiniteStep said =
      config.bf16.check_grad_overflow ? NonFiniteStep::kSkip : NonFiniteStep::kStop;
  const bool given = derivation.given(kFate);
  if (given && said == config.run.non_finite_step) return;
  const int rank = derivation.rank(kFateInBf16);
  if (rank == derivation.rank(kFate)) {
    return derivation.reject(
        "run.non_finite_step and bf16.check_grad_overflow disagree: leave one "
        "of them out");
  }
  if (rank < derivation.rank(kFate))
    return derivation.drop(kFateInBf16, "a later source gives run.non_finite_step");
  if (given) derivation.drop(kFate, "a later source gives bf16.check_grad_overflow");
  config.run.non_finite_step = said;
  derivation.note(kFate, std::string(kFateInBf16));
}

void derive_non_finite_step(Derivation& derivation) {
  Config& config = derivation.config;
  const bool fixed_scale =
      config.precision == Precision::kFp16 && config.fp16.static_loss_scale > 0;
  if (!derivation.given(kFate) && fixed_scale) {
    config.run.non_finite_step = NonFiniteStep::kSkip;
    derivation.note(kFate, "as DeepSpeed does with a fixed fp16.loss_scale");
  }
  const bool is_bf16 = config.precision == Precision::kBf16;
  if (is_bf16 && derivation.given(kFateInBf16)) apply_fate_in_bf16(derivation);
  if (!is_bf16 && config.bf16.check_grad_overflow)
    derivation.drop(kFateInBf16, "this run does not compute in bf16");
  config.bf16.check_grad_overflow = is_bf16 && config.run.non_finite_step == NonFiniteStep::kSkip;
  if (config.bf16.check_grad_overflow && !derivation.given(kFateInBf16))
    derivation.note(kFateInBf16, std::string(kFate));
}

void derive_bucket_sizes(Derivation& derivation) {
  Zero& zero = derivation.config.zero;
  const std::int64_t hidden = derivation.config.model.hidden;
  const auto by_rule = [&](std::string_view path, std::int64_t& field, std::int64_t value,
                           const char* rule) {
    if (!derivation.is_auto(path)) return;
    field = value;
    derivation.note(path, std::string(rule) + " (hidden size " + std::to_string(hidden) + ")");
  };
  by_rule("zero_optimization.reduce_bucket_size", zero.reduce_bucket_elements, hidden * hidden,
          "hidden size squared");
  by_rule("zero_optimization.stage3_prefetch_bucket_size", zero.prefetch_bucket_elements,
          hidden * hidden * 9 / 10, "0.9 x hidden size squared");
  by_rule("zero_optimization.stage3_param_persistence_threshold",
          zero.param_persistence_threshold_elements, hidden * 10, "10 x hidden size");
}

void check_offload(Derivation& derivation, const std::string& section, OffloadDevice device,
                   std::string& nvme_path) {
  const std::string path_key = section + ".nvme_path";
  const bool has_paths = !derivation.config.budget.nvme_paths.empty();
  if (has_paths && !nvme_path.empty()) {
    nvme_path.clear();
    derivation.drop(path_key, "budget.nvme_paths overrides it");
  }
  if (device == OffloadDevice::kNvme && !has_paths && nvme_path.empty()) {
    derivation.reject(section +
                      ".device is nvme, but no folder is given for it: set budget.nvme_paths or " +
                      path_key);
  }
}

void check_nvme_paths(Derivation& derivation) {
  const std::vector<std::string>& paths = derivation.config.budget.nvme_paths;
  for (auto path = paths.begin(); path != paths.end(); ++path) {
    if (std::find(paths.begin(), path, *path) != path)
      return derivation.reject("budget.nvme_paths names " + *path +
                               " twice: name each folder once");
  }
  const auto& weights = derivation.config.placement.nvme_weights;
  if (!weights || weights->empty() || weights->size() == paths.size()) return;
  derivation.reject("placement.nvme_weights must be one number for each of budget.nvme_paths, so " +
                    std::to_string(paths.size()) + " and not " + std::to_string(weights->size()));
}

void derive_offload(Derivation& derivation) {
  Zero& zero = derivation.config.zero;
  const Placement& placement = derivation.config.placement;
  check_offload(derivation, "zero_optimization.offload_param", zero.offload_param.device,
                zero.offload_param.nvme_path);
  check_offload(derivation, "zero_optimization.offload_optimizer", zero.offload_optimizer.device,
                zero.offload_optimizer.nvme_path);
  if (zero.stage < 3 && derivation.given("zero_optimization.stage")) {
    derivation.note("zero_optimization.stage",
                    derivation.config.world_size == 1
                        ? "with one rank there is nothing to divide, and all stages are the same"
                        : "every stage computes the same numbers; without GPUs it runs as stage 3, "
                          "and stage 0 divides optimizer state and gradients as stages 1 and 2 do");
    if (zero.offload_param.device != OffloadDevice::kNone) {
      derivation.note("zero_optimization.offload_param.device",
                      "DeepSpeed reads it at stage 3 only; here it applies at every stage");
    }
  }
  if (placement.unit_inputs_to_nvme == Tristate::kOn &&
      derivation.config.unit_input_nvme_paths().empty()) {
    derivation.reject(
        "placement.unit_inputs_to_nvme is on, but no folder is given for it: set "
        "budget.nvme_paths");
  }
  if (placement.gradients_to_nvme == Tristate::kOn &&
      derivation.config.gradient_nvme_paths().empty()) {
    derivation.reject(
        "placement.gradients_to_nvme is on, but no folder is given for it: set "
        "budget.nvme_paths");
  }
  if (placement.unit_inputs_to_nvme == Tristate::kOn &&
      placement.unit_inputs_to_cpu == Tristate::kOff) {
    derivation.reject(
        "placement.unit_inputs_to_nvme needs placement.unit_inputs_to_cpu, which is off: set "
        "unit_inputs_to_cpu to \"auto\"");
  }
  if (!placement.optimizer_fractions) return;
  if (zero.offload_optimizer.device != OffloadDevice::kAuto) {
    derivation.reject(
        "placement.optimizer_fractions and zero_optimization.offload_optimizer.device both place "
        "the optimizer state: set the device to \"auto\"");
  } else if (placement.optimizer_fractions->nvme > 0 &&
             derivation.config.optimizer_nvme_paths().empty()) {
    derivation.reject(
        "placement.optimizer_fractions puts state on nvme, but no folder is given for it: set "
        "budget.nvme_paths");
  }
}

// ZeRO++'s gathers are those of stage 3.
void derive_communication(Derivation& derivation) {
  Config& config = derivation.config;
  Communication& asked = config.communication;
  constexpr std::string_view kWeights = "communication.weights";
  constexpr std::string_view kHostCopy = "communication.host_copy";
  constexpr std::string_view kPartition = "zero_optimization.zero_hpz_partition_size";
  constexpr std::string_view kFrozen = "zero_optimization.zero_quantized_nontrainable_weights";
  const bool has_base = config.lora.rank > 0;
  if (config.zero.quantized_frozen && !has_base) {
    config.zero.quantized_frozen = false;
    derivation.drop(kFrozen, "no parameters are frozen without recipe.lora", true);
  }
  if (config.zero.quantized_frozen && !derivation.given(kWeights)) {
    asked.weights = SentWeights::kInt8;
    derivation.note(kWeights, std::string(kFrozen));
  }
  if (config.zero.hpz_partition_ranks > 1 && !derivation.given(kHostCopy)) {
    asked.host_copy = HostCopy::kAuto;
    derivation.note(kHostCopy, std::string(kPartition));
  }
  if (config.world_size % config.zero.hpz_partition_ranks != 0 && config.world_size > 1) {
    derivation.reject(std::string(kPartition) + " " +
                      std::to_string(config.zero.hpz_partition_ranks) + " does not divide the " +
                      std::to_string(config.world_size) +
                      " ranks: set it to the number of ranks of each host, or to 1");
  }
  if (asked.weights == SentWeights::kInt8 && config.zero.stage != 3) {
    derivation.reject(
        "communication.weights int8 (zero_quantized_weights) is for gathers of stage 3: set "
        "zero_optimization.stage to 3");
  }
  if (asked.weights == SentWeights::kInt8 && has_base && config.lora.base_bits < 16) {
    derivation.note(kWeights, "the frozen model is gathered in the " +
                                  std::to_string(config.lora.base_bits) +
                                  " bits that it is stored in");
  }
  if (asked.host_copy != HostCopy::kOff && config.zero.stage != 3) {
    asked.host_copy = HostCopy::kOff;
    derivation.drop(kHostCopy, "each rank keeps whole parameters below stage 3");
  }
}

// Continues advice to shorten sequences.
std::string raised_context(const Model& model) {
  const engine::ModelShape shape = model.shape();
  if (!engine::validate(shape).ok()) return {};
  if (engine::has_learned_positions(shape))
    return model.init_from.empty() ? ", or raise model.context too"
                                   : "; the model has no parameters for more positions";
  return ", or raise model.context too, though the model was not trained on positions beyond it";
}

void derive_run(Derivation& derivation) {
  Config& config = derivation.config;
  if (!derivation.given("run.log_every")) {
    config.run.log_every_steps = config.steps_per_print;
    derivation.note("run.log_every", "steps_per_print");
  }
  if (!derivation.given("model.init_seed")) {
    config.model.init_seed = config.run.seed;
    derivation.note("model.init_seed", "run.seed");
  }
  if (!derivation.given("data.shuffle_seed")) {
    config.data.shuffle_seed = config.run.seed;
    derivation.note("data.shuffle_seed", "run.seed");
  }
  if (!derivation.given("data.sequence_length")) {
    // A context of 131,072 is what the model can read, not a sensible default to train on.
    constexpr std::int64_t kMostUnasked = 4096;
    const bool is_long =
        config.model.context_tokens > kMostUnasked && !derivation.given("model.context");
    config.data.sequence_tokens = is_long ? kMostUnasked : config.model.context_tokens;
    derivation.note("data.sequence_length", is_long ? "the largest default" : "model.context");
  } else if (config.data.sequence_tokens > config.model.context_tokens) {
    derivation.reject("data.sequence_length " + std::to_string(config.data.sequence_tokens) +
                      " is longer than model.context " +
                      std::to_string(config.model.context_tokens) + ": shorten it" +
                      raised_context(config.model));
  }
  if (config.cpu_checkpointing && config.placement.unit_inputs_to_cpu == Tristate::kAuto) {
    config.placement.unit_inputs_to_cpu = Tristate::kOn;
    derivation.note("placement.unit_inputs_to_cpu", "activation_checkpointing.cpu_checkpointing");
  }
}

// What needs evaluations during training.
void derive_evaluations(Derivation& derivation) {
  Config& config = derivation.config;
  constexpr std::string_view kBest = "run.keep_best";
  constexpr std::string_view kPatience = "early_stopping.patience";
  const bool stops = config.early_stopping.patience > 0;
  if (stops && !derivation.given(kBest)) {
    config.run.keep_best = true;
    derivation.note(kBest, std::string(kPatience));
  }
  if (!stops && config.early_stopping.min_delta > 0) {
    config.early_stopping.min_delta = 0;
    derivation.drop("early_stopping.min_delta", "early_stopping.patience is 0", true);
  }
  if (!stops && !config.run.keep_best) return;
  const std::string key(stops ? kPatience : kBest);
  if (config.run.eval_every_steps == 0)
    derivation.reject(key + " needs evaluations during training: set run.eval_every");
  if (config.data.validation.empty() && config.data.validation_fraction == 0)
    derivation.reject(key +
                      " needs validation data: set data.validation or "
                      "data.validation_fraction");
}

// A store holds one checkpoint at most.
void derive_saves_in_place(Derivation& derivation) {
  Config& config = derivation.config;
  constexpr std::string_view kInPlace = "run.checkpoint_in_place";
  constexpr std::string_view kKeepLast = "run.keep_last";
  if (!config.run.checkpoint_in_place) return;
  if (!derivation.given(kKeepLast)) {
    config.run.keep_last_checkpoints = 1;
    derivation.note(kKeepLast, std::string(kInPlace));
  }
  const std::string one = std::string(kInPlace) + " keeps the newest checkpoint alone";
  if (config.run.keep_last_checkpoints != 1)
    derivation.reject(one + ": set run.keep_last to 1, or leave it out");
  if (config.run.keep_best)
    derivation.reject(one + ": set run.keep_best to false, or run.checkpoint_in_place");
  if (config.run.checkpoint_background == Tristate::kOn)
    derivation.reject(std::string(kInPlace) +
                      " makes no copy that could be written in the background: leave out "
                      "run.checkpoint_background");
  if (config.world_size > 1)
    derivation.reject(std::string(kInPlace) + " is for one rank, and this run has " +
                      std::to_string(config.world_size) + ": leave it out");
}

std::vector<std::string> nvme_paths(const Config& config, const std::string& of_deepspeed) {
  if (!config.budget.nvme_paths.empty() || of_deepspeed.empty()) return config.budget.nvme_paths;
  return {of_deepspeed};
}

// Folders for state that no tier is configured for. The folder of a tier that is configured as
// other than nvme is a leftover, unless a key of its own requests it (`is_asked`).
std::vector<std::string> spill_paths(const Config& config, bool is_asked) {
  const auto may_be_used = [is_asked](OffloadDevice device) {
    return is_asked || device == OffloadDevice::kAuto || device == OffloadDevice::kNvme;
  };
  if (!config.budget.nvme_paths.empty()) return config.budget.nvme_paths;
  const OffloadOptimizer& optimizer = config.zero.offload_optimizer;
  if (may_be_used(optimizer.device) && !optimizer.nvme_path.empty())
    return config.optimizer_nvme_paths();
  if (may_be_used(config.zero.offload_param.device)) return config.param_nvme_paths();
  return {};
}

}  // namespace

void Derivation::drop(std::string_view path, const std::string& reason, bool is_unused) {
  const auto found = collected_.settings.find(path);
  if (found == collected_.settings.end()) return;
  const Setting& setting = found->second;
  collected_.ignored.push_back({.path = std::string(path),
                                .outcome = Outcome::kIgnored,
                                .value = short_text(setting.value),
                                .reason = reason,
                                .source = setting.source,
                                .is_unused = is_unused && !setting.is_auto()});
  collected_.settings.erase(found);
}

void derive_all(Derivation& derivation) {
  derive_batch_sizes(derivation);
  check_lanes(derivation);
  derive_run_length(derivation);
  derive_precision(derivation);
  derive_optimizer(derivation);
  derive_clipping(derivation);
  derive_decayed_parameters(derivation);
  derive_non_finite_step(derivation);
  derive_schedule(derivation);
  derive_model(derivation);
  derive_lora(derivation);
  derive_parameter_groups(derivation);
  derive_bucket_sizes(derivation);
  derive_offload(derivation);
  derive_communication(derivation);
  check_nvme_paths(derivation);
  derive_run(derivation);
  derive_evaluations(derivation);
  derive_saves_in_place(derivation);
}

std::vector<std::string> Config::param_nvme_paths() const {
  return nvme_paths(*this, zero.offload_param.nvme_path);
}

std::vector<std::string> Config::optimizer_nvme_paths() const {
  return nvme_paths(*this, zero.offload_optimizer.nvme_path);
}

std::vector<std::string> Config::unit_input_nvme_paths() const {
  return spill_paths(*this, placement.unit_inputs_to_nvme == Tristate::kOn);
}

std::vector<std::string> Config::gradient_nvme_paths() const {
  return spill_paths(*this, placement.gradients_to_nvme == Tristate::kOn);
}

}  // namespace sluice::config
