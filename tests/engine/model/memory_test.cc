// The families' memory formulas, compared with what the passes take from the allocator.
#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <c10/core/CPUAllocator.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <map>
#include <mutex>
#include <string>
#include <unordered_map>
#include <utility>

#include "engine/families/families.h"
#include "engine/model/decoder/block_costs.h"
#include "engine/model/decoder/block_memory.h"
#include "engine/model/ops/products.h"
#include "tests/engine/model/block_under_test.h"
#include "tests/engine/model/specs.h"
#include "tests/engine/model/whole_model.h"

#ifdef SLUICE_HAS_CUDA
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#endif

namespace sluice::engine {
namespace {

// Counts the memory of CPU tensors. Stays installed from its first use to the program's end, since
// tensors may live as long.
class CountingAllocator final : public c10::Allocator {
 public:
  static CountingAllocator& installed() {
    static CountingAllocator* const allocator = new CountingAllocator;  // outlives every static
    return *allocator;
  }

  c10::DataPtr allocate(std::size_t bytes) override {
    c10::DataPtr memory = inner_->allocate(bytes);
    void* const first = memory.get();
    if (first == nullptr) return memory;
    const std::lock_guard lock(mutex_);
    now_bytes_ += bytes;
    peak_bytes_ = std::max(peak_bytes_, now_bytes_);
    blocks_[first] = {bytes, std::move(memory)};
    return {first, first, &release, at::kCPU};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }

  std::uint64_t now_bytes() {
    const std::lock_guard lock(mutex_);
    return now_bytes_;
  }
  std::uint64_t peak_bytes() {
    const std::lock_guard lock(mutex_);
    return peak_bytes_;
  }
  void start_peak() {
    const std::lock_guard lock(mutex_);
    peak_bytes_ = now_bytes_;
  }

 private:
  struct Block {
    std::size_t bytes = 0;
    c10::DataPtr memory;
  };

  CountingAllocator() : inner_(c10::GetCPUAllocator()) {
    c10::SetCPUAllocator(this, std::numeric_limits<std::uint8_t>::max());
  }
  static void release(void* first) {
    if (first == nullptr) return;  // oneDNN frees allocations of zero bytes
    CountingAllocator& self = installed();
    const std::lock_guard lock(self.mutex_);
    const auto block = self.blocks_.find(first);
    self.now_bytes_ -= block->second.bytes;
    self.blocks_.erase(block);
  }

