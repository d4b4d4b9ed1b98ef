// Every IO of one full step fails in turn, once and permanently. The result is the right bits, or a
// persistent error that names the record; never wrong state, never a hang.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <iostream>

#include "aio/log.h"
#include "tests/offload/offloader_under_test.h"

namespace sluice::offload {
namespace {

using aio::FaultKind;

constexpr int kFailingStep = 1;

// Less to compute than in the other tests: one run for each IO of a step.
std::vector<UnitSpec> units() {
  return {{"wte", {{0, 9001}}}, {"h.0", {{0, 5500}, {1, 333}}}, {"ln_f", {{1, 777}}}};
}

class OffloaderFaults {
 public:
  OffloaderFaults(Drive drive, bool background) : drive_(drive), background_(background) {
    log::set_sink([](log::Level, std::string_view) {});  // hundreds of retries
  }
  ~OffloaderFaults() { log::set_sink({}); }

  // Injects the fault at every IO of the step, until a run meets none.
  void run_all(FaultKind fault, bool persistent) {
    for (std::uint64_t nth = 1;; nth += kSanitized ? 7 : 1) {
      SCOPED_TRACE(std::string(to_string(fault)) + (persistent ? " from" : " at") + " IO " +
                   std::to_string(nth) + " on");
      if (!run_one({.fault = fault, .nth = nth, .persistent = persistent})) {
        EXPECT_GT(nth, 10U) << "a step of more IOs than that";
        return;
      }
      if (testing::Test::HasFailure()) return;
    }
  }
  int errors() const { return errors_; }

 private:
  bool run_one(const aio::FaultRule& rule) {
    Rig rig(problem_, {.fractions = {.gpu = 0.1, .cpu = 0.3, .nvme = 0.6},
                       .sub_group_elements = 1001,
                       .threads = 2,
                       .drive = drive_});
    EXPECT_OK(rig.restore());
    EXPECT_OK(rig.run_step(0, background_));
    EXPECT_OK(rig.offloader().drain());
    rig.faults().set_plan(aio::FaultPlan::of(rule));
    const Status stepped = whole_step(rig);
    const bool injected = rig.faults().injected() > 0;
    rig.faults().set_plan({});
    if (!stepped.ok()) {
      EXPECT_TRUE(rule.persistent) << stepped.error().message();
      expect_named_and_kept(rig, stepped.error().message());
      ++errors_;
      return injected;
    }
    EXPECT_TRUE(!rule.persistent || !injected) << "an IO that always fails was not needed";
    EXPECT_OK(rig.run_step(kFailingStep + 1, background_));
    EXPECT_EQ(rig.difference_from_solution(), "");
    return injected;
  }

  Status whole_step(Rig& rig) const {
    SLUICE_RETURN_IF_ERROR(rig.offloader().prefetch());
    SLUICE_RETURN_IF_ERROR(rig.run_step(kFailingStep, background_));
    return rig.offloader().drain();
  }

  static void expect_named_and_kept(Rig& rig, const std::string& message) {
    EXPECT_THAT(message,
                testing::ContainsRegex(
                    "(reading|writing) record (wte|h\\.0|ln_f)/adamw\\[[0-9]+\\.\\.[0-9]+"));
    const auto expect_kept = [&](const Status& status) {
      EXPECT_TRUE(!status.ok() && status.error().message() == message);
    };
    for (const int unit : {0, 1, 2}) expect_kept(rig.offloader().wait_ready(unit));
    expect_kept(rig.offloader().prefetch());
    expect_kept(rig.start_step(kFailingStep, false));
    expect_kept(rig.offloader().drain());
    expect_kept(rig.snapshot().status());
  }

  const Problem problem_{kProblemKinds[0], units(), kFailingStep + 2};
  const Drive drive_;
  const bool background_;
  int errors_ = 0;
};

void expect_right_or_an_error(Drive drive, bool background) {
  OffloaderFaults faults(drive, background);
  for (const FaultKind fault : {FaultKind::kEio, FaultKind::kShort, FaultKind::kTornWrite})
    faults.run_all(fault, /*persistent=*/false);
  EXPECT_EQ(faults.errors(), 0);
  for (const FaultKind fault : {FaultKind::kEio, FaultKind::kTornWrite})
    faults.run_all(fault, /*persistent=*/true);
  EXPECT_GT(faults.errors(), kSanitized ? 4 : 20);
}

TEST(OptimizerOffloaderFaults, EndInRightBitsOrAnErrorOnASimulatedDrive) {
  expect_right_or_an_error(Drive::kSim, /*background=*/false);
}

TEST(OptimizerOffloaderFaults, EndInRightBitsOrAnErrorOnARealDrive) {
  expect_right_or_an_error(Drive::kPosix, /*background=*/true);
}

TEST(UringOptimizerOffloaderFaults, EndInRightBitsOrAnError) {
  expect_right_or_an_error(Drive::kUring, /*background=*/true);
}

}  // namespace
}  // namespace sluice::offload
