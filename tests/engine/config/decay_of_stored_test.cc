// What weight decay applies to: by default, in a DeepSpeed file, and in a resumed run; and the
// origin of the weights of a resumed run, and its lanes.
#include <array>

#include "engine/config/kept_keys.h"
#include "engine/config/report.h"
#include "tests/engine/config/resolving.h"

namespace sluice::config {
namespace {

using testing::HasSubstr;

constexpr const char* kRun = R"({"train_batch_size": 8,
                                 "optimizer": {"params": {"weight_decay": 0.1}}})";
constexpr const char* kKey = kDecayedKey;

DecayedParameters decayed(const Resolved& resolved) {
  return resolved.config.optimizer.decayed_parameters;
}

TEST(DecayedParameters, LeaveOutVectorsInOurFilesAndNothingInDeepSpeeds) {
  EXPECT_EQ(decayed(accepted(resolve_run(kRun))), DecayedParameters::kMatrices);
  EXPECT_EQ(decayed(accepted(resolve_run(kRun, {std::string(kKey) + "=all"}))),
            DecayedParameters::kAll);
  EXPECT_EQ(decayed(accepted(resolve_deepspeed(kRun))), DecayedParameters::kAll);
  const Resolved both = accepted(resolve_both(R"({"train_batch_size": 8})", kRun));
  EXPECT_EQ(decayed(both), DecayedParameters::kAll);
  EXPECT_THAT(report_on(both, kKey).reason, HasSubstr("DeepSpeed"));
  EXPECT_EQ(decayed(accepted(resolve_both(R"({"train_batch_size": 8})", kRun,
                                          {std::string(kKey) + "=matrices"}))),
            DecayedParameters::kMatrices);
}

TEST(DecayedParameters, StayWhatTheyWereInARunFromBeforeTheKey) {
  Resolved now = accepted(resolve_run(kRun));
  EXPECT_THAT(keep_decayed_parameters(kRun, now), HasSubstr("to all parameters"));
  EXPECT_EQ(decayed(now), DecayedParameters::kAll);
  // And after it was stored.
  Resolved again = accepted(resolve_run(kRun));
  EXPECT_NE(keep_decayed_parameters(to_json(now.config), again), "");
  EXPECT_EQ(decayed(again), DecayedParameters::kAll);
}

TEST(DecayedParameters, ChangeWhereTheNewConfigurationGivesThemAndThatIsSaid) {
  Resolved now = accepted(resolve_run(kRun, {std::string(kKey) + "=matrices"}));
  EXPECT_EQ(keep_decayed_parameters(kRun, now),
            "optimizer.params.decayed was all, and is matrices from now on");
  EXPECT_EQ(decayed(now), DecayedParameters::kMatrices);
}

TEST(DecayedParameters, AreNotMentionedWhereNothingChangesOrDecays) {
  const std::string stored = to_json(accepted(resolve_run(kRun)).config);
  Resolved now = accepted(resolve_run(kRun));
  EXPECT_EQ(keep_decayed_parameters(stored, now), "");
  Resolved without = accepted(resolve_run(R"({"train_batch_size": 8})"));
  EXPECT_EQ(keep_decayed_parameters(kRun, without), "");
  EXPECT_EQ(decayed(without), DecayedParameters::kAll);
}

TEST(Lanes, StayWhatTheyWereUnlessTheyAreGivenOrDoNotDivideTheStep) {
  const auto kept = [](const std::string& file, const KeptLanes& had) {
    Resolved now = accepted(resolve_run(file));
    keep_lanes(had, now);
    return std::array{now.config.run.lanes, now.config.run.rounds};
  };
  const std::string plain =
      R"({"train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 12})";
  const std::string given = R"({"train_micro_batch_size_per_gpu": 1,
      "gradient_accumulation_steps": 12, "run": {"lanes": 1}})";
  using Both = std::array<std::int64_t, 2>;
  EXPECT_EQ(kept(plain, {.lanes = 4, .rounds = 3}), (Both{4, 3}));
  EXPECT_EQ(kept(given, {.lanes = 4, .rounds = 3}), (Both{1, 3}));
  EXPECT_EQ(kept(given, {.lanes = 4, .rounds = 5}), (Both{1, 1}));
  EXPECT_EQ(kept(plain, {.lanes = 5, .rounds = 1}), (Both{1, 1}));
  EXPECT_EQ(kept(plain, {.lanes = 4, .rounds = std::int64_t{1} << 62}), (Both{1, 1}));
}

