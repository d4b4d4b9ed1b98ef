// The ledger counts what the parts of a run take, for any placement.
#include "engine/budget/memory_ledger.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <random>
#include <vector>

#include "engine/budget/configured_model.h"
#include "engine/budget/cpu_sink_plan.h"
#include "engine/budget/memory_plan.h"
#include "engine/budget/resolved_placement.h"
#include "engine/budget/state_plan.h"
#include "tests/engine/planned_config.h"
#include "tests/engine/random_places.h"
#include "tests/sanitized.h"

namespace sluice::engine {
namespace {

using offload::UnitPlacement;

struct Case {
  const char* name;
  std::vector<std::string> overrides;
  bool on_gpu = true;
  offload::RankPart ranks = {};

  friend std::ostream& operator<<(std::ostream& out, const Case& it) { return out << it.name; }
};

// Of places, others in each run: fewer under a sanitizer.
constexpr int kRounds = 16 / static_cast<int>(sweep_stride(4));

class MemoryLedgerTest : public testing::TestWithParam<Case> {
 protected:
  MemoryLedgerTest()
      : config_(planned_config(GetParam().overrides)),
        model_(configured_layout(config_, GetParam().on_gpu)),
        spec_{.config = config_,
              .model = model_,
              .on_gpu = GetParam().on_gpu,
              .ranks = GetParam().ranks} {}

  MemoryPlan plan(const std::vector<UnitPlacement>& places) const {
    auto plan = plan_memory(config_, model_,
                            {.on_gpu = spec_.on_gpu, .places = places, .ranks = spec_.ranks});
    EXPECT_TRUE(plan.ok()) << plan.error().message();
    return *plan;
  }
  MemoryAmounts amounts(const MemoryPlan& plan, const std::vector<UnitPlacement>& places) const {
    const auto ledger = MemoryLedger::create(spec_, plan.fetching.block_slots);
    EXPECT_TRUE(ledger.ok());
    const auto resolved = resolve_placement(spec_, places);
    EXPECT_TRUE(resolved.ok());
    return (*ledger)->amounts(*resolved);
  }
  std::vector<UnitPlacement> some_places() {
    std::vector<UnitPlacement> places = random_.of(model_, spec_.on_gpu);
    if (spec_.ranks.world == 1) return places;
    // For the rank's shards.
    for (int unit = 0; unit < model_.units(); ++unit) {
      UnitPlacement& place = places[static_cast<std::size_t>(unit)];
      const std::uint64_t elements = spec_.shard(unit).elements;
      place.gpu_elements = std::min(place.gpu_elements, elements);
      place.nvme_elements = std::min(place.nvme_elements, elements - place.gpu_elements);
      place.cpu_elements = elements - place.gpu_elements - place.nvme_elements;
    }
    return places;
  }

