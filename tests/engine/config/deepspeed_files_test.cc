// DeepSpeed files as they occur in practice, read unchanged: every key is accounted for.
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "engine/config/key_table.h"
#include "tests/engine/config/resolving.h"

namespace sluice::config {
namespace {

using Json = nlohmann::json;

// The paths of all values in the file: an ignored section counts as one.
void leaves(const Json& object, const std::string& prefix, std::set<std::string>& paths) {
  for (const auto& [word, value] : object.items()) {
    const std::string path = prefix.empty() ? word : prefix + "." + word;
    const Key* key = find_key(path);
    if (key != nullptr && key->treatment == Treatment::kAlias) {
      paths.insert(std::string(key->alias_of));
    } else if (value.is_object() && !value.empty() &&
               (key == nullptr || key->treatment == Treatment::kHonoured)) {
      leaves(value, path, paths);
    } else {
      paths.insert(path);
    }
  }
}

struct File {
  std::string name;
  std::size_t honoured;
  std::set<std::string> ignored;
};

// Counted and judged by hand.
const std::vector<File> kFiles = {
    {"stage2_fp16_auto.json",
     24,
     {"zero_optimization.allgather_partitions", "zero_optimization.allgather_bucket_size",
      "zero_optimization.overlap_comm", "zero_optimization.reduce_scatter",
      "zero_optimization.contiguous_gradients"}},
    {"stage3_foreign_sections.json",
     23,
     {"zero_optimization.all_reduce_bucket_size", "amp",
      "activation_checkpointing.partition_activations",
      "activation_checkpointing.contiguous_memory_optimization",
      "activation_checkpointing.number_checkpoints",
      "activation_checkpointing.synchronize_checkpoint_boundary",
      "activation_checkpointing.profile"}},
    {"stage3_cpu_auto.json",
     29,
     {"zero_optimization.offload_optimizer.pin_memory",
      "zero_optimization.offload_param.pin_memory", "zero_optimization.overlap_comm",
      "zero_optimization.contiguous_gradients",
      "zero_optimization.stage3_gather_16bit_weights_on_model_save"}},
    {"stage3_nvme_full.json",
     36,
     {"communication_data_type",
      "zero_optimization.offload_optimizer.pin_memory",
      "zero_optimization.offload_optimizer.fast_init",
      "zero_optimization.offload_optimizer.pipeline_read",
      "zero_optimization.offload_optimizer.pipeline_write",
      "zero_optimization.offload_param.pin_memory",
      "zero_optimization.overlap_comm",
      "zero_optimization.allgather_partitions",
      "zero_optimization.allgather_bucket_size",
      "zero_optimization.reduce_scatter",
      "zero_optimization.contiguous_gradients",
      "zero_optimization.round_robin_gradients",
      "zero_optimization.elastic_checkpoint",
      "zero_optimization.stage3_gather_16bit_weights_on_model_save",
      "zero_optimization.ignore_unused_parameters",
      "aio.overlap_events",
      "autotuning",
      "activation_checkpointing",
      "flops_profiler",
      "sparse_attention",
      "data_efficiency",
      "compression_training"}},
    {"deepspeed/zero2_fp16.json",
     24,
     {"zero_optimization.allgather_partitions", "zero_optimization.allgather_bucket_size",
      "zero_optimization.overlap_comm", "zero_optimization.reduce_scatter",
      "zero_optimization.contiguous_gradients"}},
    {"deepspeed/gptlite_zero3.json",
     26,
     {"zero_optimization.all_reduce_bucket_size", "amp",
      "activation_checkpointing.partition_activations",
      "activation_checkpointing.contiguous_memory_optimization",
      "activation_checkpointing.number_checkpoints",
      "activation_checkpointing.synchronize_checkpoint_boundary",
      "activation_checkpointing.profile"}},
    {"deepspeed/zero3_cpu_offload.json",
     29,
     {"zero_optimization.offload_optimizer.pin_memory",
      "zero_optimization.offload_param.pin_memory", "zero_optimization.overlap_comm",
      "zero_optimization.contiguous_gradients",
      "zero_optimization.stage3_gather_16bit_weights_on_model_save"}},
    {"deepspeed/zero3_nvme_every_key.json",
     36,
     {"communication_data_type",
      "zero_optimization.offload_optimizer.pin_memory",
      "zero_optimization.offload_optimizer.fast_init",
      "zero_optimization.offload_optimizer.pipeline_read",
      "zero_optimization.offload_optimizer.pipeline_write",
      "zero_optimization.offload_param.pin_memory",
      "zero_optimization.overlap_comm",
      "zero_optimization.allgather_partitions",
      "zero_optimization.allgather_bucket_size",
      "zero_optimization.reduce_scatter",
      "zero_optimization.contiguous_gradients",
      "zero_optimization.round_robin_gradients",
      "zero_optimization.elastic_checkpoint",
      "zero_optimization.stage3_gather_16bit_weights_on_model_save",
      "zero_optimization.ignore_unused_parameters",
      "aio.overlap_events",
      "autotuning",
      "activation_checkpointing",
      "flops_profiler",
      "sparse_attention",
      "data_efficiency",
      "compression_training"}},
};

// Two files ask for Apex AMP, which is refused unless a later source disables it.
Sources sources_of_file(const std::string& name) {
  const auto source = read_source(data_file(name));
  EXPECT_TRUE(source.ok());
  Sources sources{.deepspeed = *source};
  if (source->text.find("\"amp\"") != std::string::npos)
    sources.overrides.emplace_back("amp.enabled=false");
  return sources;
}

Resolved resolve_file(const std::string& name) { return accepted(resolve(sources_of_file(name))); }

TEST(DeepSpeedFiles, AmpIsRefusedWithWhatToSetInstead) {
  for (const char* name : {"stage3_foreign_sections.json", "deepspeed/gptlite_zero3.json"}) {
    Sources sources = sources_of_file(name);
    sources.overrides.clear();
    EXPECT_THAT(refusal(resolve(sources)),
                testing::AllOf(testing::HasSubstr("amp cannot be {\"enabled\":true"),
                               testing::HasSubstr("bf16.enabled or fp16.enabled")));
    sources.overrides = {"amp.enabled=false", "amp.enabled=true"};
    EXPECT_THAT(refusal(resolve(sources)), testing::HasSubstr("--set: amp cannot be"));
  }
}

// DeepSpeed's compression has `enabled` in the sections of techniques, but not at its own level.
TEST(DeepSpeedFiles, WhatIsEnabledInsideASectionIsRefused) {
  const auto compression = [](const std::string& weights, const std::string& more = "") {
    return R"({"train_batch_size": 8, "compression_training": {)" + more + R"("weight_quantization":
                       {"shared_parameters": {"enabled": )" +
           weights + R"(, "quantize_groups": 1}, "different_groups": {}}}})";
  };
  const std::string quantization = "compression_training.weight_quantization.shared_parameters";
  EXPECT_THAT(refusal(resolve_deepspeed(compression("true"))),
              testing::HasSubstr("ds.json: " + quantization + " cannot be {\"enabled\":true"));
  EXPECT_EQ(
      report_on(accepted(resolve_deepspeed(compression("false"))), "compression_training").outcome,
      Outcome::kIgnored);
  const std::string reduction = R"("layer_reduction": {"enabled": true}, )";
  EXPECT_THAT(refusal(resolve_deepspeed(compression("true", reduction))),
              testing::AllOf(testing::HasSubstr("2 settings"),
                             testing::HasSubstr("compression_training.layer_reduction")));
  // Each technique can be disabled separately, or all by the section.
  const auto taken_back = [&](const std::string& override_text) {
    return resolve_both(compression("true"), "{}", {override_text});
  };
  accepted(taken_back(quantization + ".enabled=false"));
  EXPECT_EQ(
      report_on(accepted(taken_back("compression_training.enabled=false")), quantization).reason,
      "overruled by --set");
  EXPECT_THAT(refusal(taken_back("compression_training.layer_reduction.enabled=false")),
              testing::HasSubstr(quantization));
}

TEST(DeepSpeedFiles, EveryKeyIsHonouredOrIgnoredWithAReason) {
  for (const File& file : kFiles) {
    SCOPED_TRACE(file.name);
    std::set<std::string> said;
    leaves(Json::parse(read_source(data_file(file.name))->text), "", said);
    std::set<std::string> honoured;
    std::set<std::string> ignored;
    for (const KeyReport& report : resolve_file(file.name).reports) {
      if (report.source.empty() || report.source == "--set") continue;
      if (report.outcome == Outcome::kHonoured) {
        EXPECT_TRUE(honoured.insert(report.path).second) << report.path;
        continue;
      }
      EXPECT_EQ(report.outcome, Outcome::kIgnored) << report.path;
      EXPECT_TRUE(ignored.insert(report.path).second) << report.path;
      EXPECT_GT(report.reason.size(), 10U) << report.path;
    }
    EXPECT_EQ(ignored, file.ignored);
    EXPECT_EQ(honoured.size(), file.honoured);
    honoured.merge(ignored);
    EXPECT_EQ(honoured, said);
  }
}

TEST(DeepSpeedFiles, CanonicalFormsResolveToThemselves) {
  for (const File& file : kFiles) {
    const std::string once = to_json(resolve_file(file.name).config);
    EXPECT_EQ(to_json(accepted(resolve_run(once)).config), once) << file.name;
  }
}

TEST(DeepSpeedFiles, Stage2Fp16) {
  const Config config = resolve_file("stage2_fp16_auto.json").config;
  EXPECT_EQ(config.precision, Precision::kFp16);
  EXPECT_EQ(config.fp16.initial_scale_power, 12);
  EXPECT_EQ(config.batch.train, 1);
  EXPECT_EQ(config.optimizer.weight_decay, 0);
  EXPECT_EQ(config.schedule.type, ScheduleType::kWarmupDecay);
  EXPECT_EQ(config.schedule.warmup.max_lr, config.optimizer.learning_rate);
  EXPECT_EQ(config.schedule.warmup.total_steps, config.run.steps);
  EXPECT_EQ(config.zero.reduce_bucket_elements, 300'000'000);
}

TEST(DeepSpeedFiles, ForeignSections) {
  const Config config = resolve_file("stage3_foreign_sections.json").config;
  EXPECT_EQ(config.batch.accumulation, 32);
  EXPECT_EQ(config.precision, Precision::kFp32);
  EXPECT_EQ(config.placement.unit_inputs_to_cpu, Tristate::kOn);
  EXPECT_EQ(config.zero.offload_optimizer.device, OffloadDevice::kCpu);
  EXPECT_TRUE(config.flops_profiler.enabled);
  EXPECT_EQ(config.flops_profiler.step, 5);
  EXPECT_EQ(config.flops_profiler.output_file, "");
}

TEST(DeepSpeedFiles, Stage3OnNvme) {
  const Config config = resolve_file("stage3_nvme_full.json").config;
  EXPECT_EQ(config.precision, Precision::kBf16);
  EXPECT_EQ(config.zero.offload_param.device, OffloadDevice::kNvme);
  EXPECT_THAT(config.optimizer_nvme_paths(), testing::ElementsAre("/mnt/drive"));
  EXPECT_EQ(config.zero.sub_group_elements, 1'000'000'000'000);
  EXPECT_EQ(config.zero.reduce_bucket_elements, 768 * 768);
  EXPECT_EQ(config.aio.threads, 2);
  EXPECT_EQ(config.aio.block_bytes, 524288);
}

TEST(DeepSpeedFiles, Zero2Fp16) {
  const Config config = resolve_file("deepspeed/zero2_fp16.json").config;
  EXPECT_EQ(config.zero.stage, 2);
  EXPECT_EQ(config.precision, Precision::kFp16);
  EXPECT_EQ(config.fp16.initial_scale_power, 15);
  EXPECT_EQ(config.fp16.static_loss_scale, 0);
  EXPECT_EQ(config.fp16.loss_scale_window_steps, 1000);
  EXPECT_EQ(config.fp16.hysteresis, 2);
  EXPECT_EQ(config.optimizer.learning_rate, 5e-5);  // "auto", also the trainer's value
  EXPECT_TRUE(config.optimizer.adam_w_mode);
  EXPECT_EQ(config.gradient_clipping_norm, 1.0);  // "auto"
  EXPECT_EQ(config.batch.micro, 1);
  EXPECT_EQ(config.batch.accumulation, 1);
  EXPECT_EQ(config.zero.reduce_bucket_elements, 200'000'000);
  EXPECT_EQ(config.zero.offload_optimizer.device, OffloadDevice::kNone);
}

TEST(DeepSpeedFiles, GptLiteZero3) {
  const Config config = resolve_file("deepspeed/gptlite_zero3.json").config;
  EXPECT_EQ(config.precision, Precision::kFp32);
  EXPECT_EQ(config.batch.train, 256);
  EXPECT_EQ(config.batch.micro, 8);
  EXPECT_EQ(config.batch.accumulation, 32);
  EXPECT_EQ(config.schedule.type, ScheduleType::kWarmup);
  EXPECT_EQ(config.schedule.warmup.max_lr, 1e-3);
  EXPECT_EQ(config.schedule.warmup.steps, 1000);
  EXPECT_EQ(config.optimizer.weight_decay, 3e-7);
  EXPECT_EQ(config.zero.offload_param.device, OffloadDevice::kCpu);
  EXPECT_EQ(config.placement.unit_inputs_to_cpu, Tristate::kOn);
}

TEST(DeepSpeedFiles, Zero3CpuOffload) {
  const Config config = resolve_file("deepspeed/zero3_cpu_offload.json").config;
  EXPECT_EQ(config.zero.stage, 3);
  EXPECT_EQ(config.precision, Precision::kFp16);
  EXPECT_EQ(config.fp16.initial_scale_power, 16);
  EXPECT_EQ(config.zero.offload_optimizer.device, OffloadDevice::kCpu);
  EXPECT_EQ(config.zero.offload_param.device, OffloadDevice::kCpu);
  // For 768 hidden, the default model's width.
  EXPECT_EQ(config.zero.reduce_bucket_elements, 768 * 768);
  EXPECT_EQ(config.zero.prefetch_bucket_elements, 9 * 768 * 768 / 10);
  EXPECT_EQ(config.zero.param_persistence_threshold_elements, 10 * 768);
  EXPECT_EQ(config.zero.max_live_elements, 1'000'000'000);
  EXPECT_EQ(config.zero.sub_group_elements, 1'000'000'000);
}

TEST(DeepSpeedFiles, Zero3NvmeEveryKey) {
  const Config config = resolve_file("deepspeed/zero3_nvme_every_key.json").config;
  EXPECT_EQ(config.precision, Precision::kBf16);
  EXPECT_EQ(config.batch.train, 32);
  EXPECT_EQ(config.batch.accumulation, 4);
  EXPECT_EQ(config.gradient_clipping_norm, 1.0);
  EXPECT_EQ(config.optimizer.learning_rate, 3e-5);
  EXPECT_THAT(config.optimizer.betas, testing::ElementsAre(0.8, 0.999));
  EXPECT_EQ(config.schedule.warmup.steps, 500);
  EXPECT_THAT(config.param_nvme_paths(), testing::ElementsAre("/local_nvme"));
  EXPECT_THAT(config.optimizer_nvme_paths(), testing::ElementsAre("/local_nvme"));
  EXPECT_EQ(config.zero.offload_optimizer.buffer_count, 4);
  EXPECT_EQ(config.zero.offload_param.buffer_count, 5);
  EXPECT_EQ(config.zero.offload_param.max_in_cpu_elements, 1'000'000'000);
  EXPECT_EQ(config.zero.sub_group_elements, 1'000'000'000'000);
  EXPECT_EQ(config.aio.block_bytes, 262144);
  EXPECT_EQ(config.aio.queue_depth, 32);
  EXPECT_EQ(config.aio.threads, 1);
}

}  // namespace
}  // namespace sluice::config
