// What users type into configurations, and how DeepSpeed treats the same: never silent.
#include "engine/config/key_table.h"
#include "engine/config/report.h"
#include "tests/engine/config/resolving.h"

namespace sluice::config {
namespace {

using testing::AllOf;
using testing::ContainsRegex;
using testing::HasSubstr;
using testing::Not;

std::string of_stage_3(const std::string& more) {
  return R"({"train_batch_size": 4, "zero_optimization": {"stage": 3}, )" + more + "}";
}

Resolved both_ways(const std::string& text) {
  const Resolved resolved = accepted(resolve_deepspeed(text));
  EXPECT_EQ(accepted(resolve_run(text)).config.batch.train, resolved.config.batch.train);
  return resolved;
}

TEST(TypedKeys, AFamilyNeedsNoPreset) {
  const std::string sizes = R"("layers": 2, "hidden": 64, "heads": 4, "context": 64, "vocab": 96)";
  const Resolved llama =
      accepted(resolve_run(of_stage_3(R"("model": {"family": "llama", )" + sizes + "}")));
  EXPECT_EQ(llama.config.model.family, "llama");
  EXPECT_EQ(llama.config.model.preset, "custom");
  EXPECT_EQ(report_on(llama, "model.preset").reason, "model.family");
  EXPECT_EQ(llama.config.model.numbers.at("kv_heads").value_or(0), 4);
  // The run's own file means the same, as does the preset's name.
  EXPECT_EQ(to_json(accepted(resolve_run(to_json(llama.config))).config), to_json(llama.config));
  EXPECT_EQ(
      to_json(accepted(resolve_run(of_stage_3(
                           R"("model": {"preset": "custom", "family": "llama", )" + sizes + "}")))
                  .config),
      to_json(llama.config));
  // The default preset belongs to this family, and still completes it.
  EXPECT_EQ(accepted(resolve_run(of_stage_3(R"("model": {"family": "gpt2"})"))).config.model.hidden,
            768);
  EXPECT_THAT(refusal(resolve_run(of_stage_3(R"("model": {"family": "llama", "layers": 2})"))),
              AllOf(ContainsRegex("model.preset.*model.hidden"), Not(HasSubstr("model.layers"))));
  EXPECT_THAT(
      refusal(resolve_run(of_stage_3(R"("model": {"family": "llama", "preset": "gpt2-small"})"))),
      ContainsRegex("gpt2-small.*family gpt2"));
}

TEST(TypedKeys, MisspelledOnesAreRefusedWithTheNearestKnown) {
  struct Typo {
    const char* text;
    const char* hint;
  };
  for (const Typo& typo :
       {Typo{R"({"zero_optimisation": {"stage": 3}})", "did you mean zero_optimization?"},
        Typo{R"({"optimizer": {"params": {"learning_rate": 1}}})", "optimizer.params.lr"},
        Typo{R"({"foo": 1})", "foo is not a key of Sluice or DeepSpeed"},
        // DeepSpeed also refuses it: its sections accept no unknown keys.
        Typo{R"({"zero_optimization": {"aio": {"queue_depth": 32}}})", "aio is at the top level"}})
    for (const auto& resolved : {resolve_deepspeed(typo.text), resolve_run(typo.text)})
      EXPECT_THAT(refusal(resolved), HasSubstr(typo.hint));
}

TEST(TypedKeys, CommentsAreNoKeys) {
  const Resolved resolved = both_ways(of_stage_3(
      R"("_comment": "for the small node", "//": [1, {"a": 2}], "bf16": {"comment": 1})"));
  EXPECT_EQ(report_on(resolved, "_comment").reason, "a comment");
  EXPECT_EQ(unused_keys(resolved), "");
}

// DeepSpeed's WarmupCosineLR has no min_lr (it raises a TypeError), and its pipeline differs.
TEST(TypedKeys, WhatHasNoEffectIsNamed) {
  EXPECT_EQ(unused_keys(both_ways(of_stage_3(R"("pipeline": {"stages": 2}, "scheduler":
                {"type": "WarmupCosineLR", "params": {"total_num_steps": 100, "min_lr": 1e-5,
                 "warmup_num_steps": 10}})"))),
            "without effect: pipeline, scheduler.params.min_lr (sluice config shows why)");
  // Nothing was requested, or another source decides.
  EXPECT_EQ(unused_keys(both_ways(of_stage_3(
                R"("autotuning": {"enabled": false}, "prescale_gradients": false, "pipeline": {},
                   "sparse_attention": null, "communication_data_type": "auto")"))),
            "");
  // Nor are defaults, and settings that are in effect anyway.
  EXPECT_EQ(unused_keys(both_ways(of_stage_3(
                R"("communication_data_type": "fp32", "gradient_predivide_factor": 1.0,
                   "data_types": {"grad_accum_dtype": null}, "fp32_allreduce": true)"))),
            "");
  EXPECT_EQ(
      unused_keys(both_ways(
          of_stage_3(R"("communication_data_type": "fp16", "gradient_predivide_factor": 2)"))),
      "without effect: communication_data_type, gradient_predivide_factor (sluice config shows "
      "why)");
  // Their values must not appear in logs.
  EXPECT_THAT(unused_keys(both_ways(of_stage_3(R"("comet": {"enabled": true, "api_key": "x9z"})"))),
              AllOf(HasSubstr("comet"), Not(HasSubstr("x9z"))));
  EXPECT_EQ(unused_keys(accepted(resolve_both(of_stage_3(R"("gradient_clipping": 1)"),
                                              R"({"gradient_clipping": 2})"))),
            "");
  EXPECT_THAT(unused_keys(both_ways(of_stage_3(R"("dump_state": True)"))), HasSubstr("dump_state"));
}

TEST(TypedKeys, NullIsNoSection) {
  const Config config =
      both_ways(of_stage_3(R"("optimizer": null, "scheduler": null, "fp16": null)")).config;
  EXPECT_EQ(config.optimizer.type, OptimizerType::kAdamW);
  EXPECT_EQ(config.precision, Precision::kFp32);
}

TEST(TypedKeys, DeepSpeedsClassesOfAdamAreAdam) {
  for (const char* name : {"FusedAdam", "DeepSpeedCPUAdam", "deepspeedcpuadam"}) {
    const auto of = [&](const char* more) {
      return both_ways(of_stage_3(std::string(R"("optimizer": {"type": ")") + name +
                                  R"(", "params": {"lr": 1e-4)" + more + "}}"))
          .config.optimizer;
    };
    EXPECT_EQ(of("").type, OptimizerType::kAdam) << name;
    EXPECT_TRUE(of("").adam_w_mode) << name;
    EXPECT_EQ(of("").learning_rate, 1e-4);
    EXPECT_FALSE(of(R"(, "adamw_mode": false)").adam_w_mode) << name;
  }
  EXPECT_THAT(refusal(resolve_deepspeed(of_stage_3(R"("optimizer": {"type": "FusedLamb"})"))),
              HasSubstr("\"AdamW\", not \"FusedLamb\""));
}

TEST(TypedKeys, SubGroupsOfZeroAreTheDefault) {
  const Config config = accepted(resolve_deepspeed(
                                     R"({"train_batch_size": 4, "zero_optimization": {
      "stage": 3, "sub_group_size": 0, "stage3_max_live_parameters": 0,
      "stage3_max_reuse_distance": 0}})"))
                            .config;
  EXPECT_EQ(config.zero.sub_group_elements, 0);
  EXPECT_EQ(config.zero.max_live_elements, 0);
}

TEST(TypedKeys, KeysAndSectionsGivenTwiceAreRefusedAsDeepSpeedDoes) {
  for (const char* twice : {R"("gradient_clipping": 1.0, "gradient_clipping": 0.5)",
                            R"("bf16": {"enabled": true}, "bf16": {"enabled": false})"})
    for (const auto& resolved :
         {resolve_deepspeed(of_stage_3(twice)), resolve_run(of_stage_3(twice))})
      EXPECT_THAT(refusal(resolved), HasSubstr("is given twice"));
}

// From DeepSpeed 0.19's sources: runtime/config.py, zero/config.py, zero/offload_config.py,
// precision_config.py, swap_tensor/constants.py, activation_checkpointing/config.py,
// profiling/config.py, monitor/config.py, lr_schedules.py, ops/adam/*.py.
constexpr const char* kOfDeepSpeed[] = {
    "train_batch_size",
    "train_micro_batch_size_per_gpu",
    "gradient_accumulation_steps",
    "managed_gradient_accumulation",
    "steps_per_print",
    "dump_state",
    "disable_allgather",
    "communication_data_type",
    "seq_parallel_communication_data_type",
    "prescale_gradients",
    "gradient_predivide_factor",
    "gradient_allreduce_op",
    "sparse_gradients",
    "gradient_clipping",
    "fp16.enabled",
    "fp16.auto_cast",
    "fp16.loss_scale",
    "fp16.initial_scale_power",
    "fp16.loss_scale_window",
    "fp16.hysteresis",
    "fp16.consecutive_hysteresis",
    "fp16.min_loss_scale",
    "fp16.fp16_master_weights_and_grads",
    "bf16.enabled",
    "bf16.immediate_grad_update",
    "bf16.check_grad_overflow",
    "bf16.bf16_master_weights_and_grads",
    "bf16.bf16_optimizer_states",
    "bfloat16",
    "amp",
    "torch_autocast",
    "compression_training",
    "graph_harvesting",
    "optimizer.type",
    "optimizer.params.lr",
    "optimizer.params.betas",
    "optimizer.params.eps",
    "optimizer.params.weight_decay",
    "optimizer.params.bias_correction",
    "optimizer.params.adam_w_mode",
    "optimizer.params.adamw_mode",
    "optimizer.params.amsgrad",
    "optimizer.params.set_grad_none",
    "optimizer.params.fp32_optimizer_states",
    "optimizer.params.torch_adam",
    "optimizer.params.max_grad_norm",
    "optimizer.legacy_fusion",
    "zero_allow_untested_optimizer",
    "zero_force_ds_cpu_optimizer",
    "scheduler.type",
    "scheduler.params.warmup_min_lr",
    "scheduler.params.warmup_max_lr",
    "scheduler.params.warmup_num_steps",
    "scheduler.params.warmup_type",
    "scheduler.params.total_num_steps",
    "scheduler.params.warmup_min_ratio",
    "scheduler.params.cos_min_ratio",
    "scheduler.params.last_batch_iteration",
    "scheduler.params.cycle_min_lr",
    "scheduler.params.cycle_max_lr",
    "scheduler.params.decay_lr_rate",
    "scheduler.params.cycle_first_step_size",
    "scheduler.params.cycle_second_step_size",
    "scheduler.params.cycle_first_stair_count",
    "scheduler.params.cycle_second_stair_count",
    "scheduler.params.decay_step_size",
    "scheduler.params.cycle_momentum",
    "scheduler.params.cycle_min_mom",
    "scheduler.params.cycle_max_mom",
    "scheduler.params.decay_mom_rate",
    "scheduler.params.lr_range_test_min_lr",
    "scheduler.params.lr_range_test_step_size",
    "scheduler.params.lr_range_test_step_rate",
    "scheduler.params.lr_range_test_staircase",
    "zero_optimization.stage",
    "zero_optimization.contiguous_gradients",
    "zero_optimization.reduce_scatter",
    "zero_optimization.reduce_bucket_size",
    "zero_optimization.use_multi_rank_bucket_allreduce",
    "zero_optimization.allgather_partitions",
    "zero_optimization.allgather_bucket_size",
    "zero_optimization.overlap_comm",
    "zero_optimization.load_from_fp32_weights",
    "zero_optimization.elastic_checkpoint",
    "zero_optimization.offload_param.device",
    "zero_optimization.offload_param.nvme_path",
    "zero_optimization.offload_param.buffer_count",
    "zero_optimization.offload_param.buffer_size",
    "zero_optimization.offload_param.max_in_cpu",
    "zero_optimization.offload_param.pin_memory",
    "zero_optimization.offload_optimizer.device",
    "zero_optimization.offload_optimizer.nvme_path",
    "zero_optimization.offload_optimizer.buffer_count",
    "zero_optimization.offload_optimizer.pin_memory",
    "zero_optimization.offload_optimizer.pipeline_read",
    "zero_optimization.offload_optimizer.pipeline_write",
    "zero_optimization.offload_optimizer.fast_init",
    "zero_optimization.offload_optimizer.ratio",
    "zero_optimization.offload_optimizer.super_offload",
    "zero_optimization.offload_optimizer.cpuadam_cores_perc",
    "zero_optimization.zenflow",
    "zero_optimization.sub_group_size",
    "zero_optimization.cpu_offload_param",
    "zero_optimization.cpu_offload_use_pin_memory",
    "zero_optimization.cpu_offload",
    "zero_optimization.prefetch_bucket_size",
    "zero_optimization.stage3_prefetch_bucket_size",
    "zero_optimization.param_persistence_threshold",
    "zero_optimization.stage3_param_persistence_threshold",
    "zero_optimization.model_persistence_threshold",
    "zero_optimization.stage3_model_persistence_threshold",
    "zero_optimization.max_live_parameters",
    "zero_optimization.stage3_max_live_parameters",
    "zero_optimization.max_reuse_distance",
    "zero_optimization.stage3_max_reuse_distance",
    "zero_optimization.gather_16bit_weights_on_model_save",
    "zero_optimization.stage3_gather_16bit_weights_on_model_save",
    "zero_optimization.module_granularity_threshold",
    "zero_optimization.stage3_module_granularity_threshold",
    "zero_optimization.use_all_reduce_for_fetch_params",
    "zero_optimization.stage3_use_all_reduce_for_fetch_params",
    "zero_optimization.allgather_sequential",
    "zero_optimization.stage3_allgather_sequential",
    "zero_optimization.stage3_gather_fp16_weights_on_model_save",
    "zero_optimization.ignore_unused_parameters",
    "zero_optimization.legacy_stage1",
    "zero_optimization.round_robin_gradients",
    "zero_optimization.zero_hpz_partition_size",
    "zero_optimization.zero_quantized_weights",
    "zero_optimization.zero_quantized_nontrainable_weights",
    "zero_optimization.zero_quantized_gradients",
    "zero_optimization.zeropp_loco_param",
    "zero_optimization.mics_shard_size",
    "zero_optimization.mics_hierarchical_params_gather",
    "zero_optimization.memory_efficient_linear",
    "zero_optimization.pipeline_loading_checkpoint",
    "zero_optimization.override_module_apply",
    "zero_optimization.log_trace_cache_warnings",
    "zero_optimization.enable_sanity_checks",
    "zero_optimization.save_muon_momentum_buffer_in_memory",
    "zero_optimization.leaf_module",
    "activation_checkpointing.partition_activations",
    "activation_checkpointing.number_checkpoints",
    "activation_checkpointing.contiguous_memory_optimization",
    "activation_checkpointing.synchronize_checkpoint_boundary",
    "activation_checkpointing.profile",
    "activation_checkpointing.cpu_checkpointing",
    "comms_logger",
    "tensorboard.enabled",
    "tensorboard.output_path",
    "tensorboard.job_name",
    "wandb.enabled",
    "wandb.group",
    "wandb.team",
    "wandb.project",
    "csv_monitor.enabled",
    "csv_monitor.output_path",
    "csv_monitor.job_name",
    "comet",
    "flops_profiler.enabled",
    "flops_profiler.recompute_fwd_factor",
    "flops_profiler.profile_step",
    "flops_profiler.module_depth",
    "flops_profiler.top_modules",
    "flops_profiler.detailed",
    "flops_profiler.output_file",
    "wall_clock_breakdown",
    "memory_breakdown",
    "autotuning",
    "eigenvalue",
    "use_data_before_expert_parallelism",
    "hybrid_engine",
    "sparse_attention",
    "pipeline",
    "progressive_layer_drop",
    "curriculum_learning",
    "data_efficiency",
    "checkpoint",
    "data_types",
    "aio.block_size",
    "aio.queue_depth",
    "aio.intra_op_parallelism",
    "aio.thread_count",
    "aio.single_submit",
    "aio.overlap_events",
    "aio.use_gds",
    "dataloader_drop_last",
    "log_level",
    "nebula",
    "datastates_ckpt",
    "weight_quantization",
    "quantize_training",
    "compile",
    "timers",
    "tensor_parallel",
    "expert_parallel",
    "elasticity",
    "vocabulary_size"};

TEST(TypedKeys, EveryKeyOfDeepSpeedIsKnown) {
  for (const char* path : kOfDeepSpeed)
    EXPECT_TRUE(find_key(path) != nullptr || is_section(path)) << path;
}

}  // namespace
}  // namespace sluice::config