// The lanes of a run on any number of ranks stay on one rank; several ranks keep as many as they
// can share.
TEST(Lanes, StayOnAnotherNumberOfRanksThatCanShareThem) {
  const std::string run = R"({"train_batch_size": 24, "train_micro_batch_size_per_gpu": 1})";
  const auto kept = [&](std::int64_t world, const KeptLanes& had, std::string& said) {
    Resolved now = accepted(resolve_run(run, {}, world));
    said = keep_lanes(had, now);
    return now.config.run.lanes;
  };
  std::string said;
  for (const std::int64_t lanes : {1, 3, 6, 12}) {
    EXPECT_EQ(kept(1, {.lanes = lanes}, said), lanes);
    EXPECT_EQ(said, "");
  }
  EXPECT_EQ(kept(2, {.lanes = 4}, said), 4);
  EXPECT_EQ(kept(3, {.lanes = 6}, said), 6);
  EXPECT_EQ(said, "");
  EXPECT_EQ(kept(2, {.lanes = 6}, said), 6);
  EXPECT_EQ(kept(2, {.lanes = 2, .rounds = 2}, said), 2);
  EXPECT_EQ(said, "");
  EXPECT_EQ(kept(2, {.lanes = 3}, said), 2);
  EXPECT_EQ(said,
            "gradients were accumulated in 3 lanes, which 2 ranks cannot share; from now on "
            "run.lanes is 2");
  EXPECT_EQ(kept(2, {.lanes = 1}, said), 2);
  EXPECT_NE(said.find("in 1 lane, which"), std::string::npos);
}

std::string of_llama(const std::string& model, const std::string& recipe = "") {
  return R"({"train_batch_size": 8, "model": {"preset": "qwen3-8b")" + model + "}" + recipe + "}";
}

// A path from a later source than the run's own file is the model's current location.
TEST(Origin, OfWeightsIsTheModelsPathUnlessItIsSaidBesideOrAfter) {
  const std::string kept = R"({"train_batch_size": 8, "model": {"path": "a", "init_from": "b",
      "family": "llama", "layers": 2, "hidden": 64, "heads": 4, "context": 32, "vocab": 99}})";
  EXPECT_EQ(accepted(resolve_run(kept)).config.model.init_from, "b");
  EXPECT_EQ(accepted(resolve_run(kept, {"model.path=c"})).config.model.init_from, "c");
  EXPECT_EQ(
      accepted(resolve_run(kept, {"model.path=c", "model.init_from=d"})).config.model.init_from,
      "d");
  EXPECT_EQ(accepted(resolve_run(kept, {"model.init_from=d"})).config.model.init_from, "d");
}

TEST(Origin, OfAResumedRunStaysWhatItWas) {
  const std::string stored = of_llama(R"(, "init_from": "/models/a")");
  Resolved same = accepted(resolve_run(of_llama(R"(, "init_from": "a")")));
  EXPECT_EQ(keep_origin(stored, "/models", same), "");
  EXPECT_EQ(same.config.model.init_from, "/models/a");
  Resolved other = accepted(resolve_run(of_llama(R"(, "init_from": "a")")));
  EXPECT_EQ(keep_origin(stored, "/data", other),
            "model.init_from a has no effect: the weights come from the checkpoint, and that run "
            "started from "
            "/models/a");
  EXPECT_EQ(other.config.model.init_from, "/models/a");
  Resolved silent = accepted(resolve_run(of_llama("")));
  EXPECT_EQ(keep_origin(stored, "/models", silent), "");
  EXPECT_EQ(silent.config.model.init_from, "/models/a");
}

TEST(Origin, OfResumedAdaptersStaysAndTheirBaseMayMove) {
  const auto recipe = [](const std::string& adapter) {
    return R"(, "recipe": {"lora": {"rank": 4, "adapter": ")" + adapter + R"("}})";
  };
  const std::string stored = of_llama(R"(, "init_from": "/models/a")", recipe("/models/first"));
  Resolved now =
      accepted(resolve_run(of_llama(R"(, "init_from": "/moved/a")", recipe("/models/second"))));
  EXPECT_THAT(keep_origin(stored, "/", now), HasSubstr("recipe.lora.adapter /models/second"));
  EXPECT_EQ(now.config.lora.adapter, "/models/first");
  EXPECT_EQ(now.config.model.init_from, "/moved/a");
}

