#include "engine/probe/unit_timer.h"

#include <gmock/gmock.h>

#include "aio/units.h"
#include "engine/families/make_model.h"
#include "engine/model/decoder/decoder_units.h"
#include "tests/aio/backends_under_test.h"
#include "tests/engine/model/specs.h"

namespace sluice::engine {
namespace {

std::unique_ptr<Model> model_of(std::int64_t hidden, double dropout = 0.1) {
  return make_model({.shape = {.layers = 2,
                               .hidden = hidden,
                               .heads = 4,
                               .context_tokens = 64,
                               .vocab = 301,
                               .dropout = dropout}});
}

class PlainKind final : public UnitKind {
 public:
  using UnitKind::UnitKind;
  Flops flops(std::int64_t /*tokens*/) const override { return {}; }
  std::uint64_t peak_bytes(const PassShape& /*pass*/,
                           const PeakOptions& /*options*/) const override {
    return kMiB;
  }
};

// Adds a gain of its own, and the vocabulary's last embedding, which it borrows.
class BorrowingBlock final : public ModelUnit {
 public:
  using ModelUnit::ModelUnit;
  at::Tensor forward(const PassContext& /*context*/, const UnitViews& w, const at::Tensor& input,
                     Saved* /*saved*/) const override {
    check(w);
    return input.add(w[0]).add_(w[1].select(0, -1));
  }
  void recompute(const PassContext& /*context*/, const UnitViews& w, const at::Tensor& /*input*/,
                 Saved& /*saved*/) const override {
    check(w);
  }
  at::Tensor backward(const PassContext& /*context*/, const UnitViews& w,
                      const at::Tensor& /*input*/, Saved& /*saved*/, const at::Tensor& grad_output,
                      const UnitViews& g) const override {
    check(w);
    check(g);
    const at::Tensor sum = grad_output.sum(at::IntArrayRef({0, 1}));
    g[0].add_(sum);
    g[1].select(0, -1).add_(sum);
    return grad_output;
  }
  at::Tensor extend(const UnitViews& w, const at::Tensor& input,
                    KvCache& /*cache*/) const override {
    return forward({}, w, input, nullptr);
  }

 private:
  static void check(const UnitViews& views) {
    if (views.size() != 2) throw std::logic_error("without what it borrows");
  }
};

// A GPT-2 except for its block.
Model model_whose_block_borrows() {
  const ModelOptions options{
      .shape = {.layers = 1, .hidden = 16, .heads = 2, .context_tokens = 32, .vocab = 61}};
  const ModelShape& shape = options.shape;
  UnitLayout gain{.name = "block"};
  gain.add({.name = "gain", .shape = {shape.hidden}, .group = kUndecayed});
  const BorrowedParameter token{.unit = 0, .parameter = token_parameter(spec_of(options.shape))};
  std::vector<ModelLayout::Unit> units;
  units.push_back({.kind = std::make_shared<PlainKind>("embedding", UnitRole::kEmbedding),
                   .layout = embedding_layout(spec_of(shape)),
                   .borrowed = {}});
  units.push_back({.kind = std::make_shared<PlainKind>("block", UnitRole::kBlock),
                   .layout = gain,
                   .borrowed = {token}});
  units.push_back({.kind = std::make_shared<PlainKind>("head", UnitRole::kHead),
                   .layout = head_layout(spec_of(shape)),
                   .borrowed = {token}});
  ModelUnits made = make_decoder_units(spec_of(options.shape), options);
  made.body[1] = std::make_unique<BorrowingBlock>(gain);
  return {options, ModelLayout({.hidden = shape.hidden, .vocab = shape.vocab}, std::move(units)),
          std::move(made)};
}

void expect_plausible(const UnitTimes& times, bool block_recomputes = true) {
  ASSERT_EQ(times.kinds.size(), 3U);
  for (const auto& [kind, unit] : times.kinds) {
    EXPECT_GT(unit.forward_s, 0);
    EXPECT_GE(unit.recompute_s, 0);
    EXPECT_LT(unit.forward_s + unit.recompute_s + unit.backward_s, 10);
  }
  EXPECT_GT(times.of("embedding").backward_s, 0);
  if (block_recomputes) {
    EXPECT_GT(times.of("block").recompute_s, 0);
  }
  EXPECT_GT(times.of("block").backward_s, 0);
}

TEST(UnitTimer, TimesEveryUnitOnTheCpu) {
  const auto made = model_of(64);
  const Model& model = *made;
  for (const auto type :
       {offload::ElementType::kFp32, offload::ElementType::kBf16, offload::ElementType::kFp16}) {
    std::vector<double> told;
    const auto times =
        time_units(model, {.type = type, .micro_batch = 3, .tokens = 48, .seconds = 0.05},
                   [&](double fraction) { told.push_back(fraction); });
    ASSERT_OK(times);
    expect_plausible(*times);
    EXPECT_EQ(told.size(), 4U);
    EXPECT_EQ(told.back(), 1);
  }
}

TEST(UnitTimer, LendsToBlocksToo) {
  const auto times = time_units(
      model_whose_block_borrows(),
      {.type = offload::ElementType::kFp32, .micro_batch = 2, .tokens = 8, .seconds = 0.01});
  ASSERT_OK(times);
  expect_plausible(*times, false);
}

TEST(UnitTimer, MultipliesOneSequenceWhereAMicroBatchWouldTakeTooLong) {
  // No patience at all. A block of one sequence takes at least 10 us on any CPU: 24 M operations.
  const auto made = model_of(128, 0);
  const Model& model = *made;
  const auto times = time_units(
      model,
      {.type = offload::ElementType::kFp32, .micro_batch = 1 << 20, .tokens = 64, .seconds = 0});
  ASSERT_OK(times);  // a micro-batch of 32 GiB was not allocated
  EXPECT_GT(times->of("block").forward_s, 10);
}

TEST(UnitTimer, RefusesWhatItsLimitDoesNotHold) {
  const auto made = model_of(64);
  const Model& model = *made;
  UnitTimerOptions options{.micro_batch = 2, .tokens = 32};
  options.memory_limit_bytes = unit_timer_bytes(model.layout(), options) - 1;
  const auto times = time_units(model, options);
  ASSERT_FALSE(times.ok());
  EXPECT_EQ(times.error().code(), ErrorCode::kOutOfMemory);
}

TEST(UnitTimer, KnowsThatLargerModelsAndMicroBatchesTakeMore) {
  const UnitTimerOptions small{.micro_batch = 2, .tokens = 32};
  UnitTimerOptions large = small;
  large.micro_batch = 64;
  EXPECT_LT(unit_timer_bytes(model_of(64)->layout(), small),
            unit_timer_bytes(model_of(64)->layout(), large));
  EXPECT_LT(unit_timer_bytes(model_of(64)->layout(), small),
            unit_timer_bytes(model_of(1024)->layout(), small));
  // Includes the block's parameters in 16 bits and gradients in 32.
  EXPECT_GT(unit_timer_bytes(model_of(1024)->layout(), small), 12 * kMiB * 6);
}

}  // namespace
}  // namespace sluice::engine
