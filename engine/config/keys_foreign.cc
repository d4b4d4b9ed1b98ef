#include "engine/config/key_sections.h"

namespace sluice::config {
namespace {

constexpr std::string_view kMetrics =
    "every step's numbers are in metrics.jsonl in the run's folder, which sluice-log gives to "
    "TensorBoard, Weights & Biases, MLflow and CSV files";
constexpr std::string_view kCollectives =
    "it tunes how ranks exchange data, and the loop chooses that itself";
constexpr std::string_view kTrace = "a run's trace shows where its time went, a track per resource";
constexpr std::string_view kCheckpoint =
    "checkpoints are of a form of their own, which run.checkpoint_every and run.keep_last guide";
constexpr std::string_view kNotDone =
    "Sluice does not do it, and would train something else than was asked for: set its enabled to "
    "false to train without it";
constexpr std::string_view kParallel = "only data is divided among ranks";

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
    refused_if_enabled(
        "amp",
        "Apex AMP is not what Sluice does (nor DeepSpeed with ZeRO), and without it the run "
        "would be in fp32: set bf16.enabled or fp16.enabled to true instead, and amp.enabled to "
        "false",
        KeySource::kOlder),
    refused_if_enabled(
        "torch_autocast",
        "autocast is not what Sluice does, and without it the run would be in fp32: set "
        "bf16.enabled or fp16.enabled to true instead, and torch_autocast.enabled to false"),
    ignored("communication_data_type", "gradients are reduced in fp32, the most exact choice"),
    ignored("seq_parallel_communication_data_type", kParallel),
    ignored("data_types", "gradients add up in fp32; fp16 and bf16 set the other types"),
    ignored("fp32_allreduce", "gradients are reduced in fp32 always", KeySource::kOlder),
    ignored("allreduce_always_fp32", "gradients are reduced in fp32 always", KeySource::kOlder),
    ignored("gradient_allreduce_op", "gradients are averaged over the whole batch"),
    ignored("prescale_gradients", "gradients are reduced in fp32, where nothing overflows"),
    ignored("gradient_predivide_factor", "gradients are reduced in fp32, where nothing overflows"),
    ignored("sparse_gradients", "the embedding's gradient is dense: the head shares its weights"),
    ignored("disable_allgather", kCollectives),
    ignored("allgather_size", "parameters are gathered a unit at a time", KeySource::kOlder),
    ignored("zero_allow_untested_optimizer", "Adam and AdamW are the optimizers, and tested"),
    ignored("zero_force_ds_cpu_optimizer", "there is one Adam for every tier"),
    ignored("dataloader_drop_last", "every batch is whole"),
    ignored("dump_state", "the resolved configuration and the plan are printed before each run"),
    ignored("memory_breakdown", "every step's memory is in metrics.jsonl in the run's folder"),
    ignored("vocabulary_size", "model.vocab is the size of the vocabulary"),
    ignored("log_level", "the command line sets how much is said"),
    ignored("graph_harvesting", "the loop captures CUDA graphs by itself where they pay"),
    ignored("timers", kTrace),
    ignored("comms_logger", kTrace),
    ignored("autotuning", "sluice tune searches, and is no part of the run's file"),
    ignored("elasticity", "a checkpoint resumes at any world size, so no batch must fit them all"),
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
    ignored("hybrid_engine", "it speeds up text generation inside a reinforcement learning loop"),
    ignored("compile", "the model is C++ already"),
    ignored("inference", "this file is for training", KeySource::kOlder),
};

}  // namespace

std::span<const Key> foreign_keys() { return kKeys; }

}  // namespace sluice::config