// For example of an older program, with a value that is refused today.
TEST(DecayedParameters, AreKnownThoughTheStoredConfigurationNoLongerResolves) {
  const std::string refused = R"({"train_batch_size": 8, "amp": {"enabled": true})";
  ASSERT_FALSE(resolve_run(refused + "}").ok());
  Resolved now = accepted(resolve_run(kRun));
  EXPECT_THAT(keep_decayed_parameters(refused + "}", now), HasSubstr("to all parameters"));
  EXPECT_EQ(decayed(now), DecayedParameters::kAll);
  Resolved given = accepted(resolve_run(kRun));
  EXPECT_EQ(keep_decayed_parameters(
                refused + R"(, "optimizer": {"params": {"decayed": "matrices"}}})", given),
            "");
  EXPECT_EQ(decayed(given), DecayedParameters::kMatrices);
}

TEST(CheckpointsInPlace, AreOneAndOfOneRank) {
  const std::string key = "run.checkpoint_in_place=true";
  EXPECT_EQ(accepted(resolve_run(kRun, {key})).config.run.keep_last_checkpoints, 1);
  EXPECT_EQ(accepted(resolve_run(kRun)).config.run.keep_last_checkpoints, 2);
  for (const char* const kept : {"run.keep_last=2", "run.keep_last=0"})
    EXPECT_THAT(refusal(resolve_run(kRun, {key, kept})), HasSubstr("set run.keep_last to 1"));
  EXPECT_THAT(refusal(resolve_run(kRun, {key, "run.checkpoint_background=on"})),
              HasSubstr("run.checkpoint_background"));
  EXPECT_THAT(refusal(resolve_run(kRun, {key, "run.keep_best=true", "run.eval_every=1",
                                         "data.validation_fraction=0.1"})),
              HasSubstr("run.keep_best"));
  EXPECT_THAT(refusal(resolve_run(kRun, {key}, 2)), HasSubstr("one rank"));
}

TEST(CheckpointsInPlace, StaySoInAResumedRun) {
  const std::string stored = to_json(accepted(resolve_run(kRun)).config);
  Resolved now = accepted(resolve_run(kRun, {"run.keep_last=3"}));
  EXPECT_THAT(keep_checkpoint_in_place(now), HasSubstr("sluice copy"));
  EXPECT_TRUE(now.config.run.checkpoint_in_place);
  EXPECT_EQ(now.config.run.keep_last_checkpoints, 1);
  EXPECT_EQ(keep_number_of_checkpoints(stored, now), "");  // of before it was turned on
  EXPECT_EQ(now.config.run.keep_last_checkpoints, 1);
  EXPECT_EQ(keep_checkpoint_in_place(now), "");
}

TEST(KeptCheckpoints, AreAsManyAsBeforeUnlessTheirNumberIsGiven) {
  const std::string all = to_json(accepted(resolve_run(kRun, {"run.keep_last=0"})).config);
  Resolved now = accepted(resolve_run(kRun));
  EXPECT_EQ(
      keep_number_of_checkpoints(all, now),
      "all checkpoints are kept, as in this run so far; to change that: --set run.keep_last=2");
  EXPECT_EQ(now.config.run.keep_last_checkpoints, 0);
  Resolved given = accepted(resolve_run(kRun, {"run.keep_last=3"}));
  EXPECT_EQ(keep_number_of_checkpoints(all, given), "");
  EXPECT_EQ(given.config.run.keep_last_checkpoints, 3);
  EXPECT_EQ(keep_best_checkpoint(all, now), "");
  EXPECT_THAT(keep_best_checkpoint(R"({"run": {"keep_best": true}})", now),
              HasSubstr("--set run.keep_best=false"));
  EXPECT_TRUE(now.config.run.keep_best);
  EXPECT_EQ(keep_number_of_checkpoints(kRun, now), "");  // it says nothing
  EXPECT_THAT(refusal(resolve_run(kRun, {"run.keep_last=4294967297"})), HasSubstr("1000000"));
}

