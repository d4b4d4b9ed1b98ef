// Drives that fail under a run that keeps state, parameters and, on a GPU, gradients, their sums
// and inputs of units on them. A step ends with an error that names the drive, or has the bits of a
// run without faults.
#include <ATen/Context.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <iostream>

#include "aio/fault_backend.h"
#include "tests/engine/run/run_under_test.h"
#include "tests/engine/run/silent_log.h"

namespace sluice::engine {
namespace {

using aio::FaultKind;
using aio::FaultPlan;
using aio::FaultTarget;
using testing::HasSubstr;

constexpr int kSteps = 2;

struct End {
  std::string error;  // empty: every step was taken
  std::vector<float> masters;
  std::uint64_t transfers = 0;
  std::uint64_t injected = 0;
};

class FailingDrives {
 public:
  explicit FailingDrives(const std::vector<std::string>& overrides) : small_(overrides) {}

  // Trains; the drives fail as `faults` says once the state is set.
  End train(const FaultPlan& faults) const {
    const config::Config config = small_.config();
    const bool on_gpu = uses_cuda(config);
    const auto plan = plan_memory(config, configured_layout(config, on_gpu), {.on_gpu = on_gpu});
    must_be(plan.status());
    EXPECT_EQ(plan->gradients.has_value(), on_gpu);
    std::unique_ptr<aio::IoBackend> drives;
    aio::FaultBackend* failing = nullptr;
    End end;
    {
      auto run = TrainingRun::create(
          config, *plan, single_process(),
          [&](const config::Config& of) -> Result<std::unique_ptr<aio::IoBackend>> {
            SLUICE_ASSIGN_OR_RETURN(drives, make_run_backend(of));
            auto made = std::make_unique<aio::FaultBackend>(*drives, FaultPlan{});
            failing = made.get();
            return std::unique_ptr<aio::IoBackend>(std::move(made));
          });
      must_be(run.status());
      must_be((*run)->initialise({}));
      failing->set_plan(faults);
      try {
        for (int i = 0; i < kSteps; ++i) (*run)->step();
        end.masters = masters_of(**run);
      } catch (const std::exception& error) {
        end.error = error.what();
      }
      end.transfers =
          failing->operations(FaultTarget::kRead) + failing->operations(FaultTarget::kWrite);
      end.injected = failing->injected();
      failing->set_plan({});
    }
    EXPECT_EQ(entries(drive()), 0) << "stores are left after: " << end.error;
    return end;
  }

  const std::string& drive() const { return small_.drives().front(); }

 private:
  static void must_be(const Status& status) {
    if (!status.ok()) throw std::runtime_error(status.error().message());
  }

  const SmallRun small_;
};

// Fails the transfers `stride` apart, once or from then on, in each way.
void fail_transfers(const std::vector<std::string>& overrides, std::uint64_t tries) {
  const SilentLog silent;
  const FailingDrives drives(overrides);
  const End whole = drives.train({});
  ASSERT_EQ(whole.error, "");
  const std::uint64_t stride = std::max<std::uint64_t>(whole.transfers / tries, 1);
  int ended = 0;
  int withstood = 0;
  std::uint64_t first = 1;
  for (const FaultKind fault : {FaultKind::kEio, FaultKind::kEnospc, FaultKind::kTornWrite,
                                FaultKind::kShort, FaultKind::kDelay, FaultKind::kReorder}) {
    for (const bool persistent : {false, true}) {
      // Other transfers for each kind.
      for (std::uint64_t nth = first++ % stride + 1; nth <= whole.transfers; nth += stride) {
        SCOPED_TRACE(std::string(to_string(fault)) + (persistent ? " from " : " at ") +
                     std::to_string(nth) + " of " + std::to_string(whole.transfers));
        FaultPlan plan = FaultPlan::of({.fault = fault,
                                        .nth = nth,
                                        .persistent = persistent,
                                        .targets = {FaultTarget::kRead, FaultTarget::kWrite}});
        plan.delay_ns = 50'000;
        const End end = drives.train(plan);
        if (end.error.empty()) {
          EXPECT_EQ(end.masters, whole.masters);
          ++withstood;
        } else {
          EXPECT_GT(end.injected, 0U);
          EXPECT_THAT(end.error, HasSubstr(drives.drive()));
          ++ended;
        }
        if (testing::Test::HasFailure()) return;
      }
    }
  }
  std::cout << ended << " faults ended a run by name, " << withstood << " changed no bit\n";
  EXPECT_GT(ended, 0);
  EXPECT_GT(withstood, 0);
}

std::vector<std::string> on_drives(const std::vector<std::string>& more) {
  std::vector<std::string> all = {"model.layers=4",
                                  "gradient_accumulation_steps=3",
                                  "placement.wave_micro_batches=1",
                                  "placement.recompute=on",
                                  "zero_optimization.offload_optimizer.device=nvme",
                                  "zero_optimization.offload_param.device=nvme",
                                  "zero_optimization.stage3_param_persistence_threshold=0"};
  all.insert(all.end(), more.begin(), more.end());
  return all;
}

TEST(DriveFaults, EndAStepByNameOrChangeNoBit) { fail_transfers(on_drives({"run.device=cpu"}), 4); }

TEST(LongDriveFaults, EndAStepByNameOrChangeNoBit) {
  fail_transfers(on_drives({"run.device=cpu"}), 1'000'000);
}

TEST(DriveFaultsCuda, EndAStepByNameOrChangeNoBit) {
  if (!at::hasCUDA()) GTEST_SKIP() << "no GPU that LibTorch can use in this machine";
  fail_transfers(on_drives({"run.device=cuda", "placement.unit_inputs_to_nvme=on",
                            "placement.gradients_to_nvme=on"}),
                 10);
}

}  // namespace
}  // namespace sluice::engine