  c10::Allocator* inner_;
  std::mutex mutex_;
  std::unordered_map<void*, Block> blocks_;  // guarded by mutex_
  std::uint64_t now_bytes_ = 0;              // guarded by mutex_
  std::uint64_t peak_bytes_ = 0;             // guarded by mutex_
};

const ModelShape kGpt2 = {
    .layers = 1, .hidden = 128, .heads = 2, .context_tokens = 256, .vocab = 5003};

// Shared keys, and a feed-forward of three times the width.
ModelShape llama(std::map<std::string, double> numbers) {
  numbers.insert({{"kv_heads", 2}, {"head_dim", 64}});
  return complete({.layers = 1,
                   .hidden = 128,
                   .heads = 4,
                   .context_tokens = 256,
                   .vocab = 5003,
                   .ffn_hidden = 384,
                   .family = "llama",
                   .numbers = std::move(numbers)});
}

// A delta rule, and then attention with a gate.
ModelShape qwen3_5() {
  return complete({.layers = 2,
                   .hidden = 128,
                   .heads = 4,
                   .context_tokens = 256,
                   .vocab = 5003,
                   .ffn_hidden = 384,
                   .family = "qwen3_5",
                   .numbers = {{"kv_heads", 2},
                               {"head_dim", 64},
                               {"attention_interval", 2},
                               {"delta_key_heads", 2},
                               {"delta_value_heads", 4},
                               {"delta_key_dim", 64},
                               {"delta_value_dim", 64}}});
}

// The same with experts, and a shared one that is wide or narrow.
ModelShape qwen3_5_moe(std::int64_t shared_width) {
  ModelShape shape = qwen3_5();
  shape.ffn_hidden = shared_width;
  shape.numbers.insert_or_assign("experts", 8);
  shape.numbers.insert_or_assign("experts_per_token", 3);
  shape.numbers.insert_or_assign("expert_width", 96);
  return shape;
}

// A window, and then all; branches with norms.
ModelShape gemma3() {
  return complete(
      {.layers = 2,
       .hidden = 128,
       .heads = 4,
       .context_tokens = 256,
       .vocab = 5003,
       .ffn_hidden = 384,
       .family = "gemma3",
       .numbers = {{"kv_heads", 2}, {"head_dim", 64}, {"window", 32}, {"full_interval", 2}}});
}

// The same with soft caps.
ModelShape gemma2() {
  ModelShape shape = gemma3();
  shape.family = "gemma2";
  shape.numbers = {{"kv_heads", 2}, {"head_dim", 64}, {"window", 32}};
  return complete(std::move(shape));
}

struct Case {
  at::ScalarType dtype;
  double dropout;
  std::string model = "Gpt2";
};

std::string name_of(const testing::TestParamInfo<Case>& info) {
  return info.param.model + std::string(c10::toString(info.param.dtype)) +
         (info.param.dropout > 0 ? "WithDropout" : "");
}

ModelShape shape_of(const Case& which) {
  ModelShape shape = kGpt2;
  if (which.model.starts_with("LlamaFp8")) shape = llama({{"attention_bias", 1}, {"mlp_bias", 1}});
  if (which.model == "Qwen3AdaptersFp8")
    shape = llama({{"architecture", architecture("qwen3")}, {"tied_head", 1}});
  if (which.model == "Qwen35Fp8") shape = qwen3_5();
  if (which.model == "Qwen35MoeFp8") shape = qwen3_5_moe(768);
  if (which.model == "Gemma3Fp8") shape = gemma3();
  if (which.model == "Llama") shape = llama({{"attention_bias", 1}, {"mlp_bias", 1}});
  if (which.model == "Qwen3")
    shape = llama({{"architecture", architecture("qwen3")}, {"tied_head", 1}});
  if (which.model.starts_with("Qwen3Moe"))
    shape = llama({{"architecture", architecture("qwen3_moe")},
                   {"experts", 8},
                   {"experts_per_token", 3},
                   {"expert_width", 96}});
  if (which.model == "Mixtral")
    shape = llama(
        {{"architecture", architecture("mixtral")}, {"experts", 4}, {"experts_per_token", 2}});
  if (which.model == "GptOss")
    shape = llama({{"architecture", architecture("gpt_oss")},
                   {"attention_bias", 1},
                   {"experts", 8},
                   {"experts_per_token", 3}});
  if (which.model == "Mistral")
    shape = llama({{"architecture", architecture("mistral")}, {"window", 32}});
  if (which.model == "Gemma3") shape = gemma3();
  if (which.model == "Gemma2") shape = gemma2();
  if (which.model == "Phi3")
    shape = llama({{"architecture", architecture("phi3")}, {"rope_share", 0.75}});
  if (which.model == "SmolLm3")  // without rotary positions
    shape = llama({{"architecture", architecture("smollm3")},
                   {"attention_bias", 1},
                   {"unrotated_interval", 1}});
  if (which.model == "Qwen35") shape = qwen3_5();
  if (which.model == "Qwen35Moe") shape = qwen3_5_moe(96);
  if (which.model == "Qwen35MoeWide") shape = qwen3_5_moe(768);
  if (which.model == "Gpt2Erf") shape.numbers = {{"activation", 1}, {"tied_head", 0}};
  if (which.model == "Gpt2Relu") shape.numbers = {{"activation", 2}};
  if (which.model == "Gpt2Silu")
    shape.numbers = {{"activation", 3}, {"scale_attention_by_layer", 1}};
  shape.dropout = which.dropout;
  return shape;
}

LoraRecipe lora_of(const Case& which) {
  if (which.model.find("Adapters") == std::string::npos) return {};
  LoraRecipe lora = {.rank = 16, .alpha = 4, .targets = {"v_proj"}};
  if (which.model.find("Moe") != std::string::npos) lora.targets.emplace_back("experts");
  return lora;
}

Fp8Recipe fp8_of(const Case& which) {
  return {.enabled = which.model.find("Fp8") != std::string::npos,
          .wide_weight_gradients = which.model.ends_with("Fp8Bf16")};
}

// The part of a bound that is in use. On the CPU, which has fp8 for comparison only, the copies of
// products in fp8 and in 16 bits are both counted.
double least_part(const Case& which, const PeakOptions& options) {
  return fp8_of(which).enabled && options.cpu ? 0.4 : 0.6;
}

PassShape pass_of(const Case& which) {
  return {.micro_batch = 4,
          .tokens = kGpt2.context_tokens,
          .number_bytes = static_cast<std::int64_t>(c10::elementSize(which.dtype))};
}

// Calls a block and the head once each, between reads of an allocator's count.
template <typename Now, typename StartPeak, typename Peak>
void expect_formulas_hold(const Case& which, at::Device device, const PeakOptions& peak_options,
                          Now now, StartPeak start_peak, Peak peak) {
  const ModelShape shape = shape_of(which);
  const PassShape pass = pass_of(which);
  const auto options = at::TensorOptions().dtype(which.dtype).device(device);
  const WholeModel model({.shape = shape, .lora = lora_of(which), .fp8 = fp8_of(which)}, options);
  model.initialise(1);
  const at::Tensor input = at::randn({pass.micro_batch, pass.tokens, shape.hidden}).to(options);
  const at::Tensor grad = at::randn({pass.micro_batch, pass.tokens, shape.hidden}).to(options);
  const at::Tensor targets =
      at::randint(shape.vocab, {pass.micro_batch, pass.tokens}, at::kLong).to(device);
  const int head = model.model().layout().head();
  const auto loss = [&] {
    model.model().head().loss_and_gradient(model.parameters(head), input, targets, 1,
                                           model.gradients(head));
  };
  EXPECT_EQ(input.nbytes(), model.model().layout().unit_input_bytes(pass));
  const UnitKind& head_kind = model.model().layout().kind(head);
  for (int unit = 1; unit < head; ++unit) {
    const ModelUnit& block = model.model().unit(unit);
    const UnitKind& block_kind = model.model().layout().kind(unit);
    for (const bool measured :
         {false, true}) {  // libraries allocate their workspace the first time
      Saved saved;
      const std::uint64_t before = now() - 2 * input.nbytes();
      block.recompute({}, model.parameters(unit), input, saved);
      if (peak_options.plain_attention) {
        EXPECT_LE(saved.bytes(), block_kind.saved_bytes(pass));
      } else {
        EXPECT_NEAR(static_cast<double>(saved.bytes()),
                    static_cast<double>(block_kind.saved_bytes(pass)), 64);
      }
      start_peak();
      block.backward({}, model.parameters(unit), input, saved, grad, model.gradients(unit));
      const auto bound = static_cast<double>(block_kind.peak_bytes(pass, peak_options));
      // The formula leaves out vectors of a bias's length.
      if (measured) {
        EXPECT_LT(static_cast<double>(peak() - before), 1.05 * bound);
        EXPECT_GT(static_cast<double>(peak() - before), least_part(which, peak_options) * bound);
      }
    }
  }
  for (const bool measured : {false, true}) {
    const std::uint64_t before = now() - input.nbytes();
    start_peak();
    loss();
    const auto bound = static_cast<double>(head_kind.peak_bytes(pass, peak_options));
    if (measured) {
      EXPECT_LT(static_cast<double>(peak() - before), 1.05 * bound);
      EXPECT_GT(static_cast<double>(peak() - before), 0.6 * bound);
    }
  }
}

// A block whose feed-forward is cut into pieces.
template <typename Now, typename StartPeak, typename Peak>
void expect_formulas_hold_in_pieces(const Case& which, at::Device device,
                                    const PeakOptions& peak_options, Now now, StartPeak start_peak,
                                    Peak peak) {
  constexpr std::int64_t kRows = 128;
  const ModelShape shape = shape_of(which);
  const PassShape pass = pass_of(which);
  const auto options = at::TensorOptions().dtype(which.dtype).device(device);
  for (std::int64_t layer = 0; layer < shape.layers; ++layer) {
    const BlockUnderTest block(shape, lora_of(which), kRows, options, layer, fp8_of(which));
    block.make_lively();
    const at::Tensor input = at::randn({pass.micro_batch, pass.tokens, shape.hidden}).to(options);
    const at::Tensor grad = at::randn({pass.micro_batch, pass.tokens, shape.hidden}).to(options);
    const ModelOptions numbers = {.lora = lora_of(which), .fp8 = fp8_of(which)};
    BlockSpec spec = with_fp8(spec_of(shape), numbers).block_at(layer);
    spec.piece_rows = kRows;
    const std::uint64_t saved_bytes = block_saved_bytes(spec, pass);
    const std::uint64_t bound = block_peak_bytes(spec, lora_of(which), pass, peak_options);
    for (const bool measured : {false, true}) {
      Saved saved;
      const std::uint64_t before = now() - 2 * input.nbytes();
      start_peak();
      block.block().recompute({}, block.parameters(), input, saved);
      if (peak_options.plain_attention) {
        EXPECT_LE(saved.bytes(), saved_bytes);
      } else {
        EXPECT_NEAR(static_cast<double>(saved.bytes()), static_cast<double>(saved_bytes), 64);
      }
      block.block().backward({}, block.parameters(), input, saved, grad, block.gradients());
      if (!measured) continue;
      EXPECT_LT(static_cast<double>(peak() - before), 1.05 * static_cast<double>(bound));
      EXPECT_GT(static_cast<double>(peak() - before),
                least_part(which, peak_options) * static_cast<double>(bound));
    }
  }
}

class ModelMemory : public testing::TestWithParam<Case> {};
class ModelCudaMemory : public testing::TestWithParam<Case> {};

const Case kCases[] = {{at::kFloat, 0},
                       {at::kFloat, 0.1},
                       {at::kBFloat16, 0},
                       {at::kBFloat16, 0.1},
                       {at::kFloat, 0, "Gpt2Erf"},
                       {at::kBFloat16, 0.1, "Gpt2Erf"},
                       {at::kFloat, 0.1, "Gpt2Relu"},
                       {at::kBFloat16, 0, "Gpt2Relu"},
                       {at::kFloat, 0, "Gpt2Silu"},
                       {at::kBFloat16, 0, "Gpt2Silu"},
                       {at::kFloat, 0, "Llama"},
                       {at::kBFloat16, 0, "Llama"},
                       {at::kFloat, 0, "Qwen3"},
                       {at::kBFloat16, 0, "Qwen3"},
                       {at::kFloat, 0, "Mistral"},
                       {at::kBFloat16, 0, "Mistral"},
                       {at::kFloat, 0, "Qwen3Moe"},
                       {at::kBFloat16, 0, "Qwen3Moe"},
                       {at::kFloat, 0, "Qwen3MoeAdapters"},
                       {at::kBFloat16, 0, "Qwen3MoeAdapters"},
                       {at::kFloat, 0, "Mixtral"},
                       {at::kBFloat16, 0, "Mixtral"},
                       {at::kFloat, 0, "Gemma3"},
                       {at::kBFloat16, 0, "Gemma3"},
                       {at::kFloat, 0, "Gemma2"},
                       {at::kBFloat16, 0, "Gemma2"},
                       {at::kFloat, 0, "Qwen35"},
                       {at::kBFloat16, 0, "Qwen35"},
                       {at::kFloat, 0, "Qwen35Moe"},
                       {at::kBFloat16, 0, "Qwen35Moe"},
                       {at::kFloat, 0, "Qwen35MoeWide"},
                       {at::kBFloat16, 0, "Qwen35MoeWide"},
                       {at::kFloat, 0, "Phi3"},
                       {at::kBFloat16, 0, "Phi3"},
                       {at::kFloat, 0, "SmolLm3"},
                       {at::kBFloat16, 0, "SmolLm3"},
                       {at::kFloat, 0, "GptOss"},
                       {at::kBFloat16, 0, "GptOss"},
                       {at::kBFloat16, 0, "Gpt2Fp8"},
                       {at::kBFloat16, 0.1, "Gpt2Fp8"},
                       {at::kBFloat16, 0, "LlamaFp8"},
                       {at::kBFloat16, 0, "LlamaFp8Bf16"},
                       {at::kBFloat16, 0, "Qwen3AdaptersFp8"},
                       {at::kBFloat16, 0, "Gemma3Fp8"},
                       {at::kBFloat16, 0, "Qwen35Fp8"},
                       {at::kBFloat16, 0, "Qwen35MoeFp8"},
                       {at::kBFloat16, 0.1, "Mistral"}};
INSTANTIATE_TEST_SUITE_P(Dtypes, ModelMemory, testing::ValuesIn(kCases), name_of);
INSTANTIATE_TEST_SUITE_P(Dtypes, ModelCudaMemory, testing::ValuesIn(kCases), name_of);

TEST_P(ModelMemory, IsWhatTheFormulasSay) {
  // LibTorch's attention on the CPU takes a buffer of 0.15 MiB per thread. The formulas leave it
  // out, but it matters in a model as small as this one.
  const int threads = at::get_num_threads();
  at::set_num_threads(2);
  CountingAllocator& allocator = CountingAllocator::installed();
  const PeakOptions options = {.cpu = true,
                               .plain_attention = GetParam().dropout > 0,
                               .fast_products = has_fast_products(GetParam().dtype)};
  const auto now = [&] { return allocator.now_bytes(); };
  const auto start_peak = [&] { allocator.start_peak(); };
  const auto peak = [&] { return allocator.peak_bytes(); };
  expect_formulas_hold(GetParam(), at::kCPU, options, now, start_peak, peak);
  expect_formulas_hold_in_pieces(GetParam(), at::kCPU, options, now, start_peak, peak);
  at::set_num_threads(threads);
}

TEST_P(ModelCudaMemory, IsWhatTheFormulasSay) {
#ifdef SLUICE_HAS_CUDA
  if (c10::cuda::device_count() == 0) GTEST_SKIP() << "no CUDA device in this machine";
  namespace allocator = c10::cuda::CUDACachingAllocator;
  // Without what the allocator adds to fill its blocks, which depends on the cases before.
  const auto stats = [] { return allocator::getDeviceStats(0).requested_bytes[0]; };
  const PeakOptions options = {.plain_attention = GetParam().dtype == at::kFloat};
  const at::Device device(at::kCUDA, 0);
  const auto now = [&] { return static_cast<std::uint64_t>(stats().current); };
  const auto start_peak = [] { allocator::resetPeakStats(0); };
  const auto peak = [&] { return static_cast<std::uint64_t>(stats().peak); };
  expect_formulas_hold(GetParam(), device, options, now, start_peak, peak);
  expect_formulas_hold_in_pieces(GetParam(), device, options, now, start_peak, peak);
#else
  GTEST_SKIP() << "this build has no CUDA code";
#endif
}

}  // namespace
}  // namespace sluice::engine
