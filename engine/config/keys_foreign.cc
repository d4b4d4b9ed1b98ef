#include "engine/config/key_sections.h"

namespace sluice::config {
namespace {

constexpr std::string_view kMetrics =
    "each step's metrics are in metrics.jsonl in the run's folder; sluice-log exports them to "
    "TensorBoard, Weights & Biases, MLflow and CSV files";
constexpr std::string_view kCollectives =
    "it tunes how ranks exchange data, which Sluice chooses itself";
constexpr std::string_view kTrace =
    "a trace of the run shows where time is spent, with a track for each resource";
constexpr std::string_view kCheckpoint =
    "checkpoints have Sluice's own format; run.checkpoint_every and run.keep_last control them";
constexpr std::string_view kNotDone =
    "Sluice does not implement it, and the model trained would not be the one asked for: set its "
    "enabled to false to train without it";
constexpr std::string_view kParallel =
    "ranks divide only the data, with no tensor or sequence parallelism";

constexpr Key ignored(std::string_view path, std::string_view reason,
                      KeySource source = KeySource::kDeepSpeed) {
  return {.path = path, .treatment = Treatment::kIgnored, .source = source, .reason = reason};
}

// In a section, its `enabled` decides; without one, the `enabled` of any section in it does.
constexpr Key refused_if_enabled(std::string_view path, std::string_view reason,
                                 KeySource source = KeySource::kDeepSpeed) {
  return {.path = path, .treatment = Treatment::kRefusedIfTrue, .source = source, .reason = reason};
}

constexpr Key kKeys[] = {
    refused_if_enabled("amp",
                       "Sluice does not support Apex AMP (nor does DeepSpeed with ZeRO), and "
                       "without it the run would be in fp32: set bf16.enabled or fp16.enabled to "
                       "true instead, and amp.enabled to false",
                       KeySource::kOlder),
    refused_if_enabled(
        "torch_autocast",
        "Sluice does not support autocast, and without it the run would be in fp32: set "
        "bf16.enabled or fp16.enabled to true instead, and torch_autocast.enabled to false"),
    ignored("communication_data_type", "gradients are always reduced in fp32"),
    ignored("seq_parallel_communication_data_type", kParallel),
    ignored("data_types", "gradients are accumulated in fp32; fp16 and bf16 set the other types"),
    ignored("fp32_allreduce", "gradients are always reduced in fp32", KeySource::kOlder),
    ignored("allreduce_always_fp32", "gradients are always reduced in fp32", KeySource::kOlder),
    ignored("gradient_allreduce_op", "gradients are averaged over the whole batch"),
    ignored("prescale_gradients", "gradients are reduced in fp32, which does not overflow"),
    ignored("gradient_predivide_factor", "gradients are reduced in fp32, which does not overflow"),
    ignored("sparse_gradients", "the embedding's gradient is always dense"),
    ignored("disable_allgather", kCollectives),
    ignored("allgather_size", "parameters are gathered one unit at a time", KeySource::kOlder),
    ignored("zero_allow_untested_optimizer",
            "the optimizers are Adam and AdamW, and both are tested with ZeRO"),
    ignored("zero_force_ds_cpu_optimizer", "every tier uses the same Adam"),
    ignored("dataloader_drop_last", "there are no partial batches"),
    ignored("dump_state", "the resolved configuration and the plan are printed before each run"),
    ignored("memory_breakdown", "every step's memory is in metrics.jsonl in the run's folder"),
    ignored("vocabulary_size", "model.vocab is the size of the vocabulary"),
    ignored("log_level", "options of the command line control the output"),
    ignored("graph_harvesting", "Sluice does not use CUDA graphs"),
    ignored("timers", kTrace),
    ignored("comms_logger", kTrace),
    ignored("autotuning", "sluice tune is a command of its own, with no keys in the run's file"),
    ignored(
        "elasticity",
        "a checkpoint resumes at any world size, so the batch need not fit several world sizes"),
    ignored("comet", kMetrics),
    ignored("monitor_config", kMetrics, KeySource::kOlder),
    ignored("checkpoint", kCheckpoint),
    ignored("nebula", kCheckpoint),
    ignored("datastates_ckpt", kCheckpoint),
    ignored("load_universal_checkpoint", kCheckpoint, KeySource::kOlder),
    ignored("use_node_local_storage", kCheckpoint, KeySource::kOlder),
    ignored("sparse_attention", "attention is dense and exact; newer DeepSpeed dropped it as well",
            KeySource::kOlder),
    refused_if_enabled("compression_training", kNotDone),
    refused_if_enabled("quantize_training", kNotDone, KeySource::kOlder),
    refused_if_enabled("weight_quantization", kNotDone),
    refused_if_enabled("progressive_layer_drop", kNotDone),
    refused_if_enabled("eigenvalue", kNotDone),
    refused_if_enabled("curriculum_learning", kNotDone),
    refused_if_enabled("data_efficiency", kNotDone),
    ignored("pipeline", kParallel),
    ignored("tensor_parallel", kParallel),
    ignored("expert_parallel", kParallel),
    ignored("sequence_parallel_size", kParallel),
    ignored("use_data_before_expert_parallelism", kParallel),
    ignored("hybrid_engine", "it speeds up text generation within reinforcement learning"),
    ignored("compile", "the model is C++ already"),
    ignored("inference", "this file is for training", KeySource::kOlder),
};

}  // namespace

std::span<const Key> foreign_keys() { return kKeys; }

}  // namespace sluice::config
