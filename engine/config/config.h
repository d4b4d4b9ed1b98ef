// Config: the complete, resolved configuration of a run. "auto" remains only where the planner or
// the machine decides; batch sizes agree, and a model preset has become a shape.
//
// Only resolve() (resolve.h) creates one: defaults are in the key table (key_table.h), so a bare
// Config{} is not a valid configuration. Plain data, copied freely.
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
#include "offload/sum_codec.h"

namespace sluice::config {

enum class Precision : std::uint8_t { kFp32, kFp16, kBf16 };
enum class OptimizerType : std::uint8_t { kAdam, kAdamW };
enum class OffloadDevice : std::uint8_t { kNone, kCpu, kNvme, kAuto };  // kNone: the GPU
enum class TokenType : std::uint8_t { kAuto, kUint16, kUint32 };
enum class Device : std::uint8_t { kAuto, kCpu, kCuda };
enum class IoBackendChoice : std::uint8_t { kAuto, kUring, kPosix };
// The parameters that weight decay applies to; kMatrices excludes biases and norms.
enum class DecayedParameters : std::uint8_t { kAll, kMatrices };
// The stored type of the optimizer's two moments.
enum class MomentType : std::uint8_t { kFp32, kBf16 };
// What to do with a step whose gradient is not finite; fp16's dynamic loss scale has its own rule.
enum class NonFiniteStep : std::uint8_t { kStop, kSkip };
// What to do with later checkpoints when a run continues from an older one.
enum class LaterCheckpoints : std::uint8_t { kRefuse, kSetAside };
// What to do with documents that do not fit a sequence.
enum class LongDocuments : std::uint8_t { kCut, kDrop, kSplit };

// train == micro * accumulation * world_size
struct BatchSizes {
  std::int64_t train = 0;
  std::int64_t micro = 0;         // of one rank, in one forward pass
  std::int64_t accumulation = 0;  // micro-batches in a step
};

// Parameters with their own learning rate or weight decay: those whose names match one of the
// patterns, unless an earlier group matches (parameter_groups.h).
struct ParameterGroup {
  std::vector<std::string> match;
  std::optional<double> learning_rate;  // replaces the optimizer's
  std::optional<double> weight_decay;   // the same, regardless of decayed_parameters

  bool operator==(const ParameterGroup&) const = default;
};

struct Optimizer {
  OptimizerType type = OptimizerType::kAdamW;
  double learning_rate = 0;
  Betas betas = {};
  double eps = 0;
  double weight_decay = 0;
  DecayedParameters decayed_parameters = DecayedParameters::kAll;
  bool adam_w_mode = false;  // resolved: always true for AdamW
  MomentType moments = MomentType::kFp32;
  bool bias_correction = false;
  bool torch_adam = false;  // only changes defaults: see the key table
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
  bool check_grad_overflow = false;  // resolved: whether non_finite_step of a bf16 run is kSkip
};

enum class WeightGradients : std::uint8_t { kFp8, kBf16 };

struct Fp8 {
  bool enabled = false;
  WeightGradients weight_gradients = WeightGradients::kFp8;

  engine::Fp8Recipe recipe() const {
    return {.enabled = enabled,
            .wide_weight_gradients = weight_gradients == WeightGradients::kBf16};
  }
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
  double ratio = 0;  // share of the state outside the GPU
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
  std::int64_t hpz_partition_ranks = 1;  // 1: off; DeepSpeed's way to ask for a host copy
  bool quantized_frozen = false;         // DeepSpeed's way to ask for int8 next to adapters
};

// How ranks send the parameters of a unit that they gather, and where a host keeps what it received
// until they change.
enum class SentWeights : std::uint8_t { kFull, kInt8 };
enum class HostCopy : std::uint8_t { kOff, kGpu, kRam, kAuto };

struct Communication {
  SentWeights weights = SentWeights::kFull;
  HostCopy host_copy = HostCopy::kOff;
  offload::SumCodec gradients = offload::SumCodec::kFp32;  // how ranks send each other their sums
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
  std::string path;    // a Hugging Face folder with shape and initial weights; empty: none
  std::string preset;  // from engine/families, or "custom"
  std::string family;
  std::int64_t layers = 0;
  std::int64_t hidden = 0;
  std::int64_t heads = 0;
  std::int64_t context_tokens = 0;
  std::int64_t vocab = 0;
  double dropout = 0;  // after the embedding, in attention and on residuals
  double ffn_multiplier = 0;
  std::int64_t init_seed = 0;
  std::string init_from;  // safetensors file or index; empty: random

  // Numbers that only some families have (ModelFamily::numbers()). Resolved: those of this family,
  // all set.
  std::map<std::string, std::optional<double>> numbers;
  // The same of ModelFamily::lists(). An empty list means that there is none.
  std::map<std::string, std::vector<double>> lists;

