// Shared by the offloader's tests: a GPU in host memory, the owner of parameters and gradients, and
// an offloader with everything it needs.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "aio/fault_backend.h"
#include "aio/page_memory.h"
#include "aio/sim_drive.h"
#include "offload/adamw/adamw.h"
#include "offload/state/optimizer_offloader.h"
#include "swap/chunk_hash.h"
#include "tests/aio/backends_under_test.h"
#include "tests/offload/optimizer_problem.h"

namespace sluice::offload {

// A device tier that also has memory for parameters and gradients.
class TestDevice : public DeviceTier {
 public:
  virtual std::byte* allocate(std::size_t size_bytes) = 0;  // lives as long as the device
  virtual void synchronize() = 0;
};

// A GPU in host memory. Enqueued work runs when a caller waits for it, as on a stream.
class FakeDevice final : public TestDevice {
 public:
  explicit FakeDevice(std::uint64_t size_bytes)
      : memory_(aio::PageMemory::map(size_bytes, /*huge_pages=*/false).value()) {}

  std::span<std::byte> memory() const override { return memory_.bytes(); }
  Status step(const AdamwScalars& scalars, const AdamwArrays& arrays,
              std::uint64_t elements) override {
    if (fail_at_step > 0 && --fail_at_step == 0)
      return Error(ErrorCode::kInternal, "the launch failed");
    enqueued_.push_back([=] { adamw_range(Isa::kScalar, scalars, arrays, 0, elements); });
    return {};
  }
  Status start_read(const void* from, std::span<std::byte> to) override {
    return start_copy([=] { std::memcpy(to.data(), from, to.size()); });
  }
  Status start_write(void* to, std::span<const std::byte> from) override {
    return start_copy([=] { std::memcpy(to, from.data(), from.size()); });
  }
  Status finish() override {
    synchronize();
    return {};
  }
  std::byte* allocate(std::size_t size_bytes) override {
    return allocated_.emplace_back(size_bytes).data();
  }
  void synchronize() override {
    for (const auto& launch : enqueued_) launch();
    enqueued_.clear();
  }

  int fail_at_step = 0;  // counted from 1, like fail_at_copy
  int fail_at_copy = 0;

 private:
  Status start_copy(std::function<void()> copy) {
    if (fail_at_copy > 0 && --fail_at_copy == 0)
      return Error(ErrorCode::kInternal, "the copy failed");
    enqueued_.push_back(std::move(copy));
    return {};
  }

  aio::PageMemory memory_;
  std::deque<Bytes> allocated_;
  std::vector<std::function<void()>> enqueued_;
};

// The owner of parameters and gradients. Host and GPU have separate arrays. A sub-group uses the
// ones that its placement names; the others hold values that would spoil the result.
class TestSource : public UnitSource {
 public:
  TestSource(const Problem& problem, const std::vector<SubGroup>& placement, TestDevice& device)
      : problem_(problem), placement_(placement), device_(device) {
    for (int u = 0; u < static_cast<int>(problem.units().size()); ++u) {
      const std::size_t grad_size = problem.gradients(0, u).size();
      units_.push_back({.param = Bytes(problem.param_size_bytes(u), std::byte{0xEE}),
                        .grad = Bytes(grad_size, std::byte{0xFF}),
                        .gpu_param = device.allocate(problem.param_size_bytes(u)),
                        .gpu_grad = device.allocate(grad_size)});
    }
  }

  void set_gradients(int step) {
    for (std::size_t u = 0; u < units_.size(); ++u) {
      units_[u].grad = problem_.gradients(step, static_cast<int>(u));
      EXPECT_OK(device_.start_write(units_[u].gpu_grad, units_[u].grad));
    }
    EXPECT_OK(device_.finish());
  }
  // The unit's parameters, each from where its sub-group is stored.
  std::uint64_t param_hash(int unit) const {
    const Memory& it = units_[static_cast<std::size_t>(unit)];
    Bytes all = it.param;
    const auto bytes = static_cast<std::size_t>(param_bytes_per_element(problem_.kind().form));
    for (const SubGroup& sub_group : placement_) {
      if (sub_group.unit != unit || sub_group.tier != Tier::kGpu) continue;
      const std::size_t offset = sub_group.first_element * bytes;
      EXPECT_OK(device_.start_read(it.gpu_param + offset,
                                   std::span(all).subspan(offset, sub_group.elements * bytes)));
    }
    EXPECT_OK(device_.finish());
    return swap::plain_hash(all);
  }

  Result<UnitArrays> begin(int unit) override {
    if (on_begin) SLUICE_RETURN_IF_ERROR(on_begin(unit));
    Memory& it = units_[static_cast<std::size_t>(unit)];
    return UnitArrays{it.param.data(), it.grad.data(), it.gpu_param, it.gpu_grad};
  }
  // The gradient is consumed, so filled with NaNs in case anything still reads it.
  void ready(int unit) noexcept override {
    Bytes& grad = units_[static_cast<std::size_t>(unit)].grad;
    std::fill(grad.begin(), grad.end(), std::byte{0xFF});
    ready_order.push_back(unit);
  }

