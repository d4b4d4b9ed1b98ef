// Config: everything that decides a run, resolved: no "auto" is left except where the planner or
// the machine has to answer, batch sizes agree, and a model preset has become a shape.
//
// Only resolve() (resolve.h) makes one: defaults are in the key table (key_table.h), not here, so a
// bare Config{} is not a configuration. Plain data, copied freely.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "aio/tristate.h"
#include "engine/config/lr_schedule.h"
#include "engine/model/lora_recipe.h"
#include "engine/model/model_shape.h"

namespace sluice::config {

enum class Precision : std::uint8_t { kFp32, kFp16, kBf16 };
enum class OptimizerType : std::uint8_t { kAdam, kAdamW };
enum class OffloadDevice : std::uint8_t { kNone, kCpu, kNvme, kAuto };  // kNone: the GPU
enum class TokenType : std::uint8_t { kAuto, kUint16, kUint32 };
enum class Device : std::uint8_t { kAuto, kCpu, kCuda };
enum class IoBackendChoice : std::uint8_t { kAuto, kUring, kPosix };
// Which parameters weight decay applies to; kMatrices leaves out biases and norms.
enum class DecayedParameters : std::uint8_t { kAll, kMatrices };
// How the optimizer stores its two moments.
enum class MomentType : std::uint8_t { kFp32, kBf16 };
// What happens to a step whose gradient is not finite; fp16's dynamic loss scale has its own rule.
enum class NonFiniteStep : std::uint8_t { kStop, kSkip };
// What happens to later checkpoints when a run continues from an older one.
enum class LaterCheckpoints : std::uint8_t { kRefuse, kSetAside };
// What becomes of documents that do not fit a sequence.
enum class LongDocuments : std::uint8_t { kCut, kDrop, kSplit };

// train == micro * accumulation * world_size
struct BatchSizes {
  std::int64_t train = 0;
  std::int64_t micro = 0;         // of one rank, in one forward pass
  std::int64_t accumulation = 0;  // micro-batches in a step
};

// Parameters that have another learning rate or weight decay than the rest: those whose names match
// one of the patterns, unless an earlier group's does (parameter_groups.h).
struct ParameterGroup {
  std::vector<std::string> match;
  std::optional<double> learning_rate;  // in place of the optimizer's
  std::optional<double> weight_decay;   // likewise, and whatever decayed_parameters says

  bool operator==(const ParameterGroup&) const = default;
};

struct Optimizer {
  OptimizerType type = OptimizerType::kAdamW;
  double learning_rate = 0;
  Betas betas = {};
  double eps = 0;
  double weight_decay = 0;
  DecayedParameters decayed_parameters = DecayedParameters::kAll;
  bool adam_w_mode = false;  // resolved: true for AdamW whatever the file says
  MomentType moments = MomentType::kFp32;
  bool bias_correction = false;
  bool torch_adam = false;  // changes only defaults: see the key table
  std::vector<ParameterGroup> groups;
};

struct Fp16 {
  bool enabled = false;
  double static_loss_scale = 0;  // 0: dynamic
  std::int64_t initial_scale_power = 0;
  std::int64_t loss_scale_window_steps = 0;
  std::int64_t hysteresis = 0;
  bool consecutive_hysteresis = false;
  double min_loss_scale = 0;
};

struct Bf16 {
  bool enabled = false;
  bool check_grad_overflow = false;  // resolved: whether a bf16 run's non_finite_step is kSkip
};

struct OffloadParam {
  OffloadDevice device = OffloadDevice::kNone;
  std::string nvme_path;
  std::int64_t buffer_count = 0;
  std::int64_t buffer_elements = 0;
  std::int64_t max_in_cpu_elements = 0;
};

struct OffloadOptimizer {
  OffloadDevice device = OffloadDevice::kNone;
  std::string nvme_path;
  std::int64_t buffer_count = 0;
  double ratio = 0;  // share of the state that leaves the GPU
};

struct Zero {
  std::int64_t stage = 0;
  OffloadParam offload_param;
  OffloadOptimizer offload_optimizer;
  std::int64_t sub_group_elements = 0;
  std::int64_t reduce_bucket_elements = 0;
  std::int64_t prefetch_bucket_elements = 0;
  std::int64_t param_persistence_threshold_elements = 0;
  std::int64_t model_persistence_threshold_elements = 0;
  std::int64_t max_live_elements = 0;
  std::int64_t max_reuse_distance_elements = 0;
};

struct Aio {
  std::int64_t block_bytes = 0;
  std::int64_t queue_depth = 0;
  std::int64_t threads = 0;
  bool single_submit = false;
  IoBackendChoice backend = IoBackendChoice::kAuto;
};

inline constexpr std::string_view kCustomPreset = "custom";

struct Model {
  std::string path;    // a Hugging Face folder: shape and first weights; empty: none
  std::string preset;  // of engine/families, or "custom"
  std::string family;
  std::int64_t layers = 0;
  std::int64_t hidden = 0;
  std::int64_t heads = 0;
  std::int64_t context_tokens = 0;
  std::int64_t vocab = 0;
  double dropout = 0;  // after the embedding, in attention and on residuals alike
  double ffn_multiplier = 0;
  std::int64_t init_seed = 0;
  std::string init_from;  // safetensors file or index; empty: random

  // What not every family has, by ModelFamily::numbers(); resolved: of this family, all set.
  std::map<std::string, std::optional<double>> numbers;