  // The bytes that each part reports when it is created with these options.
  void expect_parts(const MemoryPlan& plan, const MemoryAmounts& amounts) const {
    const auto params = offload::ParamOffloader::memory_plan(plan.params.options);
    ASSERT_TRUE(params.ok()) << params.error().message();
    offload::ParamOffloader::MemoryPlan base;
    ASSERT_EQ(plan.base.has_value(), model_.has_frozen());
    if (plan.base) {
      const auto of_base = offload::ParamOffloader::memory_plan(plan.base->params.options);
      ASSERT_TRUE(of_base.ok()) << of_base.error().message();
      base = *of_base;
    }
    EXPECT_EQ(amounts.host.params, params->cpu_bytes + base.cpu_bytes);
    EXPECT_EQ(amounts.host.param_cache, params->buffer_bytes + base.buffer_bytes);
    EXPECT_EQ(amounts.nvme.params, params->nvme_bytes + base.nvme_bytes);
    const auto state = offload::OptimizerOffloader::memory_plan(plan.state.optimizer);
    ASSERT_TRUE(state.ok()) << state.error().message();
    EXPECT_EQ(amounts.host.state, state->cpu_state_bytes);
    EXPECT_EQ(amounts.host.swap_buffers, state->swap_buffer_bytes);
    EXPECT_EQ(amounts.host.state_transfer, state->transfer_bytes + save_buffer_bytes(spec_));
    EXPECT_EQ(amounts.gpu.state, state->gpu_state_bytes);
    EXPECT_EQ(amounts.gpu.state, plan.state.gpu_bytes);
    EXPECT_EQ(amounts.nvme.state, state->nvme_bytes);
    const offload::InputSpill::Options& spill = plan.activations.spill;
    const auto spilled = offload::InputSpill::footprint(spill.units.size() * spill.pieces_of_unit,
                                                        spill.piece_bytes);
    EXPECT_EQ(amounts.host.input_buffers, spilled.buffer_bytes);
    EXPECT_EQ(amounts.nvme.unit_inputs, spilled.nvme_bytes);
    offload::ParamOffloader::MemoryPlan gradient_places;
    if (plan.gradients) {
      const auto places = offload::ParamOffloader::memory_plan(*plan.gradients);
      ASSERT_TRUE(places.ok()) << places.error().message();
      gradient_places = *places;
    }
    EXPECT_EQ(amounts.host.gradient_buffers, gradient_places.buffer_bytes);
    EXPECT_EQ(amounts.nvme.gradients, gradient_places.nvme_bytes);
    if (!spec_.on_gpu) {
      EXPECT_EQ(amounts.host.gradients,
                planned_cpu_sink_bytes(model_, plan.types.gradient, plan.sums, plan.ranks));
      expect_slots_of_the_host(plan, amounts);
      return;
    }
    const SlotFootprint slots = SlotFootprint::of(model_, slot_options(plan));
    const SlotFootprint of_base =
        plan.base ? SlotFootprint::of(model_.base(), base_slot_options(plan)) : SlotFootprint();
    EXPECT_EQ(amounts.gpu.resident_params,
              slots.resident_bytes() + slots.shard_bytes() + of_base.resident_bytes());
    EXPECT_EQ(amounts.gpu.slots, slots.all_slot_bytes(plan.fetching.block_slots) +
                                     of_base.all_slot_bytes(plan.fetching.block_slots));
    const std::uint64_t copies = slots.copy_bytes() + of_base.copy_bytes();
    const bool on_gpu = plan.gathering.copies == config::HostCopy::kGpu;
    EXPECT_EQ(amounts.gpu.param_copies, on_gpu ? copies : 0);
    EXPECT_EQ(amounts.host.param_copies, on_gpu ? 0 : copies);
    const SinkFootprint gradients = SinkFootprint::of(model_, sink_options(plan));
    EXPECT_EQ(amounts.gpu.gradients, gradients.gpu_bytes());
    EXPECT_EQ(amounts.host.gradients, gradients.host_bytes());
    const auto& inputs = plan.activations.unit_inputs;
    const std::uint64_t unit_bytes = inputs ? UnitInputPlan(model_, *inputs).unit_bytes() : 0;
    EXPECT_EQ(amounts.host.unit_inputs,
              (inputs ? UnitInputPlan(model_, *inputs).host_bytes() : 0U) -
                  spill.units.size() * unit_bytes);
  }

  // For several ranks that gather trained parameters, and for an encoded base.
  void expect_slots_of_the_host(const MemoryPlan& plan, const MemoryAmounts& amounts) const {
    const offload::ElementType type = plan.types.compute();
    std::uint64_t slots = 0;
    if (plan.ranks.world > 1 || plan.gathering.in_int8)
      slots += GatheredBuffers(model_, type, plan.ranks.world).bytes();
    if (plan.base) slots += GatheredBuffers(model_.base(), plan.base->form).bytes();
    const ModelLayout& passing = plan.base ? model_.base() : model_;
    const BaseForm form =
        plan.base ? plan.base->form : BaseForm{.form = plan.types.form, .ranks = plan.ranks};
    slots += pieces_buffer_bytes(passing, form, plan.gathering);
    std::uint64_t copies = 0;
    for (int unit = 0; unit < passing.units(); ++unit)
      copies += copy_place_bytes(passing.layout(unit), form, plan.gathering);
    EXPECT_EQ(amounts.host.param_copies, copies);
    if (plan.base && plan.base->form.is_encoded())
      slots += UnpackedBuffers(model_.base(), type).bytes();
    EXPECT_EQ(amounts.host.param_slots, slots);
  }

