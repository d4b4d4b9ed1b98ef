#include <ATen/Context.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/layer_norm.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <gtest/gtest.h>

#include "engine/families/families.h"
#include "engine/model/decoder/decoder_head.h"
#include "engine/model/ops/output_loss.h"
#include "tests/engine/model/specs.h"

namespace sluice::engine {
namespace {

constexpr std::int64_t kHidden = 32;
constexpr std::int64_t kVocab = 53;
const ModelShape kShape = {
    .layers = 1, .hidden = kHidden, .heads = 4, .context_tokens = 20, .vocab = kVocab};

const HeadParameters kPlaces = head_parameters(spec_of(kShape));

struct Results {
  at::Tensor loss_sum;
  at::Tensor grad_input;
  at::Tensor gradient;
  at::Tensor wte_gradient;
};

class HeadUnitTest : public testing::Test {
 protected:
  HeadUnitTest() {
    at::manual_seed(3);

    flat_ = at::zeros({static_cast<std::int64_t>(layout_.slot_elements)});
    parameters_ = UnitViews(layout_, flat_);
    parameters_[kPlaces.norm.gain].copy_(at::randn({kHidden}).add_(1));
    parameters_[kPlaces.norm.bias].copy_(at::randn({kHidden}));
    wte_ = at::randn({kVocab, kHidden});
    input_ = at::randn({3, 19, kHidden});
    targets_ = at::randint(kVocab, {3, 19}, at::kLong);
  }

  Results run(const DecoderHead& head, const at::Tensor& wte, double grad_scale = 0.25) {
    const at::Tensor flat = at::zeros_like(flat_, at::kFloat);
    const at::Tensor wte_gradient = at::zeros_like(wte, at::kFloat);
    const HeadUnit::Loss loss =
        head.loss_and_gradient(with(parameters_, wte), input_, targets_, grad_scale,
                               with(UnitViews(layout_, flat), wte_gradient));
    return {loss.loss_sum, loss.grad_input, flat, wte_gradient};
  }

  // The head's own views, followed by the token embedding that it borrows.
  static UnitViews with(UnitViews own, const at::Tensor& borrowed) {
    own.append(borrowed);
    return own;
  }

