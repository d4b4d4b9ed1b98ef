#include "tools/measure/gpu_profile.h"

#include <gtest/gtest.h>

namespace sluice::tools {
namespace {

TEST(GpuProfile, CountsWhatRunsAtOnceOnceAsBusyAndWholeForEachKernel) {
  const std::vector<GpuEvent> events = {
      {"void norm<float>(float*)", 3'000, 4'000},  // in any order
      {"void gemm(int)", 1'000, 2'000},
      {"void gemm(int)", 1'500, 2'500},
      {"Memcpy HtoD (Pinned -> Device)", 2'400, 3'200},
  };
  const GpuProfile profile = profile_of(events, 2);
  EXPECT_DOUBLE_EQ(profile.wall_seconds, 3e-6);
  EXPECT_DOUBLE_EQ(profile.busy_seconds, 2.5e-6);
  EXPECT_DOUBLE_EQ(profile.copying_seconds, 0.8e-6);
  ASSERT_EQ(profile.kernels.size(), 2U);
  EXPECT_EQ(profile.kernels[0].name, "void gemm(int)");
  EXPECT_EQ(profile.kernels[0].calls, 2U);
  EXPECT_DOUBLE_EQ(profile.kernels[0].seconds, 2e-6);
  EXPECT_EQ(profile.kernels[1].name, "void norm<float>(float*)");
  ASSERT_EQ(profile.copies.size(), 1U);
  EXPECT_EQ(profile.copies[0].name, "Memcpy HtoD (Pinned -> Device)");
}

TEST(GpuProfile, ASpanInsideAnotherAddsNothing) {
  const std::vector<GpuEvent> events = {
      {"a", 0, 10'000}, {"b", 1'000, 2'000}, {"c", 9'000, 12'000}};
  EXPECT_DOUBLE_EQ(profile_of(events, 1).busy_seconds, 12e-6);
}

// ATen's names are long, and differ only near their end.
TEST(GpuProfile, KernelsThatAreShownAlikeAreCountedApart) {
  const std::string same(100, 'k');
  const std::vector<GpuEvent> events = {{same + "<1>", 0, 1'000}, {same + "<2>", 1'000, 3'000}};
  const GpuProfile profile = profile_of(events, 1);
  ASSERT_EQ(profile.kernels.size(), 2U);
  EXPECT_EQ(profile.kernels[0].name, same + "<2>");
}

TEST(GpuProfile, NothingRecordedIsNothing) {
  const GpuProfile profile = profile_of({}, 1);
  EXPECT_EQ(profile.wall_seconds, 0);
  EXPECT_TRUE(profile.kernels.empty());
  EXPECT_NE(profile.table(3).find("a kernel runs"), std::string::npos);
}

TEST(GpuProfile, TableIsAStepAndSumsUpWhatItDoesNotShow) {
  const std::vector<GpuEvent> events = {
      {"a", 0, 4'000'000}, {"b", 4'000'000, 6'000'000}, {"c", 6'000'000, 8'000'000}};
  const std::string table = profile_of(events, 2).table(1);
  EXPECT_NE(table.find("2.000 ms"), std::string::npos) << table;  // a, of two steps
  EXPECT_NE(table.find("the other kernels"), std::string::npos) << table;
  EXPECT_EQ(table.find("  b "), std::string::npos) << table;
  EXPECT_NE(table.find("50.0%"), std::string::npos) << table;
}

TEST(ShortKernelName, LeavesOutWhatTellsNothing) {
  EXPECT_EQ(short_kernel_name("void at::native::vectorized_elementwise_kernel<4, "
                              "at::native::FillFunctor<float> >(int, at::native::FillFunctor)"),
            "vectorized_elementwise_kernel<4, FillFunctor<float> >");
  EXPECT_EQ(short_kernel_name("nvjet_hsh_128x256_64x4_2x1_v_bz_coopA_NTN"),
            "nvjet_hsh_128x256_64x4_2x1_v_bz_coopA_NTN");
  EXPECT_EQ(short_kernel_name("sluice::engine::(anonymous namespace)::cast(float const*)"), "cast");
  EXPECT_LE(short_kernel_name(std::string(500, 'x')).size(), 72U);
}

// A function's self time excludes the functions that it called.
TEST(SelfTimes, AreWithoutWhatWasCalled) {
  const std::vector<GpuEvent> events = {
      {"add", 6'000, 7'000},  // in any order
      {"linear", 0, 5'000},  {"mm", 1'000, 4'000},  {"copy", 2'000, 2'500},
      {"mm", 8'000, 9'000},  {"add", 9'000, 9'500}, {"copy", 9'000, 9'200},
  };
  const std::vector<GpuProfile::Kernel> times = self_times(events);
  ASSERT_EQ(times.size(), 4U);
  EXPECT_EQ(times[0].name, "mm");
  EXPECT_EQ(times[0].calls, 2U);
  EXPECT_DOUBLE_EQ(times[0].seconds, 3.5e-6);
  EXPECT_EQ(times[1].name, "linear");
  EXPECT_DOUBLE_EQ(times[1].seconds, 2e-6);
  EXPECT_EQ(times[2].name, "add");
  EXPECT_DOUBLE_EQ(times[2].seconds, 1.3e-6);
  EXPECT_EQ(times[3].name, "copy");
  EXPECT_DOUBLE_EQ(times[3].seconds, 0.7e-6);
  EXPECT_TRUE(self_times({}).empty());
}

TEST(PhaseTimes, AreInTheOrderOfPhasesWithWhatNoPassComputedLast) {
  using engine::PassPhase;
  const std::vector<GpuEvent> events = {
      {"adam", 9'000, 9'500},
      {"gemm", 3'000, 6'000, PassPhase::kBackward},
      {"gemm", 1'000, 2'000, PassPhase::kForward},
      {"norm", 2'000, 2'500, PassPhase::kForward},
      {"unpack", 500, 1'000, PassPhase::kAwaitParams},
      {"Memcpy HtoD (Pinned -> Device)", 0, 500, PassPhase::kForward},
  };
  const std::vector<PhaseTimes> phases = kernels_by_phase(events);
  ASSERT_EQ(phases.size(), 3U);
  EXPECT_EQ(phases[0].name, "forward");
  EXPECT_DOUBLE_EQ(phases[0].seconds, 1.5e-6);
  ASSERT_EQ(phases[0].kernels.size(), 2U);
  EXPECT_EQ(phases[0].kernels[0].name, "gemm");
  EXPECT_DOUBLE_EQ(phases[0].kernels[0].seconds, 1e-6);
  EXPECT_EQ(phases[1].name, "backward");
  EXPECT_DOUBLE_EQ(phases[1].seconds, 3e-6);
  EXPECT_EQ(phases[2].name, "the rest");
  EXPECT_DOUBLE_EQ(phases[2].seconds, 1e-6);
}

TEST(PhaseTimes, OfOperatorsAreTheirOwn) {
  using engine::PassPhase;
  const std::vector<GpuEvent> calls = {{"linear", 0, 5'000, PassPhase::kForward},
                                       {"mm", 1'000, 4'000, PassPhase::kForward},
                                       {"mm", 6'000, 7'000, PassPhase::kRecompute}};
  const std::vector<PhaseTimes> phases = operators_by_phase(calls);
  ASSERT_EQ(phases.size(), 2U);
  EXPECT_DOUBLE_EQ(phases[0].seconds, 5e-6);
  EXPECT_EQ(phases[0].kernels[0].name, "mm");
  EXPECT_DOUBLE_EQ(phases[0].kernels[0].seconds, 3e-6);
  EXPECT_EQ(phases[1].name, "recompute");
}

TEST(PhaseTimes, AreNoneWhereNoPhaseIsKnown) {
  const std::vector<GpuEvent> events = {{"gemm", 0, 1'000}};
  EXPECT_TRUE(kernels_by_phase(events).empty());
  EXPECT_EQ(table_by_phase({}, {}), "");
}

TEST(PhaseTimes, TableIsAStepAndSumsUpWhatItDoesNotShow) {
  const std::vector<PhaseTimes> phases = {
      {.name = "forward", .seconds = 6e-3, .kernels = {{"a", 2, 4e-3}, {"b", 4, 2e-3}}},
      {.name = "the rest", .seconds = 1e-3, .kernels = {{"c", 2, 1e-3}}}};
  EXPECT_EQ(table_by_phase(phases, {.steps = 2, .shown = 1, .step_s = 5e-3}),
            "by phase, per step  calls      time  share\n"
            "forward                    3.000 ms  60.0%\n"
            "  a                   1.0  2.000 ms  40.0%\n"
            "  others              2.0  1.000 ms  20.0%\n"
            "the rest                   0.500 ms  10.0%\n"
            "  c                   1.0  0.500 ms  10.0%\n");
}

TEST(SelfTimes, TableIsAStep) {
  const std::vector<GpuProfile::Kernel> times = {{"mm", 8, 4e-3}, {"add", 2, 1e-3}, {"x", 2, 5e-4}};
  const std::string table = operator_table(times, {.steps = 2, .shown = 1, .step_s = 4e-3});
  EXPECT_NE(table.find("mm"), std::string::npos) << table;
  EXPECT_NE(table.find("2.000 ms"), std::string::npos) << table;
  EXPECT_NE(table.find("50.0%"), std::string::npos) << table;
  EXPECT_EQ(table.find("add"), std::string::npos) << table;
  EXPECT_NE(table.find("0.750 ms"), std::string::npos) << table;  // the others
}

}  // namespace
}  // namespace sluice::tools