  const config::Config config_;
  const ModelLayout model_;
  const RunSpec spec_;
  const std::uint64_t seed_ = std::random_device{}();
  RandomPlaces random_{seed_};
};

TEST_P(MemoryLedgerTest, CountsWhatEachPartTakes) {
  SCOPED_TRACE("seed " + std::to_string(seed_));
  for (int round = 0; round < kRounds && !HasFailure(); ++round) {
    SCOPED_TRACE("round " + std::to_string(round));
    const std::vector<UnitPlacement> places = some_places();
    const MemoryPlan plan = this->plan(places);
    const MemoryAmounts amounts = this->amounts(plan, places);
    expect_parts(plan, amounts);
    const offload::TierBytes bytes = amounts.by_tier(spec_.on_gpu);
    EXPECT_EQ(bytes.gpu, plan.gpu_bytes());
    EXPECT_EQ(bytes.cpu, plan.host_bytes());
    EXPECT_EQ(bytes.nvme, plan.nvme_bytes());
  }
}

// The run does what the planner chose, and resolving it again changes nothing.
TEST_P(MemoryLedgerTest, SettlesPlacesForGood) {
  SCOPED_TRACE("seed " + std::to_string(seed_));
  for (int round = 0; round < kRounds && !HasFailure(); ++round) {
    const auto once = resolve_placement(spec_, some_places());
    ASSERT_TRUE(once.ok());
    const auto twice = resolve_placement(spec_, *once);
    ASSERT_TRUE(twice.ok());
    for (std::size_t unit = 0; unit < once->size(); ++unit) {
      const UnitPlacement& a = (*once)[unit];
      const UnitPlacement& b = (*twice)[unit];
      EXPECT_EQ(a.gpu_elements, b.gpu_elements);
      EXPECT_EQ(a.cpu_elements, b.cpu_elements);
      EXPECT_EQ(a.nvme_elements, b.nvme_elements);
      EXPECT_EQ(a.resident, b.resident);
      EXPECT_EQ(a.params_on_nvme, b.params_on_nvme);
      EXPECT_EQ(a.activations, b.activations);
    }
  }
}

std::vector<std::string> devices(const std::string& params, const std::string& optimizer,
                                 const std::vector<std::string>& more = {}) {
  return shape(6, 256, 4, 5003) +
         std::vector<std::string>{"zero_optimization.offload_param.device=" + params,
                                  "zero_optimization.offload_optimizer.device=" + optimizer} +
         more;
}

const std::vector<std::string> kLlama = {"model.preset=qwen2.5-1.5b"};
const std::vector<std::string> kUntied = {"model.preset=qwen2.5-7b"};
const std::vector<std::string> kInt8 = {"recipe.lora.base_bits=8"};
const std::vector<std::string> kNf4 = {"recipe.lora.base_bits=4"};
const std::vector<std::string> kNf4Double = {"recipe.lora.base_bits=4",
                                             "recipe.lora.double_quant=true"};
const std::vector<std::string> kAdapters = {"model.preset=qwen3-8b", "recipe.lora.rank=16"};
const std::vector<std::string> kSentInt8 = {"zero_optimization.stage=3",
                                            "communication.weights=int8"};
const std::vector<std::string> kGradientsOnNvme = {"placement.gradients_to_nvme=on"};

// What bitsandbytes takes for the matrices: 4.5 bits for a number, or 4.127 and two scales for each
// group.
TEST(BaseForm, TakesTheBytesOfItsCodec) {
  const ModelLayout base = configured_layout(planned_config(kAdapters), /*on_gpu=*/true).base();
  const UnitLayout& block = base.layout(1);
  const std::uint64_t matrices = block.elements_of_group(kDecayed);
  const std::uint64_t vectors = 2 * (block.elements - matrices);
  const auto bytes = [&](offload::BlockCodec codec) {
    return BaseForm{.codec = codec}.bytes(block) - vectors;
  };
  EXPECT_EQ(bytes(offload::BlockCodec::kInt8), matrices + matrices / 128 * 4);
  EXPECT_EQ(bytes(offload::BlockCodec::kNf4), matrices / 2 + matrices / 64 * 4);
  EXPECT_EQ(bytes(offload::BlockCodec::kNf4Double),
            matrices / 2 + matrices / 64 + matrices / 16384 * 8);
  const UnitLayout& head = base.layout(base.head());
  EXPECT_EQ(BaseForm{.codec = offload::BlockCodec::kNf4}.bytes(head), 2 * head.elements);
  EXPECT_LT(BaseForm{.codec = offload::BlockCodec::kInt8}.bytes(head), 11 * head.elements / 10);
}

// Groups begin with parameters, and continue where a parameter ends with a group.
TEST(BaseForm, HasARunOfGroupsForEachParameterThatBeginsOne) {
  UnitLayout unit;
  unit.add({.name = "a", .shape = {100, 300}});  // a group of 16384 and a short one
  unit.add({.name = "b", .shape = {2, 16384}});  // two whole groups
  unit.add({.name = "c", .shape = {3}});         // continues
  unit.add({.name = "d", .shape = {1, 16384}});  // its first scale begins a group again
  unit.add({.name = "router", .shape = {3, 128}, .keeps_precision = true});
  unit.add({.name = "norm", .shape = {128}, .group = kUndecayed});
  const BaseForm form{.codec = offload::BlockCodec::kNf4Double};
  std::vector<std::array<std::uint64_t, 3>> runs;
  form.for_each_run(unit, [&](const offload::EncodedRun& run) {
    runs.push_back({run.first, run.elements, run.first_group});
  });
  using Runs = std::vector<std::array<std::uint64_t, 3>>;
  EXPECT_EQ(runs, (Runs{{0, 30080, 0}, {30080, 32768 + 128, 2}, {62976, 16384, 5}}));
  EXPECT_EQ(form.encoded(unit).groups, 6U);
  EXPECT_EQ(form.encoded(unit).elements, 62976U + 16384);
  EXPECT_EQ(form.encoded(unit).plain, 512U);
  const offload::EncodedRun rest = form.run_from(unit, 30080 + 32768);
  EXPECT_EQ(rest.first_group, 4U);
  EXPECT_EQ(rest.elements, 128U);
  const BaseForm int8{.codec = offload::BlockCodec::kInt8};
  EXPECT_EQ(int8.encoded(unit).groups, 0U);
  EXPECT_EQ(int8.run_from(unit, 30080).elements, 62976U + 16384 - 30080);
}

// A rank's part of a copy is the gathered unit over the ranks of its host, in the bytes that are
// sent.
TEST(Gathering, TakesAHostsShareOfWhatIsSent) {
  const ModelLayout model = configured_layout(planned_config(kUntied), /*on_gpu=*/true);
  const UnitLayout& block = model.layout(1);
  const BaseForm form{.ranks = {.rank = 5, .world = 16, .hosts = 2}};
  EXPECT_EQ(copy_bytes(block, form, {}), 0U);
  const auto plain = copy_bytes(block, form, {.copies = config::HostCopy::kRam});
  EXPECT_EQ(plain, form.gathered_bytes(block) / 8);
  const auto int8 = copy_bytes(block, form, {.in_int8 = true, .copies = config::HostCopy::kGpu});
  EXPECT_NEAR(static_cast<double>(int8) / static_cast<double>(plain), 0.516, 0.002);
}

// DeepSpeed divides a copy among any number of ranks; here these are the ranks of a host.
TEST(Gathering, RefusesAPartitionThatIsNotAHosts) {
  const auto config =
      planned_config({"zero_optimization.stage=3", "zero_optimization.zero_hpz_partition_size=2",
                      "run.lanes=8", "gradient_accumulation_steps=8"});
  const ModelLayout model = configured_layout(config, /*on_gpu=*/true);
  const auto plan = [&](const offload::RankPart& ranks) {
    return plan_memory(config, model, {.on_gpu = true, .ranks = ranks});
  };
  const auto refused = plan({.rank = 0, .world = 8, .hosts = 2});
  ASSERT_FALSE(refused.ok());
  EXPECT_THAT(refused.error().message(),
              testing::AllOf(testing::HasSubstr("zero_hpz_partition_size is 2"),
                             testing::HasSubstr("each host has 4 ranks: set it to 4")));
  EXPECT_TRUE(plan({.rank = 0, .world = 8, .hosts = 4}).ok());
  const auto one_host = plan({.rank = 0, .world = 8});
  ASSERT_TRUE(one_host.ok());
  EXPECT_THAT(one_host->notes,
              testing::Contains(testing::HasSubstr("communication.host_copy has no effect")));
}

// The memory for a vocabulary of 152,064 rows that the host updates completely.
TEST(GpuPlan, NoStageIsSizedByAVocabularyAndItsEndsTakeTurns) {
  const ModelLayout model = configured_layout(planned_config(kUntied), /*on_gpu=*/true);
  const int head = model.head();
  const auto bytes_of = [&](int unit) { return 2 * model.layout(unit).elements; };
  ASSERT_GT(bytes_of(head), 2 * bytes_of(1));

  const std::uint64_t stage = SinkFootprint::of(model, {}).stage_bytes();
  EXPECT_GE(stage, bytes_of(1));
  EXPECT_LT(stage, bytes_of(1) + kMiB);

  CudaSlotOptions slots = {.block_slots = 2};
  const std::uint64_t apart = SlotFootprint::of(model, slots).all_slot_bytes(2);
  slots.ends_take_turns = true;
  const std::uint64_t together = SlotFootprint::of(model, slots).all_slot_bytes(2);
  EXPECT_EQ(apart - together, std::min(bytes_of(0), bytes_of(head)));
}

INSTANTIATE_TEST_SUITE_P(
    Runs, MemoryLedgerTest,
    testing::Values(
        Case{"llama", kLlama}, Case{"untied", kUntied}, Case{"adapters", kAdapters},
        Case{"adapters_fp32", kAdapters + std::vector<std::string>{"bf16.enabled=false"}},
        Case{"adapters_fp16",
             kAdapters + std::vector<std::string>{"bf16.enabled=false", "fp16.enabled=true"}},
        Case{
            "adapters_nvme_cpu",
            kAdapters + std::vector<std::string>{"zero_optimization.offload_param.device=nvme",
                                                 "zero_optimization.offload_optimizer.device=cpu"}},
        Case{"adapters_none_none",
             kAdapters +
                 std::vector<std::string>{"zero_optimization.offload_param.device=none",
                                          "zero_optimization.offload_optimizer.device=none"}},
        Case{"adapters_int8", kAdapters + kInt8}, Case{"adapters_nf4", kAdapters + kNf4},
        Case{"adapters_nf4_double_host",
             kAdapters + kNf4Double + std::vector<std::string>{"run.device=cpu"}, false},
        Case{"adapters_int8_nvme",
             kAdapters + kInt8 +
                 std::vector<std::string>{"zero_optimization.offload_param.device=nvme"}},
        Case{"adapters_int8_host", kAdapters + kInt8 + std::vector<std::string>{"run.device=cpu"},
             false},
        Case{"adapters_host", kAdapters + std::vector<std::string>{"run.device=cpu"}, false},
        Case{"xl", {}}, Case{"xl_fp16", {"fp16.enabled=true", "bf16.enabled=false"}},
        Case{"xl_fp32", {"bf16.enabled=false"}},
        Case{"xl_bf16_moments", {"optimizer.params.moments=bf16"}},
        Case{"xl_fp16_bf16_moments",
             {"fp16.enabled=true", "bf16.enabled=false", "optimizer.params.moments=bf16"}},
        Case{"host_fp32_bf16_moments",
             {"run.device=cpu", "bf16.enabled=false", "optimizer.params.moments=bf16"},
             false},
        Case{"adapters_bf16_moments",
             kAdapters + std::vector<std::string>{"optimizer.params.moments=bf16"}},
        Case{"xl_accumulated", {"gradient_accumulation_steps=4"}},
        Case{"billions", shape(40, 2560, 32)},
        Case{"small_sub_groups",
             shape(6, 256, 4, 5003) +
                 std::vector<std::string>{"zero_optimization.sub_group_size=100000"}},
        Case{"one_block", shape(1, 256, 4, 999)},
        Case{"short_records", {"placement.record_elements=1000000"}},
        Case{"host", shape(6, 256, 4, 5003) + std::vector<std::string>{"run.device=cpu"}, false},
        Case{"host_fp32", {"run.device=cpu", "bf16.enabled=false"}, false},
        Case{
            "host_inputs_spilled",
            {"run.device=cpu", "gradient_accumulation_steps=3", "placement.unit_inputs_to_nvme=on"},
            false},
        Case{"inputs_spilled",
             {"gradient_accumulation_steps=5", "placement.wave_micro_batches=2",
              "placement.unit_inputs_to_nvme=on"}},
        Case{"host_of_four",
             {"run.device=cpu", "run.lanes=4", "gradient_accumulation_steps=4"},
             false,
             {.rank = 3, .world = 4}},
        Case{"host_fp32_of_two",
             {"run.device=cpu", "bf16.enabled=false", "run.lanes=4",
              "gradient_accumulation_steps=4", "placement.wave_micro_batches=1"},
             false,
             {.rank = 0, .world = 2}},
        Case{"gpus_stage_1",
             {"zero_optimization.stage=1", "run.lanes=4", "gradient_accumulation_steps=4"},
             true,
             {.rank = 1, .world = 2}},
        Case{"gpus_stage_3",
             kUntied + std::vector<std::string>{"zero_optimization.stage=3", "run.lanes=4",
                                                "gradient_accumulation_steps=4"},
             true,
             {.rank = 3, .world = 4}},
        Case{"gpus_waves_fp32",
             {"zero_optimization.stage=3", "bf16.enabled=false", "run.lanes=2",
              "gradient_accumulation_steps=4", "placement.wave_micro_batches=1"},
             true,
             {.rank = 0, .world = 2}},
        Case{"adapters_gpus_stage_3",
             kAdapters + std::vector<std::string>{"zero_optimization.stage=3", "run.lanes=4",
                                                  "gradient_accumulation_steps=4"},
             true,
             {.rank = 3, .world = 4}},
        Case{"adapters_gpus_stage_1_int8_waves",
             kAdapters + kInt8 +
                 std::vector<std::string>{"zero_optimization.stage=1",
                                          "zero_optimization.offload_param.device=cpu",
                                          "run.lanes=2", "gradient_accumulation_steps=4",
                                          "placement.wave_micro_batches=1"},
             true,
             {.rank = 0, .world = 2}},
        Case{"adapters_gpus_stage_3_int8_nvme",
             kAdapters + kInt8 +
                 std::vector<std::string>{"zero_optimization.stage=3", "run.lanes=2",
                                          "zero_optimization.offload_param.device=nvme",
                                          "gradient_accumulation_steps=2"},
             true,
             {.rank = 1, .world = 2}},
        Case{"adapters_int8_shards_of_four_hosts",
             kAdapters + kInt8 +
                 std::vector<std::string>{"zero_optimization.stage=3", "run.device=cpu",
                                          "run.lanes=4", "gradient_accumulation_steps=4"},
             false,
             {.rank = 3, .world = 4}},
        Case{"adapters_of_four_hosts",
             kAdapters + std::vector<std::string>{"run.device=cpu", "run.lanes=4",
                                                  "gradient_accumulation_steps=4"},
             false,
             {.rank = 1, .world = 4}},
        Case{"adapters_nf4_double_nvme_of_two_hosts",
             kAdapters + kNf4Double +
                 std::vector<std::string>{"run.device=cpu", "run.lanes=2",
                                          "gradient_accumulation_steps=2",
                                          "zero_optimization.offload_param.device=nvme"},
             false,
             {.rank = 1, .world = 2}},
        Case{"int8_of_one", kUntied + kSentInt8},
        Case{"int8_of_one_on_gpu", kSentInt8 + devices("none", "none")},
        Case{"int8_of_four",
             kUntied + kSentInt8 +
                 std::vector<std::string>{"run.lanes=4", "gradient_accumulation_steps=4"},
             true,
             {.rank = 3, .world = 4}},
        Case{"int8_of_four_with_copies",
             kUntied + kSentInt8 +
                 std::vector<std::string>{"run.lanes=4", "gradient_accumulation_steps=4",
                                          "communication.host_copy=gpu"},
             true,
             {.rank = 2, .world = 4, .hosts = 2}},
        Case{"copies_in_ram",
             kUntied + std::vector<std::string>{"zero_optimization.stage=3", "run.lanes=4",
                                                "gradient_accumulation_steps=4",
                                                "communication.host_copy=auto"},
             true,
             {.rank = 2, .world = 4, .hosts = 2}},
        Case{"int8_on_hosts_with_copies",
             kSentInt8 + std::vector<std::string>{"run.device=cpu", "run.lanes=4",
                                                  "gradient_accumulation_steps=4",
                                                  "communication.host_copy=auto"},
             false,
             {.rank = 2, .world = 4, .hosts = 2}},
        Case{"adapters_with_copies",
             kAdapters + kSentInt8 +
                 std::vector<std::string>{"run.lanes=4", "gradient_accumulation_steps=4",
                                          "communication.host_copy=gpu"},
             true,
             {.rank = 1, .world = 4, .hosts = 2}},
        Case{"gradients_on_nvme", kUntied + kGradientsOnNvme},
        Case{"gradients_on_nvme_fp32_waves",
             kLlama + kGradientsOnNvme +
                 std::vector<std::string>{"bf16.enabled=false", "run.lanes=2",
                                          "gradient_accumulation_steps=4",
                                          "placement.wave_micro_batches=1"}},
        Case{"gradients_on_nvme_adapters", kAdapters + kGradientsOnNvme},
        Case{"gradients_on_nvme_of_four",
             kUntied + kGradientsOnNvme +
                 std::vector<std::string>{"zero_optimization.stage=3", "run.lanes=4",
                                          "gradient_accumulation_steps=8",
                                          "placement.wave_micro_batches=1"},
             true,
             {.rank = 3, .world = 4}},
        Case{"nvme_nvme", devices("nvme", "nvme")}, Case{"none_none", devices("none", "none")},
        Case{"cpu_nvme", devices("cpu", "nvme")}, Case{"none_cpu", devices("none", "cpu")},
        Case{"persistent",
             devices("nvme", "cpu", {"zero_optimization.stage3_param_persistence_threshold=1e6"})},
        Case{"ratio", devices("nvme", "cpu",
                              {"zero_optimization.offload_optimizer.ratio=0.3",
                               "zero_optimization.sub_group_size=1e5"})},
        Case{"kept_and_leaving",
             devices("cpu", "cpu", {"placement.unit_inputs_to_cpu=on", "placement.recompute=off"})},
        Case{"waves", devices("auto", "auto",
                              {"gradient_accumulation_steps=6", "placement.wave_micro_batches=2"})},
        Case{"waves_inputs_leave",
             devices("cpu", "auto",
                     {"gradient_accumulation_steps=6", "placement.wave_micro_batches=4",
                      "placement.unit_inputs_to_cpu=on"})},
        Case{"waves_in_lanes", devices("auto", "auto",
                                       {"gradient_accumulation_steps=8", "run.lanes=4",
                                        "run.rounds=2", "placement.wave_micro_batches=3"})},
        Case{"lanes", devices("auto", "auto", {"gradient_accumulation_steps=6", "run.lanes=3"})},
        Case{"lanes_on_the_cpu",
             devices("cpu", "cpu",
                     {"gradient_accumulation_steps=6", "run.lanes=3",
                      "placement.wave_micro_batches=1"}),
             /*on_gpu=*/false},
        Case{"waves_adapters",
             kAdapters + std::vector<std::string>{"gradient_accumulation_steps=4",
                                                  "placement.wave_micro_batches=1"}},
        Case{"waves_on_the_cpu",
             devices("cpu", "cpu",
                     {"gradient_accumulation_steps=6", "placement.wave_micro_batches=2"}),
             /*on_gpu=*/false},
        Case{"few_buffers", devices("nvme", "auto",
                                    {"zero_optimization.offload_param.buffer_count=7",
                                     "zero_optimization.offload_param.max_in_cpu=1e7"})}),
    [](const auto& it) { return std::string(it.param.name); });

}  // namespace
}  // namespace sluice::engine
