#include <ATen/Context.h>
#include <ATen/ops/arange.h>
#include <gtest/gtest.h>

#include <map>
#include <numeric>

#include "engine/budget/configured_model.h"
#include "engine/budget/unit_input_plan.h"
#include "engine/device/gpu.h"
#include "engine/families/families.h"
#include "engine/step/unit_input_store.h"
#include "tests/engine/run/run_under_test.h"

namespace sluice::engine {
namespace {

// Simulates forward and backward with numbers for the inputs on slots and host.
TEST(UnitInputRing, BringsEachBlockBackToItsSlotInTime) {
  for (int blocks = 1; blocks <= 12; ++blocks) {
    for (int slots = 1; slots <= 14; ++slots) {
      const UnitInputRing ring(blocks, slots);
      std::vector<int> held(static_cast<std::size_t>(ring.slots()), -1);
      std::map<int, int> host;
      int copies = 0;
      for (int step = 0; step < 2; ++step) {
        for (int block = 1; block <= blocks; ++block) {
          held.at(static_cast<std::size_t>(ring.slot_of(block))) = 100 * step + block;
          if (ring.moves(block)) host[block] = 100 * step + block;
        }
        EXPECT_EQ(host.size(), static_cast<std::size_t>(ring.moved()));
        for (int block = blocks; block >= 1; --block) {
          auto& slot = held.at(static_cast<std::size_t>(ring.slot_of(block)));
          EXPECT_EQ(slot, 100 * step + block) << blocks << " blocks, " << slots << " slots";
          const int follower = ring.follower(block);
          if (follower == UnitInputRing::kNothing) continue;
          slot = host.at(follower);
          ++copies;
        }
      }
      EXPECT_EQ(copies, 2 * std::max(blocks - slots, 0));
    }
  }
}

TEST(PlainUnitInputStore, GivesBackTheVeryTensorsAndKeepsNone) {
  PlainUnitInputStore store(3);
  std::vector<at::Tensor> inputs = {at::arange(4), at::arange(5)};
  const void* const first = inputs[0].data_ptr();
  store.keep(1, inputs);
  EXPECT_EQ(inputs[0].use_count(), 2U);
  {
    const at::Tensor taken = store.take(1, 0);
    EXPECT_EQ(taken.data_ptr(), first);
    EXPECT_EQ(inputs[0].use_count(), 2U);  // the store's reference is gone
  }
  EXPECT_EQ(inputs[0].use_count(), 1U);
  store.release(1);
  EXPECT_EQ(inputs[1].use_count(), 1U);
  EXPECT_EQ(store.to_host_bytes() + store.from_host_bytes(), 0U);
}

// GPT-2 XL: 48 blocks, rows of 1600 bf16 numbers; 4 micro-batches of 2 x 1024 tokens.
TEST(UnitInputPlan, TakesARingOnTheGpuAndTheRestOnTheHost) {
  constexpr std::uint64_t kUnitInputBytes = 2 * 1024 * 1600 * 2;
  const UnitInputPlan plan(model_layout({.shape = *preset_shape("gpt2-xl")}),
                           {.micro_batches = 4,
                            .micro_batch = 2,
                            .tokens = 1024,
                            .type = offload::ElementType::kBf16,
                            .slots = 3});
  EXPECT_EQ(plan.unit_input_bytes(), kUnitInputBytes);
  EXPECT_EQ(plan.gpu_bytes(), 3 * 4 * kUnitInputBytes);
  EXPECT_EQ(plan.host_bytes(), 45 * 4 * kUnitInputBytes);
}

TEST(UnitInputPlan, AlignsEachPlaceAsLibTorchAlignsTensors) {
  const UnitInputPlan plan(
      model_layout(
          {.shape = {.layers = 2, .hidden = 12, .heads = 2, .context_tokens = 11, .vocab = 7}}),
      {.micro_batches = 3,
       .micro_batch = 1,
       .tokens = 11,
       .type = offload::ElementType::kFp16,
       .slots = 4});
  EXPECT_EQ(plan.unit_input_bytes(), 264U);
  EXPECT_EQ(plan.place_bytes(), 512U);
  EXPECT_EQ(plan.gpu_bytes(), 2U * 3 * 512);  // no more slots than blocks
  EXPECT_EQ(plan.host_bytes(), 0U);
}

std::uint64_t line_of(const std::vector<MemoryLine>& lines, const std::string& what) {
  for (const MemoryLine& line : lines)
    if (line.what == what) return line.bytes;
  return 0;
}

MemoryPlan plan_of(const std::vector<std::string>& overrides) {
  const SmallRun small(overrides);
  const config::Config config = small.config();
  const bool on_gpu = uses_cuda(config);
  auto plan = plan_memory(config, configured_layout(config, on_gpu), {.on_gpu = on_gpu});
  if (!plan.ok()) throw std::runtime_error(plan.error().message());
  return std::move(*plan);
}

TEST(MemoryPlan, TakesNothingMoreForInputsOnTheCpu) {
  const MemoryPlan off = plan_of({"run.device=cpu"});
  const MemoryPlan on = plan_of({"run.device=cpu", "placement.unit_inputs_to_cpu=on"});
  EXPECT_FALSE(on.activations.unit_inputs);
  EXPECT_EQ(on.host_bytes(), off.host_bytes());
  EXPECT_GT(line_of(on.host, "activations"), 0U);
}

// 4 micro-batches of 2 x 16 tokens, 32 bf16 numbers each, for the first two of three blocks.
// Everything is written and, except for data still in the buffers, read in every step.
TEST(SpilledUnitInputs, GoToTheDrivesAndBackWhereTheHostComputes) {
  const std::vector<std::string> base = {"run.device=cpu", "gradient_accumulation_steps=4",
                                         "placement.wave_micro_batches=2"};
  std::vector<std::string> spilling = base;
  spilling.emplace_back("placement.unit_inputs_to_nvme=on");
  const MemoryPlan off = plan_of(base);
  const MemoryPlan on = plan_of(spilling);
  constexpr std::uint64_t kImage = 4096 + 4096;
  EXPECT_EQ(line_of(on.nvme, "unit inputs"), 2 * 2 * kImage);
  EXPECT_EQ(line_of(on.host, "buffers for unit inputs on NVMe"), 2 * 2 * kImage);
  EXPECT_EQ(line_of(off.host, "activations") - line_of(on.host, "activations"),
            2 * 2 * (2 * 16 * 32 * 2));
  EXPECT_EQ(line_of(off.nvme, "unit inputs"), 0U);

  const SmallRun small(spilling);
  const auto run = small.start();
  constexpr std::uint64_t kSteps = 3;
  for (std::uint64_t i = 0; i < kSteps; ++i) run->step();
  EXPECT_EQ(run->traffic().nvme_write_bytes, kSteps * 4 * 2 * kImage);
}

class UnitInputsCuda : public testing::Test {
 protected:
  void SetUp() override {
    if (!at::hasCUDA()) GTEST_SKIP() << "no CUDA device in this machine";
  }
};

// 9 blocks in a ring of 3; 2 micro-batches of 2 x 16 tokens, 32 bf16 numbers each.
constexpr std::uint64_t kUnitBytes = 2 * (2 * 16 * 32 * 2);
const std::vector<std::string>& nine_blocks() {
  static const std::vector<std::string> overrides = {"model.layers=9"};
  return overrides;
}

std::vector<std::string> with(std::vector<std::string> base, const std::vector<std::string>& more) {
  base.insert(base.end(), more.begin(), more.end());
  return base;
}

TEST_F(UnitInputsCuda, MoveFromTheGpusPlanToTheHosts) {
  const MemoryPlan off = plan_of(nine_blocks());
  const MemoryPlan on = plan_of(with(nine_blocks(), {"placement.unit_inputs_to_cpu=on"}));
  EXPECT_EQ(line_of(off.host, "unit inputs"), 0U);
  EXPECT_EQ(line_of(on.host, "unit inputs"), 6 * kUnitBytes);
  EXPECT_EQ(line_of(off.gpu, "activations") - line_of(on.gpu, "activations"), 6 * kUnitBytes);
}

struct Trained {
  std::vector<float> masters;
  std::vector<double> losses;
  TrainingRun::Traffic traffic;
};

Trained train(const std::vector<std::string>& overrides) {
  constexpr int kSteps = 8;
  const SmallRun small(overrides);
  const auto run = small.start();
  Trained trained;
  for (int i = 0; i < kSteps; ++i) trained.losses.push_back(run->step().loss);
  trained.traffic = run->traffic();
  trained.masters = masters_of(*run);
  return trained;
}

TEST_F(UnitInputsCuda, ChangeNoBitOnTheHostAndCrossTheBusOnceEachWay) {
  for (const std::vector<std::string>& base :
       {nine_blocks(), with(nine_blocks(), {"placement.recompute=off"}),
        with(nine_blocks(), {"placement.prefetch_units=3"}),
        with(nine_blocks(), {"bf16.enabled=false"})}) {
    const std::uint64_t moved = base.back() == "placement.prefetch_units=3" ? 4 : 6;
    const std::uint64_t widened = base.back() == "bf16.enabled=false" ? 2 : 1;
    const Trained off = train(base);
    const Trained on = train(with(base, {"placement.unit_inputs_to_cpu=on"}));
    EXPECT_EQ(off.losses, on.losses) << base.back();
    EXPECT_EQ(off.masters, on.masters) << base.back();
    const std::uint64_t bytes = 8 * moved * widened * kUnitBytes;
    EXPECT_EQ(on.traffic.d2h_bytes - off.traffic.d2h_bytes, bytes) << base.back();
    EXPECT_EQ(on.traffic.h2d_bytes - off.traffic.h2d_bytes, bytes) << base.back();
  }
}

TEST_F(UnitInputsCuda, ChangeNoBitOnTheDrives) {
  for (const std::vector<std::string>& base :
       {nine_blocks(), with(nine_blocks(), {"placement.recompute=off"}),
        with(nine_blocks(), {"placement.wave_micro_batches=1"}),
        with(nine_blocks(), {"bf16.enabled=false"})}) {
    const std::uint64_t widened = base.back() == "bf16.enabled=false" ? 2 : 1;
    const Trained off = train(base);
    const Trained on = train(with(base, {"placement.unit_inputs_to_nvme=on"}));
    EXPECT_EQ(off.losses, on.losses) << base.back();
    EXPECT_EQ(off.masters, on.masters) << base.back();
    const std::uint64_t bytes = 8 * 6 * widened * kUnitBytes;
    EXPECT_EQ(on.traffic.d2h_bytes - off.traffic.d2h_bytes, bytes) << base.back();
    EXPECT_EQ(on.traffic.h2d_bytes - off.traffic.h2d_bytes, bytes) << base.back();
    EXPECT_GE(on.traffic.nvme_write_bytes - off.traffic.nvme_write_bytes, bytes) << base.back();
  }
}

}  // namespace
}  // namespace sluice::engine