  std::function<Status(int unit)> on_begin;
  std::vector<int> ready_order;

 private:
  struct Memory {
    Bytes param, grad;
    std::byte* gpu_param;
    std::byte* gpu_grad;
  };
  const Problem& problem_;
  const std::vector<SubGroup> placement_;
  TestDevice& device_;
  std::vector<Memory> units_;
};

inline constexpr TierFractions kAllNvme{.gpu = 0, .cpu = 0, .nvme = 1};
inline constexpr TierFractions kFullMix{.gpu = 0.3, .cpu = 0.3, .nvme = 0.4};

// A little more than a tile, less than a tile, and several parameter groups; no size is round.
inline std::vector<UnitSpec> small_units() {
  return {{"wte", {{0, 70'001}}}, {"h.0", {{0, 20'500}, {1, 333}}}, {"ln_f", {{1, 777}}}};
}

enum class Drive : std::uint8_t { kSim, kPosix, kUring };

// Scalars change within sub-groups, tiles and records, between them and at their ends.
inline std::vector<UnitSpec> units_with_scalars() {
  return {{"wte", {{0, 70'001}}, {{0, 7'001}, {2, 58'535}, {1, 1}, {0, 4'464}}},
          {"h.0", {{0, 20'500}, {1, 333}}, {{2, 1}, {0, 127}, {0, 20'372}, {2, 332}, {1, 1}}},
          {"h.1", {{0, 5'000}, {1, 100}}},
          {"ln_f", {{1, 777}}, {{2, 777}}}};
}

struct RigOptions {
  TierFractions fractions;
  std::uint64_t sub_group_elements = 1 << 20;
  int threads = 1;
  Drive drive = Drive::kSim;
  Isa isa = best_isa();
  int buffers = 3;
  std::uint64_t record_elements = 2 * kTileElements;
  bool huge_pages = false;
  bool in_place = false;
  std::function<std::unique_ptr<TestDevice>(std::uint64_t size_bytes)> make_device =
      [](std::uint64_t size_bytes) { return std::make_unique<FakeDevice>(size_bytes); };
};

// An offloader for a problem, on a drive of its own; faults can be injected from the first step on.
class Rig {
 public:
  Rig(const Problem& problem, const RigOptions& options)
      : problem_(problem),
        placement_(
            place_by_fractions(problem.units(), options.sub_group_elements, options.fractions)
                .value()),
        executor_(aio::make_executor(options.threads).value()) {
    std::string path = "/nvme";
    if (options.drive == Drive::kSim) {
      sim_ = std::make_unique<aio::SimDrive>(loop_, aio::SimDrive::Options{});
      EXPECT_TRUE(sim_->files().make_directories(path).ok());
    } else {
      folder_.emplace();
      path = folder_->path();
      real_ = aio::make_backend_or_die(
          options.drive == Drive::kUring ? aio::BackendKind::kUring : aio::BackendKind::kPosix, 1,
          16);
    }
    faults_ = std::make_unique<aio::FaultBackend>(backend(), aio::FaultPlan{});
    queue_ = aio::make_queue_or_die(*faults_, {.block_bytes = 256 * kKiB, .queue_depth = 8});
    options_ = {.form = problem.kind().state(),
                .grad_type = problem.kind().grad,
                .isa = options.isa,
                .run_seed = Problem::kRunSeed,
                .units = problem.units(),
                .placement = placement_,
                .record_elements = options.record_elements,
                .swap = {.buffers = options.buffers},
                .store = {.paths = {path}, .run = "test"},
                .huge_pages = options.huge_pages,
                .in_place = options.in_place};
    const auto plan = OptimizerOffloader::memory_plan(options_);
    if (!plan.ok()) throw std::runtime_error(plan.error().message());
    device_ = options.make_device(plan->gpu_state_bytes + 1);
    source_ = std::make_unique<TestSource>(problem, placement_, *device_);
    auto made = OptimizerOffloader::create(options_, environment());
    if (!made.ok()) throw std::runtime_error(made.error().message());
    offloader_ = std::move(*made);
  }
  ~Rig() {
    faults_->set_plan({});
    if (offloader_ != nullptr) EXPECT_OK(offloader_->remove());
  }

  OptimizerOffloader& offloader() { return *offloader_; }
  TestSource& source() { return *source_; }
  TestDevice& device() { return *device_; }
  aio::FaultBackend& faults() { return *faults_; }
  const OptimizerOffloader::Options& options() const { return options_; }
  const std::string& folder() const { return folder_->path(); }
  bool is_simulated() const { return sim_ != nullptr; }
  OptimizerOffloader::Environment environment() {
    return {.reads = queue_.get(),
            .writes = queue_.get(),
            .executor = executor_.get(),
            .device = device_.get()};
  }

  Status restore(const std::vector<CanonicalUnit>& from) {
    return offloader_->restore(*source_, [&](int number, const StateSlice& slice) -> Status {
      const CanonicalUnit& unit = from[static_cast<std::size_t>(number)];
      EXPECT_FALSE(options_.adopt && tier_at(number, slice.first_element) == Tier::kNvme);
      for (const float x : slice.fields[1]) EXPECT_EQ(x, 0);
      copy(unit.master, slice.first_element, slice.master());
      copy(unit.m, slice.first_element, slice.fields[1]);
      copy(unit.v, slice.first_element, slice.fields[2]);
      return {};
    });
  }
  Status restore() {
    std::vector<CanonicalUnit> all;
    for (std::size_t u = 0; u < problem_.units().size(); ++u)
      all.push_back(problem_.initial(static_cast<int>(u)));
    return restore(all);
  }
  // Checks that each element is visited once and in order.
  Result<std::vector<CanonicalUnit>> snapshot() {
    std::vector<CanonicalUnit> all(problem_.units().size());
    SLUICE_RETURN_IF_ERROR(
        offloader_->snapshot(*source_, [&](int number, const StateSlice& slice) -> Status {
          CanonicalUnit& unit = all[static_cast<std::size_t>(number)];
          EXPECT_EQ(slice.first_element, unit.master.size());
          EXPECT_LE(slice.master().size(), kTileElements);
          unit.master.insert(unit.master.end(), slice.master().begin(), slice.master().end());
          unit.m.insert(unit.m.end(), slice.fields[1].begin(), slice.fields[1].end());
          unit.v.insert(unit.v.end(), slice.fields[2].begin(), slice.fields[2].end());
          return {};
        }));
    return all;
  }

  Status start_step(int step, bool background, bool keeps_parameters = false) {
    source_->set_gradients(step);
    source_->ready_order.clear();
    const std::vector<AdamwScalars> groups = problem_.scalars(step);  // captured by step()
    return offloader_->step({.groups = groups,
                             .source = source_.get(),
                             .background = background,
                             .number = step + 1,
                             .keeps_parameters = keeps_parameters});
  }
  // Like the next forward: waits unit by unit, and checks each unit's new parameters.
  Status forward(int step) {
    for (int u = 0; u < static_cast<int>(problem_.units().size()); ++u) {
      SLUICE_RETURN_IF_ERROR(offloader_->wait_ready(u));
      EXPECT_TRUE(offloader_->is_ready(u));
      device_->synchronize();
      if (source_->param_hash(u) != problem_.param_hash(step, u))
        return Error(ErrorCode::kInternal, "wrong parameters of unit " + std::to_string(u) +
                                               " after step " + std::to_string(step));
    }
    return {};
  }
  Status run_step(int step, bool background, bool keeps_parameters = false) {
    SLUICE_RETURN_IF_ERROR(start_step(step, background, keeps_parameters));
    return forward(step);
  }

  // A new process after this one was killed: it continues in the frozen store, and gets the rest of
  // the state from `beside`.
  Status resume(const swap::FrozenStore& frozen, const std::vector<CanonicalUnit>& beside) {
    offloader_.reset();
    source_ = std::make_unique<TestSource>(problem_, placement_, *device_);
    options_.adopt = frozen;
    SLUICE_ASSIGN_OR_RETURN(offloader_, OptimizerOffloader::create(options_, environment()));
    return restore(beside);
  }

  // Empty if the state equals the problem's solution, bit for bit.
  std::string difference_from_solution() {
    const auto state = snapshot();
    if (!state.ok()) return state.error().message();
    for (std::size_t u = 0; u < state->size(); ++u) {
      const CanonicalUnit& expected = problem_.solution(static_cast<int>(u));
      const CanonicalUnit& unit = (*state)[u];
      for (const auto field : {&CanonicalUnit::master, &CanonicalUnit::m, &CanonicalUnit::v}) {
        const auto& a = expected.*field;
        const auto& b = unit.*field;
        if (a.size() != b.size()) return "unit " + std::to_string(u) + " is not whole";
        if (std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) != 0)
          return "unit " + std::to_string(u) + " differs";
      }
    }
    return "";
  }

 private:
  Tier tier_at(int unit, std::uint64_t element) const {
    for (const SubGroup& it : placement_)
      if (it.unit == unit && element >= it.first_element &&
          element < it.first_element + it.elements)
        return it.tier;
    return Tier::kCpu;
  }
  static void copy(const std::vector<float>& from, std::uint64_t first, std::span<float> to) {
    std::memcpy(to.data(), from.data() + first, to.size() * sizeof(float));
  }
  aio::IoBackend& backend() {
    return sim_ != nullptr ? static_cast<aio::IoBackend&>(*sim_) : *real_;
  }

  const Problem& problem_;
  const std::vector<SubGroup> placement_;
  aio::VirtualLoop loop_;
  std::unique_ptr<aio::SimDrive> sim_;
  std::optional<aio::TemporaryFolder> folder_;
  std::unique_ptr<aio::IoBackend> real_;
  std::unique_ptr<aio::FaultBackend> faults_;
  std::unique_ptr<aio::IoQueue> queue_;
  std::unique_ptr<aio::Executor> executor_;
  std::unique_ptr<TestDevice> device_;
  std::unique_ptr<TestSource> source_;
  OptimizerOffloader::Options options_;
  std::unique_ptr<OptimizerOffloader> offloader_;
};

}  // namespace sluice::offload
