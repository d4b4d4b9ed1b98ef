#include "engine/model/slot_storage.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <vector>

#include "engine/model/decoder/decoder_block.h"
#include "tests/engine/model/specs.h"

namespace sluice::engine {
namespace {

const ModelShape kShape = {.layers = 2, .hidden = 16, .heads = 2, .context_tokens = 8, .vocab = 11};
const BlockParameters kPlaces = block_parameters(spec_of(kShape).block);

class SlotStorageTest : public testing::Test {
 protected:
  SlotStorageTest()
      : layout_(block_layout(spec_of(kShape).block, 0)),
        memory_(at::zeros({static_cast<std::int64_t>(layout_.slot_elements)})),
        slot_(layout_, at::kFloat, at::kCPU) {}

  void* first() { return memory_.mutable_data_ptr(); }

  UnitLayout layout_;
  at::Tensor memory_;
  SlotStorage slot_;
};

TEST_F(SlotStorageTest, ViewsReadAndWriteTheAcquiredMemory) {
  slot_.acquire(first());
  for (std::size_t i = 0; i < layout_.parameters.size(); ++i) {
    slot_.views()[static_cast<int>(i)].fill_(static_cast<double>(i + 1));
  }
  for (std::size_t i = 0; i < layout_.parameters.size(); ++i) {
    const ParameterSpec& parameter = layout_.parameters[i];
    const at::Tensor piece = memory_.narrow(0, static_cast<std::int64_t>(parameter.first_element),
                                            static_cast<std::int64_t>(parameter.elements));
    EXPECT_TRUE(piece.eq(static_cast<double>(i + 1)).all().item<bool>()) << parameter.name;
  }
}

TEST_F(SlotStorageTest, EveryUseAfterReleaseThrows) {
  slot_.acquire(first());
  const at::Tensor weight = slot_.views()[kPlaces.qkv.weight];
  const at::Tensor view_of_view = weight.t();
  const at::Tensor x = at::ones({3, 16});
  slot_.release();
  const std::vector<std::function<void()>> uses = {
      [&] { at::mm(x, weight); },
      [&] {
        at::mm(at::ones({3, 48}), view_of_view);
      },
      [&] { weight.add(1); },
      [&] { weight.sum(); },
      [&] { weight.clone(); },
      [&] { weight.const_data_ptr<float>(); },
      [&] { at::Tensor(weight).zero_(); },
      [&] {
        at::Tensor(weight).copy_(at::ones({16, 48}));
      },
  };
  for (std::size_t i = 0; i < uses.size(); ++i) EXPECT_ANY_THROW(uses[i]()) << "use " << i;
}

TEST_F(SlotStorageTest, AKeptViewNeverReadsTheNextUnitOfTheSlot) {
  slot_.acquire(first());
  const at::Tensor kept = slot_.views()[kPlaces.qkv.weight];
  kept.fill_(1);
  slot_.release();
  SlotStorage next(block_layout(spec_of(kShape).block, 1), at::kFloat, at::kCPU);
  next.acquire(first());
  next.views()[kPlaces.qkv.weight].fill_(2);
  EXPECT_ANY_THROW(kept.sum());
  next.release();
  // Fetched again into other memory, so the kept view is valid again.
  at::Tensor other = at::ones_like(memory_).mul_(3);
  slot_.acquire(other.mutable_data_ptr());
  EXPECT_EQ(kept.mean().item<float>(), 3);
}

TEST_F(SlotStorageTest, AutogradThatHoldsAReleasedWeightThrowsInsteadOfReadingTheNextUnit) {
  slot_.acquire(first());
  const at::Tensor weight = slot_.views()[kPlaces.qkv.weight];
  at::Tensor x = at::ones({3, 16}).requires_grad_();
  const at::Tensor loss = at::mm(x, weight).sum();  // the tape saves weight
  slot_.release();
  SlotStorage next(block_layout(spec_of(kShape).block, 1), at::kFloat, at::kCPU);
  next.acquire(first());
  EXPECT_ANY_THROW(loss.backward());
}

TEST_F(SlotStorageTest, AUnitThrowsOnAReleasedSlotAndKeepsNothingOfIt) {
  const DecoderBlock block(spec_of(kShape).block, {}, 0);
  const at::Tensor x = at::ones({1, 4, 16});
  EXPECT_ANY_THROW(block.forward({}, slot_.views(), x, nullptr));
  slot_.acquire(first());
  Saved saved;
  block.forward({}, slot_.views(), x, &saved);
  slot_.release();
  for (const at::Tensor& tensor : saved.tensors()) {
    if (tensor.defined()) {
      EXPECT_NO_THROW(tensor.clone());
    }
  }
  const at::Tensor gradient = at::zeros_like(memory_);
  EXPECT_ANY_THROW(block.backward({}, slot_.views(), x, saved, x, UnitViews(layout_, gradient)));
}

TEST_F(SlotStorageTest, SaysWhichUnitIsUsedWhileReleased) {
  try {
    slot_.views()[kPlaces.qkv.weight].add(1);
    FAIL() << "nothing was thrown";
  } catch (const c10::Error& error) {
    EXPECT_THAT(error.what(), testing::ContainsRegex("unit h.0.*is released"));
  }
}

TEST_F(SlotStorageTest, AutogradGoesOnWhenTheUnitIsFetchedAgain) {
  slot_.acquire(first());
  const at::Tensor weight = slot_.views()[kPlaces.qkv.weight];
  weight.fill_(2);
  at::Tensor x = at::ones({3, 48}).requires_grad_();
  const at::Tensor loss = at::mm(x, weight.t()).sum();  // the tape saves a view of the view
  slot_.release();
  at::Tensor other = memory_.clone();
  slot_.acquire(other.mutable_data_ptr());
  loss.backward();
  EXPECT_TRUE(x.grad().eq(2 * 16).all().item<bool>());
}

TEST_F(SlotStorageTest, RefusesToBeAcquiredTwice) {
  slot_.acquire(first());
  EXPECT_ANY_THROW(slot_.acquire(first()));
}

}  // namespace
}  // namespace sluice::engine