  std::int64_t ffn_hidden()
      const;  // hidden * ffn_multiplier, to the nearest whole number; 1 or more
  engine::ModelShape shape() const;
};

// What is trained where it is not the model itself: the keys of recipe.lora.
struct Lora {
  std::int64_t rank = 0;  // 0: the model itself
  double alpha = 0;
  bool rank_stabilised = false;
  double dropout = 0;
  std::int64_t base_bits = 16;
  std::vector<std::string> targets;  // resolved: in the family's order
  std::string adapter;               // PEFT's folder, whose adapters training begins with; or none

  engine::LoraRecipe recipe() const;
};

struct Data {
  std::vector<std::string> train;
  std::vector<std::string> validation;  // empty: validation_fraction of `train`
  TokenType token_type = TokenType::kAuto;
  std::int64_t sequence_tokens = 0;
  double validation_fraction = 0;
  LongDocuments long_documents = LongDocuments::kCut;
  std::int64_t shuffle_seed = 0;
};

struct Run {
  std::string dir;
  std::int64_t steps = 0;
  std::optional<double> epochs;  // unset: steps says how long
  std::int64_t seed = 0;
  bool deterministic = false;
  std::int64_t cpu_threads = 0;  // 0: one for each core
  std::int64_t lanes = 1;        // of gradients: offload::SumOrder
  std::int64_t rounds = 1;
  Device device = Device::kAuto;
  std::int64_t eval_every_steps = 0;  // 0: only at the end
  std::int64_t eval_batches = 0;
  std::int64_t log_every_steps = 0;
  double log_part_mib = 0;                   // of metrics.jsonl and events.jsonl; 0: one part each
  std::int64_t checkpoint_every_steps = 0;   // 0: only at the end
  std::optional<double> checkpoint_minutes;  // 0: never by time; unset: by the room on the disk
  bool checkpoint_at_end = false;            // and when the run is interrupted
  Tristate checkpoint_background = Tristate::kAuto;
  std::int64_t keep_last_checkpoints = 0;  // 0: all
  bool hash_units = false;
  double io_watchdog_s = 0;  // 0: none
  std::string resume;        // empty: start at step 0; "newest", or the name of a checkpoint
  LaterCheckpoints later_checkpoints = LaterCheckpoints::kRefuse;
  NonFiniteStep non_finite_step = NonFiniteStep::kStop;
  std::int64_t max_skipped_steps = 0;  // in a row, before a run that skips them stops

  std::uint64_t log_part_bytes() const {
    constexpr double kBytesPerMib = 1 << 20;
    return static_cast<std::uint64_t>(log_part_mib * kBytesPerMib);
  }
};

// Unset: what the machine has free, less a margin.
struct Budget {
  std::optional<double> gpu_gib;
  std::optional<double> cpu_gib;
  std::optional<double> nvme_gib;
  std::vector<std::string> nvme_paths;
};

struct TierFractions {
  double gpu = 0;
  double cpu = 0;
  double nvme = 0;
};

// Of each of budget.nvme_paths, in their order; none: equal.
using PathWeights = std::vector<int>;

struct Placement {
  bool overlap_update = false;
  Tristate recompute = Tristate::kAuto;
  Tristate boundaries_to_cpu = Tristate::kAuto;
  Tristate boundaries_to_nvme = Tristate::kAuto;
  Tristate gradients_to_nvme = Tristate::kAuto;
  std::optional<TierFractions> optimizer_fractions;  // unset: the planner's
  std::int64_t record_elements = 0;                  // largest; at most a sub-group
  std::int64_t swap_buffers = 0;                     // records in flight; 0: the planner's
  std::int64_t prefetch_units = 0;                   // fetched ahead; 0: the planner's
  std::int64_t wave_micro_batches = 0;               // at most; 0: the planner's
  std::optional<PathWeights> nvme_weights;           // unset: by speed, where that is measured
};

// Where else the metrics of a run go, by sluice-log beside it (tools/cli/monitors.h).
struct Monitors {
  struct Files {
    bool enabled = false;
    std::string output_path;  // empty: in run.dir
    std::string job_name;
  };
  struct Wandb {
    bool enabled = false;
    std::string project;
    std::string team;  // empty, like the next: none
    std::string group;
  };
  Files tensorboard;
  Files csv;
  Wandb wandb;

  bool any() const { return tensorboard.enabled || csv.enabled || wandb.enabled; }
};

// A profile of one step: what its units compute, and how long it takes.
struct FlopsProfiler {
  bool enabled = false;
  std::int64_t step = 1;
  std::int64_t module_depth = -1;  // 0: the model, 1: kinds of units, 2 and -1: units
  std::int64_t top_modules = 1;    // of the summary by depth
  bool detailed = true;
  std::string output_file;  // empty: standard output
};

struct Config {
  std::int64_t world_size = 1;  // of the launch, not of the file
  BatchSizes batch;
  Optimizer optimizer;
  Schedule schedule;
  Precision precision = Precision::kFp32;
  Fp16 fp16;
  Bf16 bf16;
  double gradient_clipping_norm = 0;   // 0: none
  double gradient_clipping_value = 0;  // of each element; 0: none
  Zero zero;
  Aio aio;
  std::int64_t steps_per_print = 0;
  bool wall_clock_breakdown = false;
  FlopsProfiler flops_profiler;
  bool cpu_checkpointing = false;
  Monitors monitors;
  Model model;
  Lora lora;
  Data data;
  Run run;
  Budget budget;
  Placement placement;

  // Where the state of a tier that is nvme lies: budget.nvme_paths, else DeepSpeed's nvme_path.
  std::vector<std::string> param_nvme_paths() const;
  std::vector<std::string> optimizer_nvme_paths() const;
  std::vector<std::string> unit_input_nvme_paths() const;
  std::vector<std::string> gradient_nvme_paths() const;
};

}  // namespace sluice::config