  std::int64_t ffn_hidden() const;  // hidden * ffn_multiplier, rounded; at least 1
  engine::ModelShape shape() const;
};

// The adapters to train, if any: the keys of recipe.lora.
struct Lora {
  std::int64_t rank = 0;  // 0: the model itself is trained
  double alpha = 0;
  bool rank_stabilised = false;
  double dropout = 0;
  std::int64_t base_bits = 16;
  bool double_quant = false;
  std::vector<std::string> targets;  // resolved: in the family's order
  std::string adapter;               // PEFT folder of the initial adapters; empty: none

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
  std::optional<double> epochs;  // unset: `steps` is the length of the run
  std::int64_t seed = 0;
  bool deterministic = false;
  std::int64_t cpu_threads = 0;  // 0: one per core
  std::int64_t lanes = 1;        // gradient lanes: offload::SumOrder
  std::int64_t rounds = 1;
  Device device = Device::kAuto;
  std::int64_t eval_every_steps = 0;  // 0: only at the end
  std::int64_t eval_batches = 0;
  std::int64_t log_every_steps = 0;
  double log_part_mib = 0;                  // of metrics.jsonl and events.jsonl; 0: one part each
  std::int64_t checkpoint_every_steps = 0;  // 0: only at the end
  std::optional<double>
      checkpoint_minutes;          // 0: never by time; unset: according to free disk space
  bool checkpoint_at_end = false;  // and when the run is interrupted
  Tristate checkpoint_background = Tristate::kAuto;
  bool checkpoint_in_place = false;        // state on NVMe is kept in its store, not copied
  std::int64_t keep_last_checkpoints = 0;  // 0: all
  bool keep_best = false;                  // the checkpoint of the lowest validation loss, too
  bool hash_units = false;
  double io_watchdog_s = 0;  // 0: none
  std::string resume;        // empty: start at step 0; "newest", or a checkpoint's name
  LaterCheckpoints later_checkpoints = LaterCheckpoints::kRefuse;
  NonFiniteStep non_finite_step = NonFiniteStep::kStop;
  std::int64_t max_skipped_steps = 0;  // consecutive ones, before a run with kSkip stops

  std::uint64_t log_part_bytes() const {
    constexpr double kBytesPerMib = 1 << 20;
    return static_cast<std::uint64_t>(log_part_mib * kBytesPerMib);
  }
};

// Ends a run whose validation loss no longer improves.
struct EarlyStopping {
  std::int64_t patience = 0;  // evaluations without an improvement; 0: never
  double min_delta = 0;       // by how much more than this a loss must be lower
};

// Texts that the run generates while it trains.
struct Samples {
  std::string prompts;           // a file; empty: none
  std::int64_t every_steps = 0;  // 0: with each evaluation
  std::int64_t tokens = 0;       // at most, in each text
  double temperature = 0;
};

// Unset: the free memory or space of the machine, less a margin.
struct Budget {
  std::optional<double> gpu_gib;
  std::optional<double> cpu_gib;
  std::optional<double> nvme_gib;
  std::vector<std::string> nvme_paths;
  std::optional<double> nvme_tb_per_day;  // that a host writes to its drives; unset: any amount
};

struct TierFractions {
  double gpu = 0;
  double cpu = 0;
  double nvme = 0;
};

// One per path of budget.nvme_paths, in their order; empty: equal.
using PathWeights = std::vector<int>;

struct Placement {
  bool overlap_update = false;
  Tristate recompute = Tristate::kAuto;
  Tristate unit_inputs_to_cpu = Tristate::kAuto;
  Tristate unit_inputs_to_nvme = Tristate::kAuto;
  Tristate gradients_to_nvme = Tristate::kAuto;
  std::optional<TierFractions> optimizer_fractions;  // unset: the planner's
  std::int64_t record_elements = 0;                  // largest; at most a sub-group
  std::int64_t swap_buffers = 0;                     // records in flight; 0: the planner's
  std::int64_t prefetch_units = 0;                   // fetched ahead; 0: the planner's
  std::int64_t wave_micro_batches = 0;               // at most; 0: the planner's
  std::optional<PathWeights> nvme_weights;           // unset: by speed, if measured
};

// Further destinations of a run's metrics, written by sluice-log (tools/cli/monitors.h).
struct Monitors {
  struct Files {
    bool enabled = false;
    std::string output_path;  // empty: in run.dir
    std::string job_name;
  };
  struct Wandb {
    bool enabled = false;
    std::string project;
    std::string team;  // empty: none; also for the next
    std::string group;
  };
  Files tensorboard;
  Files csv;
  Wandb wandb;

  bool any() const { return tensorboard.enabled || csv.enabled || wandb.enabled; }
};

// A profile of one step: what its units compute, and how long they take.
struct FlopsProfiler {
  bool enabled = false;
  std::int64_t step = 1;
  std::int64_t module_depth = -1;  // 0: the model, 1: kinds of units, 2 and -1: units
  std::int64_t top_modules = 1;    // in the summary by depth
  bool detailed = true;
  std::string output_file;  // empty: standard output
};

struct Config {
  std::int64_t world_size = 1;  // from the launcher, not the file
  BatchSizes batch;
  Optimizer optimizer;
  Schedule schedule;
  Precision precision = Precision::kFp32;
  Fp16 fp16;
  Bf16 bf16;
  Fp8 fp8;
  double gradient_clipping_norm = 0;   // 0: none
  double gradient_clipping_value = 0;  // per element; 0: none
  Zero zero;
  Communication communication;
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
  EarlyStopping early_stopping;
  Samples samples;
  Budget budget;
  Placement placement;

  // The folders for state on nvme: budget.nvme_paths, or else DeepSpeed's nvme_path.
  std::vector<std::string> param_nvme_paths() const;
  std::vector<std::string> optimizer_nvme_paths() const;
  std::vector<std::string> unit_input_nvme_paths() const;
  std::vector<std::string> gradient_nvme_paths() const;
};

}  // namespace sluice::config
