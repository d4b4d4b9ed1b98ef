#include "engine/config/resolve.h"

#include <algorithm>

#include "engine/config/changes.h"
#include "engine/config/report.h"
#include "tests/engine/config/resolving.h"

namespace sluice::config {
namespace {

using testing::AllOf;
using testing::ContainsRegex;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

TEST(ResolveConfig, HasDeepSpeedsDefaults) {
  const Config config = accepted(resolve_run(R"({"train_batch_size": 8})")).config;
  EXPECT_EQ(config.precision, Precision::kFp32);
  EXPECT_EQ(config.gradient_clipping_norm, 0.0);
  EXPECT_EQ(config.optimizer.type, OptimizerType::kAdamW);
  EXPECT_EQ(config.optimizer.learning_rate, 1e-3);
  EXPECT_EQ(config.optimizer.betas, (Betas{0.9, 0.999}));
  EXPECT_EQ(config.optimizer.weight_decay, 0);
  EXPECT_EQ(config.fp16.initial_scale_power, 16);
  EXPECT_EQ(config.zero.offload_param.device, OffloadDevice::kNone);
  EXPECT_EQ(config.zero.offload_param.buffer_elements, 100'000'000);
  EXPECT_EQ(config.zero.sub_group_elements, 1'000'000'000);
  EXPECT_EQ(config.zero.prefetch_bucket_elements, 50'000'000);
  EXPECT_EQ(config.zero.model_persistence_threshold_elements, INT64_MAX);
  EXPECT_EQ(config.aio.block_bytes, 1 << 20);
  EXPECT_EQ(config.aio.queue_depth, 8);
}

TEST(ResolveConfig, ReadsNumbersAndBooleansAsDeepSpeedFilesWriteThem) {
  const Config config =
      accepted(resolve_run(run_with(
                   R"("bf16": {"enabled": "True"}, "wall_clock_breakdown": "false",
                      "gradient_clipping": "0.5",
                      "zero_optimization": {"reduce_bucket_size": 5e8, "sub_group_size": 1e12,
                        "stage3_max_live_parameters": 100000000.0, "stage": "3",
                        "stage3_max_reuse_distance": "2e9"})")))
          .config;
  EXPECT_TRUE(config.bf16.enabled);
  EXPECT_FALSE(config.wall_clock_breakdown);
  EXPECT_EQ(config.gradient_clipping_norm, 0.5);
  EXPECT_EQ(config.zero.reduce_bucket_elements, 500'000'000);
  EXPECT_EQ(config.zero.sub_group_elements, 1'000'000'000'000);
  EXPECT_EQ(config.zero.max_live_elements, 100'000'000);
  EXPECT_EQ(config.zero.max_reuse_distance_elements, 2'000'000'000);
  EXPECT_EQ(config.zero.stage, 3);
}

TEST(ResolveConfig, SaysThatAnIntegerHasAFraction) {
  EXPECT_THAT(refusal(resolve_run(run_with(R"("steps_per_print": 1.5)"))),
              ContainsRegex("run.json: steps_per_print.*not 1.5.*fraction"));
}

TEST(ResolveConfig, ReportsEveryMistakeAtOnce) {
  const std::string sentence = refusal(
      resolve_run(run_with(R"("fp16": {"enable": true}, "bf16": 3, "aio": {"queue_depth": 0},
                                      "optimizer": {"type": "Lamb"}, "stepsperprint": 4)")));
  EXPECT_THAT(sentence,
              AllOf(HasSubstr("5 settings"), HasSubstr("did you mean fp16.enabled?"),
                    HasSubstr("bf16 is a section"), ContainsRegex("aio.queue_depth.*1, not 0"),
                    HasSubstr("\"AdamW\", not \"Lamb\"")));
  EXPECT_THAT(sentence, HasSubstr("did you mean steps_per_print?"));
}

TEST(ResolveConfig, RejectsUnknownKeysInEverySource) {
  const std::string text = run_with(R"("zero_optimization": {"stagee": 3, "thread_count": 4},
                                       "frobnicate_the_gradients": 7)");
  for (const auto& resolved : {resolve_run(text), resolve_deepspeed(text)})
    EXPECT_THAT(refusal(resolved),
                AllOf(HasSubstr("did you mean zero_optimization.stage?"),
                      ContainsRegex("thread_count.*aio"), HasSubstr("frobnicate_the_gradients")));
}

TEST(ResolveConfig, DoesNotTakeADottedNameForAPath) {
  EXPECT_THAT(refusal(resolve_run(run_with(R"("fp16.enabled": true)"))), HasSubstr("nest the key"));
}

TEST(ResolveConfig, LaterSourcesWinAndSaySo) {
  const std::string run = run_with(R"("gradient_clipping": 1, "steps_per_print": 1,
                                      "run": {"steps": 1}, "wall_clock_breakdown": true)");
  const std::string deepspeed = R"({"gradient_clipping": 2, "steps_per_print": 2})";
  const auto resolved =
      accepted(resolve_both(run, deepspeed, {"gradient_clipping=3", "run.steps=5", "run.steps=6"}));
  EXPECT_EQ(resolved.config.gradient_clipping_norm, 3);
  EXPECT_EQ(resolved.config.steps_per_print, 2);
  EXPECT_EQ(resolved.config.run.steps, 6);
  EXPECT_TRUE(resolved.config.wall_clock_breakdown);

  const auto reports = reports_on(resolved, "gradient_clipping");
  ASSERT_EQ(reports.size(), 3U);
  EXPECT_EQ(reports[0].outcome, Outcome::kHonoured);
  EXPECT_EQ(reports[0].source, "--set");
  EXPECT_EQ(reports[1].reason, "overruled by ds.json");
  EXPECT_EQ(reports[2].reason, "overruled by --set");
  EXPECT_EQ(report_on(resolved, "wall_clock_breakdown").source, "run.json");
}

TEST(ResolveConfig, AutoInADeepSpeedFileLeavesTheRunFilesValue) {
  const auto resolved =
      accepted(resolve_both(R"({"train_batch_size": 64, "optimizer": {"params": {"lr": 0.125}}})",
                            R"({"train_batch_size": "auto", "train_micro_batch_size_per_gpu": 16,
          "optimizer": {"params": {"lr": "auto", "weight_decay": "auto"}}})"));
  EXPECT_EQ(resolved.config.batch.train, 64);
  EXPECT_EQ(resolved.config.batch.accumulation, 4);
  EXPECT_EQ(resolved.config.optimizer.learning_rate, 0.125);
  EXPECT_THAT(report_on(resolved, "optimizer.params.lr").reason,
              HasSubstr("ds.json says \"auto\""));
  EXPECT_THAT(report_on(resolved, "optimizer.params.weight_decay").reason,
              HasSubstr("the default, for \"auto\""));
}

TEST(ResolveConfig, ResolvesBucketSizesFromTheHiddenSize) {
  const std::string zero = R"("zero_optimization": {"reduce_bucket_size": "auto",
      "stage3_prefetch_bucket_size": "auto", "stage3_param_persistence_threshold": "auto"})";
  const Config config =
      accepted(resolve_run(run_with(R"("model": {"preset": "gpt2-medium"}, )" + zero))).config;
  EXPECT_EQ(config.zero.reduce_bucket_elements, 1024 * 1024);
  EXPECT_EQ(config.zero.prefetch_bucket_elements, 943718);  // 943718.4
  EXPECT_EQ(config.zero.param_persistence_threshold_elements, 10240);
}

TEST(ResolveConfig, ResolvesTheSchedulesAutoFromRunAndOptimizer) {
  const auto config_with = [&](const std::string& type, const std::string& params) {
    return accepted(resolve_run(run_with(
                        R"("run": {"steps": 300}, "optimizer": {"params": {"lr": 0.5}},
                           "scheduler": {"type": ")" +
                        type + R"(", "params": {)" + params + "}}")))
        .config.schedule;
  };
  const Schedule autos =
      config_with("WarmupDecayLR", R"("warmup_max_lr": "auto", "warmup_num_steps": "auto",
                          "warmup_min_lr": "auto", "total_num_steps": "auto")");
  EXPECT_EQ(autos.warmup.max_lr, 0.5);
  EXPECT_EQ(autos.warmup.min_lr, 0);
  EXPECT_EQ(autos.warmup.steps, 30);
  EXPECT_EQ(autos.warmup.total_steps, 300);
  EXPECT_EQ(config_with("WarmupDecayLR", "").warmup.max_lr, 0.001);
  EXPECT_EQ(config_with("WarmupLR", "").warmup.max_lr, 0.5);
  EXPECT_EQ(config_with("WarmupLR", "").warmup.steps, 1000);
}

TEST(ResolveConfig, IgnoresParametersThatTheScheduleDoesNotHave) {
  const auto resolved = accepted(resolve_run(run_with(
      R"("scheduler": {"type": "WarmupLR", "params": {"total_num_steps": 5, "cycle_min_lr": 1}})")));
  const KeyReport report = report_on(resolved, "scheduler.params.total_num_steps");
  EXPECT_EQ(report.outcome, Outcome::kIgnored);
  EXPECT_EQ(report.reason, "scheduler.type WarmupLR has no such parameter");
}

TEST(ResolveConfig, RefusesAutocastAndWhatElseWouldTrainSomethingElse) {
  for (const char* section :
       {"amp", "torch_autocast", "data_efficiency", "curriculum_learning", "progressive_layer_drop",
        "quantize_training", "eigenvalue", "compression_training", "weight_quantization"}) {
    const auto with = [&](const std::string& value) {
      return resolve_deepspeed(run_with("\"" + std::string(section) + "\": " + value));
    };
    EXPECT_THAT(refusal(with(R"({"enabled": true, "dtype": "bfloat16"})")),
                AllOf(HasSubstr(std::string(section) + " cannot be"), HasSubstr("enabled")));
    EXPECT_THAT(refusal(with(R"({"enabled": "yes"})")), HasSubstr("cannot be"));
    for (const char* off : {"{}", "null", R"({"enabled": false})", R"({"enabled": "auto"})",
                            R"({"dtype": "bfloat16"})"}) {
      EXPECT_EQ(report_on(accepted(with(off)), section).outcome, Outcome::kIgnored) << off;
    }
  }
  EXPECT_THAT(refusal(resolve_run(run_with(R"("torch_autocast": {"enabled": true})"))),
              HasSubstr("bf16.enabled or fp16.enabled"));
}

TEST(ResolveConfig, OneCycleNeedsItsBounds) {
  EXPECT_THAT(refusal(resolve_run(run_with(R"("scheduler": {"type": "OneCycle"})"))),
              AllOf(HasSubstr("cycle_min_lr must be given"), HasSubstr("cycle_max_lr")));
}

TEST(ResolveConfig, Fp8IsForRunsInBf16) {
  const std::string fp8 = R"("fp8": {"enabled": true})";
  for (const char* const other : {"", R"(, "fp16": {"enabled": true})"})
    EXPECT_THAT(refusal(resolve_run(run_with(fp8 + other))),
                AllOf(HasSubstr("fp8.enabled"), HasSubstr("bf16.enabled")));
  const std::string bf16 = R"("bf16": {"enabled": true}, )";
  EXPECT_FALSE(accepted(resolve_run(run_with(bf16 + R"("fp8": {})"))).config.fp8.recipe().enabled);
  const engine::Fp8Recipe usual = accepted(resolve_run(run_with(bf16 + fp8))).config.fp8.recipe();
  EXPECT_TRUE(usual.enabled);
  EXPECT_FALSE(usual.wide_weight_gradients);
  const std::string wide = R"("fp8": {"enabled": true, "weight_gradient": "bf16"})";
  EXPECT_TRUE(
      accepted(resolve_run(run_with(bf16 + wide))).config.fp8.recipe().wide_weight_gradients);
  EXPECT_THAT(refusal(resolve_run(run_with(bf16 + R"("fp8": {"weight_gradient": "e5m2"})"))),
              HasSubstr("fp8.weight_gradient"));
}

TEST(ResolveConfig, ARunHasOneSixteenBitType) {
  const std::string fp16 = R"("fp16": {"enabled": true})";
  const std::string bf16 = R"("bf16": {"enabled": true})";
  EXPECT_THAT(refusal(resolve_run(run_with(fp16 + "," + bf16))), HasSubstr("are both true"));
  EXPECT_EQ(accepted(resolve_run(run_with(fp16))).config.precision, Precision::kFp16);
  EXPECT_EQ(accepted(resolve_run(run_with(bf16))).config.precision, Precision::kBf16);
  // A later source that asks for the other type overrides the first.
  const auto resolved = accepted(resolve_both(run_with(bf16), "{" + fp16 + "}"));
  EXPECT_EQ(resolved.config.precision, Precision::kFp16);
  EXPECT_FALSE(resolved.config.bf16.enabled);
}

TEST(ResolveConfig, AutoPrecisionIsBf16WhereTheGpuHasItAndElseFp16) {
  const std::string fp16 = R"("fp16": {"enabled": "auto"})";
  const std::string bf16 = R"("bf16": {"enabled": "auto"})";
  const auto with = [&](const std::string& more, std::optional<GpuKind> gpu) {
    return accepted(resolve({.deepspeed = Source{"ds.json", run_with(more)},
                             .facts = {.gpu = gpu, .samples_per_epoch = {}}}));
  };
  const std::string both = fp16 + "," + bf16;
  EXPECT_EQ(with(both, GpuKind::kWithBf16).config.precision, Precision::kBf16);
  EXPECT_EQ(with(both, GpuKind::kWithoutBf16).config.precision, Precision::kFp16);
  const auto on_cpu = with(both, GpuKind::kNone);
  EXPECT_EQ(on_cpu.config.precision, Precision::kBf16);
  EXPECT_FALSE(on_cpu.config.fp16.enabled);
  EXPECT_THAT(report_on(on_cpu, "bf16.enabled").reason, HasSubstr("the CPU computes"));
  EXPECT_EQ(with(bf16, GpuKind::kWithoutBf16).config.precision, Precision::kFp16);
  EXPECT_EQ(with(fp16, GpuKind::kWithBf16).config.precision, Precision::kFp16);
  EXPECT_EQ(with(R"("fp16": {"enabled": false}, )" + bf16, GpuKind::kWithoutBf16).config.precision,
            Precision::kFp32);
  EXPECT_EQ(with(R"("fp16": {"enabled": true}, )" + bf16, GpuKind::kWithBf16).config.precision,
            Precision::kFp16);

  // The machine's GPU is asked for only if it matters; a configuration results either way.
  EXPECT_TRUE(with(both, {}).missing_facts.gpu);
  EXPECT_EQ(with(both, {}).config.precision, Precision::kBf16);
  EXPECT_FALSE(with(both, GpuKind::kNone).missing_facts.gpu);
  EXPECT_FALSE(with(both + R"(, "run": {"device": "cpu"})", {}).missing_facts.gpu);
  EXPECT_FALSE(with(R"("bf16": {"enabled": true}, )" + fp16, {}).missing_facts.gpu);
  // Stored as resolved: a run continues in the type in which it began.
  EXPECT_THAT(to_json(with(both, GpuKind::kWithoutBf16)), HasSubstr(R"("enabled": true)"));
}

TEST(ResolveConfig, AdamIsAdamWUnlessItsModeIsOff) {
  const auto optimizer = [](const std::string& type, const std::string& params) {
    return accepted(resolve_run(run_with(R"("optimizer": {"type": ")" + type + R"(", "params": {)" +
                                         params + "}}")))
        .config.optimizer;
  };
  EXPECT_TRUE(optimizer("Adam", "").adam_w_mode);
  EXPECT_FALSE(optimizer("adam", R"("adam_w_mode": false)").adam_w_mode);
  EXPECT_TRUE(optimizer("AdamW", R"("adam_w_mode": false)").adam_w_mode);
  // PyTorch's AdamW decays by default; DeepSpeed's does not.
  EXPECT_EQ(optimizer("AdamW", R"("torch_adam": true)").weight_decay, 0.01);
  EXPECT_EQ(optimizer("AdamW", R"("torch_adam": true, "weight_decay": 0)").weight_decay, 0);
  EXPECT_EQ(optimizer("Adam", R"("torch_adam": true, "adam_w_mode": false)").weight_decay, 0);
}

TEST(ResolveConfig, ReadsTheNamesOfOlderFiles) {
  const auto resolved = accepted(resolve_deepspeed(
      R"({"train_batch_size": 8, "bfloat16": {"enabled": true}, "aio": {"thread_count": 3},
          "zero_optimization": {"stage": 2, "cpu_offload": true, "max_live_parameters": 7}})"));
  EXPECT_EQ(resolved.config.precision, Precision::kBf16);
  EXPECT_EQ(resolved.config.aio.threads, 3);
  EXPECT_EQ(resolved.config.zero.offload_optimizer.device, OffloadDevice::kCpu);
  EXPECT_EQ(resolved.config.zero.max_live_elements, 7);
  EXPECT_EQ(report_on(resolved, "aio.intra_op_parallelism").reason, "given as aio.thread_count");
  EXPECT_EQ(accepted(resolve_deepspeed(R"({"train_batch_size": 8, "zero_optimization": true})"))
                .config.zero.stage,
            1);
  EXPECT_THAT(
      refusal(resolve_deepspeed(
          R"({"train_batch_size": 8, "aio": {"thread_count": 3, "intra_op_parallelism": 3}})")),
      HasSubstr("given twice"));
}

TEST(ResolveConfig, AcceptsOldNamesOfKeysAndSaysTheNewOnes) {
  for (const auto& [value, expected] :
       {std::pair(R"("on")", Tristate::kOn), std::pair(R"("off")", Tristate::kOff),
        std::pair(R"("auto")", Tristate::kAuto), std::pair("true", Tristate::kOn)}) {
    const auto resolved = accepted(
        resolve_run(run_with(R"("placement": {"boundaries_to_cpu": )" + std::string(value) + "}")));
    EXPECT_EQ(resolved.config.placement.unit_inputs_to_cpu, expected) << value;
    EXPECT_EQ(renamed_keys(resolved),
              "placement.boundaries_to_cpu is now placement.unit_inputs_to_cpu (the old names "
              "still work)");
    EXPECT_THAT(report_on(resolved, "placement.unit_inputs_to_cpu").reason,
                HasSubstr("placement.boundaries_to_cpu"));
    // The resolved configuration has the new name alone, and nothing to say about it.
    const std::string json = to_json(resolved);
    EXPECT_THAT(json, Not(HasSubstr("boundaries_to")));
    const auto again = accepted(resolve_run(json));
    EXPECT_EQ(renamed_keys(again), "");
    EXPECT_TRUE(changed_keys(resolved.config, again.config).empty());
  }
}

TEST(ResolveConfig, OldAndNewNameInOneSourceAreRefusedByBothNames) {
  for (const char* both :
       {R"("placement": {"boundaries_to_cpu": "on", "unit_inputs_to_cpu": "on"})",
        R"("placement": {"unit_inputs_to_cpu": "off", "boundaries_to_cpu": "on"})"})
    EXPECT_THAT(refusal(resolve_run(run_with(both))),
                AllOf(HasSubstr("placement.unit_inputs_to_cpu is given twice"),
                      HasSubstr("placement.boundaries_to_cpu: keep")));
  // A later source wins, under either name.
  const std::string on = run_with(R"("placement": {"boundaries_to_cpu": "on"})");
  const auto off = accepted(resolve_run(on, {"placement.unit_inputs_to_cpu=off"}));
  EXPECT_EQ(off.config.placement.unit_inputs_to_cpu, Tristate::kOff);
  EXPECT_EQ(renamed_keys(off), "");
  const auto old_last = accepted(resolve_run(on, {"placement.boundaries_to_cpu=off"}));
  EXPECT_EQ(old_last.config.placement.unit_inputs_to_cpu, Tristate::kOff);
}

TEST(ResolveConfig, StagesBelowThreeTrainAlikeOnOneRank) {
  const auto resolved = accepted(resolve_run(run_with(R"("zero_optimization": {"stage": 2})")));
  EXPECT_EQ(report_on(resolved, "zero_optimization.stage").outcome, Outcome::kHonoured);
  EXPECT_THAT(report_on(resolved, "zero_optimization.stage").reason, HasSubstr("one rank"));
}

TEST(ResolveConfig, CpuCheckpointingKeepsUnitInputsInRam) {
  const std::string text = run_with(R"("activation_checkpointing": {"cpu_checkpointing": true})");
  EXPECT_EQ(accepted(resolve_run(text)).config.placement.unit_inputs_to_cpu, Tristate::kOn);
  EXPECT_EQ(accepted(resolve_run(text, {"placement.unit_inputs_to_cpu=off"}))
                .config.placement.unit_inputs_to_cpu,
            Tristate::kOff);
  EXPECT_EQ(accepted(resolve_run(text, {"placement.unit_inputs_to_cpu=false"}))
                .config.placement.unit_inputs_to_cpu,
            Tristate::kOff);
}

TEST(ResolveConfig, OverridesAreJsonOrElseText) {
  const Config config =
      accepted(resolve_run(R"({"train_batch_size": 8, "budget": {"gpu_gib": 24}})",
                           {"run.dir=out/a=b", "run.resume=100", "data.train=[\"x.bin\"]",
                            "optimizer.params.betas=[0.5, 0.25]", "fp16={\"enabled\": true}",
                            "budget.gpu_gib=null", "model.preset=gpt2-large"}))
          .config;
  EXPECT_EQ(config.run.dir, "out/a=b");
  EXPECT_EQ(config.run.resume, "100");
  EXPECT_THAT(config.data.train, ElementsAre("x.bin"));
  EXPECT_EQ(config.optimizer.betas, (Betas{0.5, 0.25}));
  EXPECT_TRUE(config.fp16.enabled);
  EXPECT_FALSE(config.budget.gpu_gib.has_value());
  EXPECT_EQ(config.model.layers, 36);
}

TEST(ResolveConfig, ChecksTheFormOfOverrides) {
  const std::string run = R"({"train_batch_size": 8})";
  EXPECT_THAT(refusal(resolve_run(run, {"run.steps"})), HasSubstr("section.key=value"));
  EXPECT_THAT(refusal(resolve_run(run, {"=5"})), HasSubstr("section.key=value"));
  EXPECT_THAT(refusal(resolve_run(run, {"run..steps=5"})), HasSubstr("not the path"));
  EXPECT_THAT(refusal(resolve_run(run, {"run.step=5"})), HasSubstr("did you mean run.steps?"));
  EXPECT_THAT(refusal(resolve_run(run, {"run=5"})), HasSubstr("run is a section"));
  EXPECT_THAT(refusal(resolve_run(run, {"run.steps=many"})),
              ContainsRegex("--set: run.steps.*not \"many\""));
  EXPECT_THAT(refusal(resolve_run(run, {"run.dir=\xff\xfe"})), HasSubstr("not UTF-8"));
}

TEST(ResolveConfig, EarlyStoppingKeepsTheBestCheckpointAndNeedsEvaluations) {
  const auto with = [](const std::string& run, const std::string& stopping) {
    return resolve_run(
        run_with(R"("run": {)" + run + R"(}, "early_stopping": {)" + stopping + "}"));
  };
  const std::string evaluates = R"("eval_every": 5)";
  const Resolved stops = accepted(with(evaluates, R"("patience": 2, "min_delta": 0.5)"));
  EXPECT_TRUE(stops.config.run.keep_best);
  EXPECT_EQ(stops.config.early_stopping.min_delta, 0.5);
  EXPECT_EQ(report_on(stops, "run.keep_best").reason, "early_stopping.patience");
  EXPECT_FALSE(accepted(with(evaluates + R"(, "keep_best": false)", R"("patience": 2)"))
                   .config.run.keep_best);
  EXPECT_FALSE(accepted(with(evaluates, "")).config.run.keep_best);
  EXPECT_THAT(refusal(with("", R"("patience": 2)")), HasSubstr("set run.eval_every"));
  EXPECT_THAT(refusal(with(R"("keep_best": true)", "")), HasSubstr("set run.eval_every"));
  EXPECT_THAT(refusal(resolve_run(run_with(R"("run": {"eval_every": 5, "keep_best": true},
                                              "data": {"validation_fraction": 0})"))),
              HasSubstr("run.keep_best needs validation data"));
  const Resolved unused = accepted(with(evaluates, R"("min_delta": 0.5)"));
  const auto reports = reports_on(unused, "early_stopping.min_delta");
  EXPECT_TRUE(std::ranges::any_of(
      reports, [](const KeyReport& it) { return it.outcome == Outcome::kIgnored; }));
}

TEST(ResolveConfig, ChecksTheWorldSize) {
  EXPECT_THAT(refusal(resolve_run(R"({"train_batch_size": 8})", {}, 0)), HasSubstr("world size"));
}

TEST(ResolveConfig, CanonicalFormResolvesToItself) {
  for (const char* more : {
           R"("fp16": {"enabled": true})",
           R"("bf16": {"enabled": true}, "model": {"preset": "gpt2-xl", "dropout": 0})",
           R"("scheduler": {"type": "OneCycle", "params": {"cycle_min_lr": 0, "cycle_max_lr": 1}})",
           R"("scheduler": {"type": "WarmupCosineLR"}, "run": {"steps": 77})",
           R"("zero_optimization": {"offload_param": {"device": "nvme", "nvme_path": "/a"},
              "reduce_bucket_size": "auto"}, "budget": {"cpu_gib": 1.5, "nvme_paths": "/b"})",
           R"("optimizer": {"type": "Adam", "params": {"torch_adam": true, "lr": 0.1}})",
           R"("activation_checkpointing": {"cpu_checkpointing": true})",
       }) {
    SCOPED_TRACE(more);
    const std::string once = to_json(accepted(resolve_run(run_with(more))).config);
    const auto again = accepted(resolve_run(once));
    EXPECT_EQ(to_json(again.config), once);
    for (const KeyReport& report : again.reports) {
      EXPECT_NE(report.outcome, Outcome::kIgnored) << report.path << ": " << report.reason;
    }
  }
}

}  // namespace
}  // namespace sluice::config