TEST(NonFiniteStep, IsDeepSpeedsSwitchWhereThatIsOn) {
  const auto fate = [](const char* bf16) {
    return accepted(
        resolve_deepspeed(std::string(R"({"train_batch_size": 8, "bf16": )") + bf16 + "}"));
  };
  const Resolved skips = fate(R"({"enabled": true, "check_grad_overflow": true})");
  EXPECT_EQ(skips.config.run.non_finite_step, NonFiniteStep::kSkip);
  EXPECT_THAT(report_on(skips, "run.non_finite_step").reason,
              HasSubstr("bf16.check_grad_overflow"));
  for (const char* const off : {"false", "null", "\"auto\""}) {
    const Resolved stops =
        fate((R"({"enabled": true, "check_overflow": )" + std::string(off) + "}").c_str());
    EXPECT_EQ(stops.config.run.non_finite_step, NonFiniteStep::kStop) << off;
  }
  const auto wrong = resolve_deepspeed(R"({"train_batch_size": 8,
                                           "bf16": {"check_grad_overflow": "often"}})");
  EXPECT_THAT(refusal(wrong), HasSubstr("bf16.check_grad_overflow must be"));
}

// The switch belongs to bf16, so it has no effect on a run in fp32.
TEST(NonFiniteStep, IsDeepSpeedsSwitchInBf16Alone) {
  const auto both = [](const std::string& run, const std::string& bf16) {
    return accepted(resolve_both(R"({"train_batch_size": 8, "run": {)" + run + "}}",
                                 R"({"bf16": {)" + bf16 + "}}"));
  };
  const auto fate = [](const Resolved& resolved) { return resolved.config.run.non_finite_step; };
  const Resolved fp32 = both("", R"("enabled": false, "check_grad_overflow": true)");
  EXPECT_EQ(fate(fp32), NonFiniteStep::kStop);
  EXPECT_THAT(reports_on(fp32, "bf16.check_grad_overflow").back().reason,
              HasSubstr("compute in bf16"));
  const std::string skip = R"("non_finite_step": "skip")";
  EXPECT_EQ(fate(both(skip, R"("enabled": false, "check_grad_overflow": false)")),
            NonFiniteStep::kSkip);
  // The later source wins, and "off" means stop.
  const Resolved off = both(skip, R"("enabled": true, "check_grad_overflow": false)");
  EXPECT_EQ(fate(off), NonFiniteStep::kStop);
  EXPECT_EQ(format_autos(off), "");
  EXPECT_EQ(reports_on(off, "run.non_finite_step").back().reason,
            "a later source gives bf16.check_grad_overflow");
  const Resolved left = both(skip, R"("enabled": true, "check_overflow": "auto")");
  EXPECT_EQ(fate(left), NonFiniteStep::kSkip);
  EXPECT_THAT(format_autos(left), HasSubstr("bf16.check_grad_overflow"));
  const Resolved on = accepted(resolve_both(R"({"train_batch_size": 8})",
                                            R"({"bf16": {"enabled": true,
                                                         "check_grad_overflow": true}})",
                                            {"run.non_finite_step=stop"}));
  EXPECT_EQ(fate(on), NonFiniteStep::kStop);
  EXPECT_THAT(refusal(resolve_run(R"({"train_batch_size": 8, "run": {"non_finite_step": "stop"},
                                      "bf16": {"enabled": true, "check_grad_overflow": true}})")),
              HasSubstr("disagree"));
  // The stored form means the same, and a later source overrides it.
  const std::string kept = to_json(both(skip, R"("enabled": true)").config);
  EXPECT_EQ(to_json(accepted(resolve_run(kept)).config), kept);
  EXPECT_EQ(fate(accepted(resolve_run(kept, {"run.non_finite_step=stop"}))), NonFiniteStep::kStop);
  EXPECT_EQ(fate(accepted(resolve_run(kept, {"bf16.enabled=false"}))), NonFiniteStep::kSkip);
}

TEST(NonFiniteStep, IsSkippedWithAFixedLossScaleAloneUnlessItIsSaid) {
  const auto fate = [](const std::string& more) {
    return accepted(resolve_run(R"({"train_batch_size": 8)" + more + "}"))
        .config.run.non_finite_step;
  };
  EXPECT_EQ(fate(""), NonFiniteStep::kStop);
  EXPECT_EQ(fate(R"(, "fp16": {"enabled": true})"), NonFiniteStep::kStop);
  EXPECT_EQ(fate(R"(, "fp16": {"enabled": true, "loss_scale": 8})"), NonFiniteStep::kSkip);
  EXPECT_EQ(fate(R"(, "fp16": {"loss_scale": 8})"), NonFiniteStep::kStop);
  EXPECT_EQ(fate(R"(, "fp16": {"enabled": true, "loss_scale": 8},
                     "run": {"non_finite_step": "stop"})"),
            NonFiniteStep::kStop);
}

}  // namespace
}  // namespace sluice::config