  UnitLayout layout_ = head_layout(spec_of(kShape));
  at::Tensor flat_;
  UnitViews parameters_;
  at::Tensor wte_;
  at::Tensor input_;
  at::Tensor targets_;
};

TEST_F(HeadUnitTest, GivesAutogradsLossAndGradients) {
  at::Tensor x = input_.to(at::kDouble).requires_grad_();
  at::Tensor wte = wte_.to(at::kDouble).requires_grad_();
  at::Tensor weight = parameters_[kPlaces.norm.gain].to(at::kDouble).clone().requires_grad_();
  at::Tensor bias = parameters_[kPlaces.norm.bias].to(at::kDouble).clone().requires_grad_();
  const at::Tensor rows = at::layer_norm(x, {kHidden}, weight, bias, 1e-5).flatten(0, 1);
  const at::Tensor loss =
      at::cross_entropy_loss(at::mm(rows, wte.t()), targets_.flatten(), {}, at::Reduction::Sum);
  loss.mul(0.25).backward();
  const Results ours = run(DecoderHead(spec_of(kShape), 16), wte_);
  EXPECT_NEAR(ours.loss_sum.item<double>(), loss.item<double>(), 1e-6 * loss.item<double>());
  EXPECT_TRUE(ours.grad_input.to(at::kDouble).allclose(x.grad(), 1e-4, 1e-5));
  EXPECT_TRUE(ours.wte_gradient.to(at::kDouble).allclose(wte.grad(), 1e-4, 1e-5));
  const UnitViews gradients(layout_, ours.gradient);
  EXPECT_TRUE(gradients[kPlaces.norm.gain].to(at::kDouble).allclose(weight.grad(), 1e-4, 1e-5));
  EXPECT_TRUE(gradients[kPlaces.norm.bias].to(at::kDouble).allclose(bias.grad(), 1e-4, 1e-5));
}

TEST_F(HeadUnitTest, ChunksChangeNothingButTheRoundingOfSums) {
  const Results whole = run(DecoderHead(spec_of(kShape), 57), wte_);
  for (const std::int64_t chunk : {1, 7, 56}) {
    const Results chunked = run(DecoderHead(spec_of(kShape), chunk), wte_);
    EXPECT_NEAR(chunked.loss_sum.item<double>() / whole.loss_sum.item<double>(), 1, 1e-6);
    EXPECT_TRUE(chunked.grad_input.allclose(whole.grad_input, 1e-4, 1e-5)) << chunk;
    EXPECT_TRUE(chunked.gradient.allclose(whole.gradient, 1e-4, 1e-5)) << chunk;
    EXPECT_TRUE(chunked.wte_gradient.allclose(whole.wte_gradient, 1e-4, 1e-5)) << chunk;
  }
}

TEST_F(HeadUnitTest, PaddedRowsTakeNoPart) {
  const DecoderHead head(spec_of(kShape), 16);
  const at::Tensor padded = at::cat({wte_, at::zeros({11, kHidden})});
  const Results plain = run(head, wte_);
  const Results with_padding = run(head, padded);
  EXPECT_NEAR(with_padding.loss_sum.item<double>() / plain.loss_sum.item<double>(), 1, 1e-6);
  EXPECT_TRUE(with_padding.grad_input.allclose(plain.grad_input, 1e-4, 1e-5));
  const at::Tensor& gradient = with_padding.wte_gradient;
  EXPECT_TRUE(gradient.narrow(0, 0, kVocab).allclose(plain.wte_gradient, 1e-4, 1e-5));
  EXPECT_EQ(gradient.narrow(0, kVocab, 11).abs().max().item<float>(), 0);
  EXPECT_EQ(head.logits(with(parameters_, padded), input_, 2).sizes(),
            (std::vector<std::int64_t>{3, 2, kVocab}));
}

TEST_F(HeadUnitTest, EvaluatesToTheLossOfTraining) {
  const DecoderHead head(spec_of(kShape), 16);
  EXPECT_TRUE(
      head.loss_sum(with(parameters_, wte_), input_, targets_).equal(run(head, wte_).loss_sum));
}

// Compared with PyTorch for each row, in chunks that do not divide the rows, with some rows
// ignored.
TEST_F(HeadUnitTest, GivesTheLossOfEachTarget) {
  const DecoderHead head(spec_of(kShape), 16);
  targets_[0][3] = targets_[2][18] = kIgnoredTarget;
  const at::Tensor losses = head.token_losses(with(parameters_, wte_), input_, targets_);
  const at::Tensor logits = head.logits(with(parameters_, wte_), input_, 19).flatten(0, 1);
  const at::Tensor expected =
      at::cross_entropy_loss(logits, targets_.flatten(), {}, at::Reduction::None, kIgnoredTarget);
  ASSERT_EQ(losses.sizes(), targets_.sizes());
  EXPECT_TRUE(losses.flatten().allclose(expected, 1e-5, 1e-5));
  EXPECT_EQ(losses[0][3].item<float>(), 0);
}

TEST_F(HeadUnitTest, LogitsOfTheLastPositionsAreThoseOfAll) {
  const DecoderHead head(spec_of(kShape));
  const at::Tensor all = head.logits(with(parameters_, wte_), input_, 19);
  EXPECT_TRUE(
      head.logits(with(parameters_, wte_), input_, 1).allclose(all.narrow(1, 18, 1), 1e-5, 1e-5));
}

TEST_F(HeadUnitTest, AddsToTheGradients) {
  const DecoderHead head(spec_of(kShape), 16);
  const at::Tensor flat = at::ones_like(flat_, at::kFloat);
  const at::Tensor wte_gradient = at::ones_like(wte_, at::kFloat);
  head.loss_and_gradient(with(parameters_, wte_), input_, targets_, 0.25,
                         with(UnitViews(layout_, flat), wte_gradient));
  const Results ours = run(head, wte_);
  EXPECT_TRUE(wte_gradient.allclose(ours.wte_gradient + 1, 1e-4, 1e-5));
  EXPECT_TRUE(
      UnitViews(layout_, flat)[0].allclose(UnitViews(layout_, ours.gradient)[0] + 1, 1e-4, 1e-5));
}

TEST_F(HeadUnitTest, RefusesATargetOutsideTheVocabulary) {
  for (const std::int64_t wrong : {std::int64_t{-1}, kVocab}) {
    targets_[1][3] = wrong;
    EXPECT_ANY_THROW(run(DecoderHead(spec_of(kShape), 16), wte_));
  }
}

TEST(HeadUnit, ChunkFollowsFromTheVocabularyAndTheDeviceAlone) {
  ModelShape shape = *preset_shape("gpt2-xl");
  for (const at::DeviceType device : {at::kCPU, at::kCUDA}) {
    const std::int64_t rows = DecoderHead(spec_of(shape)).chunk_rows(device);
    EXPECT_EQ(DecoderHead(spec_of(*preset_shape("gpt2-small"))).chunk_rows(device), rows);
    EXPECT_LE(rows * shape.vocab, std::int64_t{1} << (device == at::kCPU ? 25 : 27));
    EXPECT_GE(rows, 512);
  }
  EXPECT_EQ(DecoderHead(spec_of(shape), 96).chunk_rows(at::kCUDA), 96);
}

}  // namespace
}  // namespace sluice::engine
