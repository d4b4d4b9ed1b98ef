#include "engine/model/model_layout.h"

#include <gmock/gmock.h>

#include "engine/families/families.h"
#include "engine/model/decoder/block_costs.h"
#include "engine/model/decoder/block_memory.h"
#include "engine/model/decoder/decoder_kinds.h"
#include "tests/engine/model/specs.h"

namespace sluice::engine {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

class MadeUpKind final : public UnitKind {
 public:
  MadeUpKind(const char* name, UnitRole role, std::uint64_t peak_bytes)
      : UnitKind(name, role), peak_bytes_(peak_bytes) {}
  Flops flops(std::int64_t /*tokens*/) const override { return {}; }
  std::uint64_t peak_bytes(const PassShape& /*pass*/,
                           const PeakOptions& /*options*/) const override {
    return peak_bytes_;
  }

 private:
  std::uint64_t peak_bytes_;
};

UnitLayout layout_of(const std::string& name, std::int64_t elements, bool product = false) {
  UnitLayout layout{.name = name};
  layout.add({.name = name + ".w", .shape = {elements}, .gradient_is_product = product});
  return layout;
}

// Alternates two kinds of blocks; one block borrows.
ModelLayout mixed(std::vector<BorrowedParameter> borrowed, bool product = false) {
  const auto wide = std::make_shared<MadeUpKind>("wide", UnitRole::kBlock, 7);
  const auto narrow = std::make_shared<MadeUpKind>("narrow", UnitRole::kBlock, 3);
  return {{.hidden = 8, .vocab = 11},
          {{std::make_shared<MadeUpKind>("embedding", UnitRole::kEmbedding, 1),
            layout_of("embedding", 5, product)},
           {wide, layout_of("b.0", 300)},
           {narrow, layout_of("b.1", 20)},
           {wide, layout_of("b.2", 300), /*frozen=*/{}, std::move(borrowed)},
           {std::make_shared<MadeUpKind>("head", UnitRole::kHead, 5), layout_of("head", 2)}}};
}

// Adapters on a tied model: what is trained, what is frozen, and the frozen part alone.
TEST(ModelLayout, KnowsWhatIsTrainedBesideAFrozenModel) {
  const ModelShape shape = *preset_shape("qwen2.5-0.5b");
  const LoraRecipe lora = {.rank = 4, .alpha = 8, .targets = {"q_proj", "down_proj"}};
  const ModelLayout model = model_layout({.shape = shape, .lora = lora});
  const ModelLayout whole = model_layout({.shape = shape});
  EXPECT_TRUE(model.has_frozen());
  EXPECT_FALSE(whole.has_frozen());
  EXPECT_EQ(model.layout(0).elements, 0U);
  EXPECT_EQ(model.layout(model.head()).elements, 0U);
  std::vector<std::string> names;
  for (const ParameterSpec& parameter : model.layout(1).parameters) names.push_back(parameter.name);
  EXPECT_THAT(names, ElementsAre("layers.0.self_attn.q_proj.lora_A.weight",
                                 "layers.0.self_attn.q_proj.lora_B.weight",
                                 "layers.0.mlp.down_proj.lora_A.weight",
                                 "layers.0.mlp.down_proj.lora_B.weight"));
  EXPECT_THAT(model.layout(1).parameters[0].shape, ElementsAre(4, 896));
  EXPECT_THAT(model.layout(1).parameters[3].shape, ElementsAre(896, 4));
  EXPECT_EQ(model.parameter_elements(), whole.parameter_elements());
  EXPECT_EQ(model.trained_elements(), 24U * (4 * (896 + 896) + 4 * (4864 + 896)));
  EXPECT_EQ(whole.trained_elements(), whole.parameter_elements());
  const ModelLayout base = model.base();
  EXPECT_FALSE(base.has_frozen());
  for (int unit = 0; unit < base.units(); ++unit) {
    EXPECT_EQ(base.layout(unit).elements, whole.layout(unit).elements);
    EXPECT_EQ(model.base_layout(unit).elements, whole.layout(unit).elements);
    EXPECT_EQ(base.layout(unit).name, whole.layout(unit).name);
  }
  EXPECT_EQ(base.lenders(base.head()), whole.lenders(whole.head()));
  // Only trained parameters have weight gradients: less than half the work of a whole model's
  // backward.
  EXPECT_LT(model.kind(1).flops(1024).backward, 0.7 * whole.kind(1).flops(1024).backward);
  EXPECT_GT(model.kind(1).flops(1024).forward, whole.kind(1).flops(1024).forward);
}

TEST(ModelLayout, KnowsKindsAndWhoLends) {
  const ModelLayout model = mixed({{.unit = 0}, {.unit = 0}});
  EXPECT_EQ(model.units(), 5);
  EXPECT_EQ(model.blocks(), 3);
  EXPECT_EQ(model.head(), 4);
  EXPECT_THAT(model.first_of_kinds(), ElementsAre(0, 1, 2, 4));
  EXPECT_EQ(&model.kind(3), &model.kind(1));
  EXPECT_THAT(model.lenders(3), ElementsAre(0));
  EXPECT_EQ(model.borrowed(3).size(), 2U);
  EXPECT_THAT(model.lenders(4), IsEmpty());
  EXPECT_TRUE(model.has_borrowers(0));
  EXPECT_FALSE(model.has_borrowers(1) || model.has_borrowers(2) || model.has_borrowers(3) ||
               model.has_borrowers(4));
  EXPECT_TRUE(model.is_block(1));
  EXPECT_FALSE(model.is_block(0) || model.is_block(4));
}

TEST(ModelLayout, AddsUpWhatUnitsTake) {
  const ModelLayout model = mixed({});
  EXPECT_EQ(model.parameter_elements(), 5U + 300 + 20 + 300 + 2);
  EXPECT_EQ(model.unit_input_bytes({.micro_batch = 2, .tokens = 3, .number_bytes = 4}),
            2U * 3 * 8 * 4);
  EXPECT_EQ(model.peak_bytes({}, {}), 7U);
}

TEST(ModelLayoutDeathTest, RefusesWhatNoTrainerCouldRun) {
  EXPECT_DEATH(mixed({{.unit = 2}}), "the embedding lends");
  EXPECT_DEATH(mixed({{.unit = 0, .parameter = 1}}), "a parameter that the lender has");
  EXPECT_DEATH(mixed({{.unit = 0}}, /*product=*/true), "is a sum");
  const auto block = std::make_shared<MadeUpKind>("block", UnitRole::kBlock, 1);
  EXPECT_DEATH(ModelLayout({}, {{block, layout_of("a", 1), {}},
                                {block, layout_of("b", 1), {}},
                                {block, layout_of("c", 1), {}}}),
               "an embedding, blocks and a head");
  const auto embedding = std::make_shared<MadeUpKind>("embedding", UnitRole::kEmbedding, 1);
  const auto head = std::make_shared<MadeUpKind>("head", UnitRole::kHead, 1);
  const auto namesake = std::make_shared<MadeUpKind>("block", UnitRole::kBlock, 2);
  EXPECT_DEATH(ModelLayout({}, {{embedding, layout_of("a", 1), {}},
                                {block, layout_of("b", 1), {}},
                                {namesake, layout_of("c", 1), {}},
                                {head, layout_of("d", 1), {}}}),
               "a name of its own");
}

TEST(ModelLayout, OfGptIsItsUnitsWithTheTokenEmbeddingLent) {
  const ModelShape shape{.layers = 3, .hidden = 64, .heads = 4, .context_tokens = 16, .vocab = 100};
  const ModelLayout model = model_layout({.shape = shape, .padded_vocab = 128});
  const std::vector<UnitLayout> layouts = {
      embedding_layout(spec_of(shape), 128), block_layout(spec_of(shape).block, 0),
      block_layout(spec_of(shape).block, 1), block_layout(spec_of(shape).block, 2),
      head_layout(spec_of(shape))};
  ASSERT_EQ(static_cast<std::size_t>(model.units()), layouts.size());
  for (int unit = 0; unit < model.units(); ++unit) {
    const UnitLayout& expected = layouts[static_cast<std::size_t>(unit)];
    EXPECT_EQ(model.layout(unit).name, expected.name);
    EXPECT_EQ(model.layout(unit).slot_elements, expected.slot_elements);
  }
  EXPECT_THAT(model.first_of_kinds(), ElementsAre(0, 1, 4));
  EXPECT_THAT(model.lenders(4), ElementsAre(0));
  const BorrowedParameter wte = model.borrowed(4).front();
  EXPECT_EQ(model.layout(wte.unit).parameters[static_cast<std::size_t>(wte.parameter)].name,
            "wte.weight");
  const PassShape pass{.micro_batch = 2, .tokens = 16, .number_bytes = 2};
  EXPECT_EQ(model.kind(1).saved_bytes(pass), block_saved_bytes(spec_of(shape).block, pass));
  const auto head = head_kind(spec_of(shape), {}, 128);
  EXPECT_EQ(model.kind(4).flops(16).forward, head->flops(16).forward);
  EXPECT_EQ(model.peak_bytes(pass, {}),
            std::max(block_peak_bytes(spec_of(shape).block, {}, pass), head->peak_bytes(pass, {})));
  // On the CPU attention with dropout is computed without a fused kernel.
  ModelShape with_dropout = shape;
  with_dropout.dropout = 0.1;
  BlockSpec fused = spec_of(with_dropout).block;
  fused.attention.dropout = 0;
  EXPECT_EQ(model_layout({.shape = with_dropout}).kind(1).peak_bytes(pass, {.cpu = true}),
            block_peak_bytes(fused, {}, pass, {.cpu = true, .plain_attention = true}));
}

}  // namespace
}  // namespace sluice::engine
