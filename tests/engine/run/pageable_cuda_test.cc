// Host memory that cannot be pinned, or only in part, changes no bit of a run on a GPU. Skipped
// without a GPU.
#include <ATen/Context.h>
#include <gtest/gtest.h>

#include <cstring>
#include <optional>
#include <string>
#include <vector>

#include "aio/log.h"
#include "aio/page_memory.h"
#include "aio/units.h"
#include "engine/device/gpu.h"
#include "tests/engine/run/run_under_test.h"

namespace sluice::engine {
namespace {

constexpr int kSteps = 3;

// While it exists, so much host memory can be pinned.
class PinLimit {
 public:
  explicit PinLimit(std::optional<std::uint64_t> bytes) { cuda_host_pinning().set_limit(bytes); }
  ~PinLimit() { cuda_host_pinning().set_limit({}); }
  PinLimit(const PinLimit&) = delete;
  PinLimit& operator=(const PinLimit&) = delete;
};

struct Trained {
  std::vector<float> masters;
  std::vector<double> losses;
  std::uint64_t pinned_bytes = 0;
  std::uint64_t refused_bytes = 0;
};

Trained train(const std::vector<std::string>& overrides, std::optional<std::uint64_t> pin_limit) {
  const PinLimit limit(pin_limit);
  std::vector<std::string> all = {"run.device=cuda",
                                  "model.hidden=256",
                                  "model.layers=4",
                                  "gradient_accumulation_steps=4",
                                  "zero_optimization.stage3_param_persistence_threshold=0",
                                  "zero_optimization.sub_group_size=300000"};
  all.insert(all.end(), overrides.begin(), overrides.end());
  const SmallRun small(all);
  const auto run = small.start();
  Trained trained;
  for (int i = 0; i < kSteps; ++i) trained.losses.push_back(run->step().loss);
  trained.pinned_bytes = cuda_host_pinning().pinned_bytes();
  trained.refused_bytes = cuda_host_pinning().refused_bytes();
  trained.masters = masters_of(*run);
  return trained;
}

class PageableCuda : public testing::Test {
 protected:
  void SetUp() override {
    if (!at::hasCUDA()) GTEST_SKIP() << "no GPU that LibTorch can use in this machine";
    log::set_sink([this](log::Level level, std::string_view message) {
      if (level == log::Level::kWarning && message.find("cannot be pinned") != message.npos)
        ++warnings_;
    });
  }
  void TearDown() override { log::set_sink({}); }

  int warnings_ = 0;
};

struct Case {
  const char* what;
  std::vector<std::string> overrides;
};

// Half of what the run would pin leaves some memories pinned and others not; a limit between gives
// the copies of some streams a buffer, and others none.
TEST_F(PageableCuda, ChangesNoBit) {
  const std::string params = "zero_optimization.offload_param.device=";
  const std::string state = "zero_optimization.offload_optimizer.device=";
  const std::string thirds =
      R"(placement.optimizer_fractions={"gpu": 0.4, "cpu": 0.3, "nvme": 0.3})";
  const std::vector<Case> cases = {
      {"all in RAM", {}},
      {"all on NVMe", {params + "nvme", state + "nvme"}},
      {"on all tiers", {params + "nvme", state + "auto", thirds}},
      {"all on the GPU", {params + "none", state + "none"}},
      {"in waves", {"placement.wave_micro_batches=1"}},
      {"unit inputs in RAM", {"placement.unit_inputs_to_cpu=on"}},
      {"unit inputs on NVMe", {"placement.unit_inputs_to_nvme=on"}},
      {"adapters of a base in 8 bits", of_adapters({"recipe.lora.base_bits=8"})},
      {"adapters of a base in 4 bits",
       of_adapters({"recipe.lora.base_bits=4", "recipe.lora.double_quant=true"})},
  };
  for (const Case& it : cases) {
    const Trained expected = train(it.overrides, std::nullopt);
    ASSERT_EQ(expected.refused_bytes, 0U) << it.what;
    ASSERT_GT(expected.pinned_bytes, 0U) << it.what;
    EXPECT_EQ(warnings_, 0);
    for (const std::uint64_t limit : {std::uint64_t{0}, std::uint64_t{300} * kKiB, kMiB,
                                      expected.pinned_bytes / 2, expected.pinned_bytes - 1}) {
      SCOPED_TRACE(std::string(it.what) + ", " + format_bytes(limit) + " of " +
                   format_bytes(expected.pinned_bytes));
      const Trained trained = train(it.overrides, limit);
      EXPECT_LE(trained.pinned_bytes, limit);
      EXPECT_EQ(trained.refused_bytes > 0, limit < expected.pinned_bytes);
      ASSERT_EQ(trained.masters.size(), expected.masters.size());
      EXPECT_EQ(0, std::memcmp(trained.masters.data(), expected.masters.data(),
                               expected.masters.size() * sizeof(float)))
          << "weights differ";
      EXPECT_EQ(trained.losses, expected.losses);
    }
    EXPECT_EQ(warnings_, 1) << it.what << ": a refusal is said once";
    SetUp();  // forgets what was said
    warnings_ = 0;
  }
  EXPECT_EQ(cuda_host_pinning().pinned_bytes() + cuda_host_pinning().refused_bytes(), 0U);
}

// More than any machine pins: what the driver itself refuses is no error, and no later launch
// reports it.
TEST_F(PageableCuda, ARefusalOfTheDriverLeavesNoErrorBehind) {
  auto memory = aio::PageMemory::map(64 * kKiB, /*huge_pages=*/false);
  ASSERT_OK(memory);
  ASSERT_TRUE(*cuda_host_pinning().pin(memory->bytes()));
  // Part of it is already registered, which the driver refuses.
  const auto part = memory->bytes().subspan(4096, 8192);
  const auto again = cuda_host_pinning().pin(part);
  ASSERT_OK(again);
  EXPECT_FALSE(*again);
  cuda_host_pinning().unpin(part);
  cuda_host_pinning().unpin(memory->bytes());
  EXPECT_NO_THROW(train({}, std::nullopt));
}

}  // namespace
}  // namespace sluice::engine
