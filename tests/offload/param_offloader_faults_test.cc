// Steps of a model whose parameters are on NVMe, with each transfer failing in turn, once and
// permanently. A single failure is retried and changes nothing; a permanent one names its unit and
// ends everything.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "aio/fault_backend.h"
#include "aio/log.h"
#include "aio/sim_drive.h"
#include "tests/offload/fault_matrix.h"
#include "tests/offload/params_under_test.h"

namespace sluice::offload {
namespace {

using aio::FaultPlan;

class ParamFaults {
 public:
  ParamFaults(aio::IoBackend& inner, const std::string& folder)
      : faults_(inner, {}), test_(faults_, {folder}, {.cache_buffers = 3}) {
    test_.fill();
    EXPECT_OK(test_.params().drain());
  }

  // False if the plan's fault did not happen.
  bool run(const FaultPlan& plan, bool persistent) {
    faults_.set_plan(plan);
    const Status ended = steps();
    const bool met = faults_.injected() > 0;
    faults_.set_plan({});
    if (ended.ok()) {
      EXPECT_OK(test_.params().drain());
      test_.expect_all();
      return met;
    }
    ++errors_;
    EXPECT_TRUE(persistent) << ended.error().message();
    expect_names_a_unit(ended.error());
    // Even though the drive works again.
    for (int unit = 0; unit < static_cast<int>(test_.units()); ++unit)
      EXPECT_EQ(test_.read(unit).error().message(), ended.error().message());
    EXPECT_EQ(test_.params().drain().error().message(), ended.error().message());
    return met;
  }
  int errors() const { return errors_; }

 private:
  Status steps() {
    const int units = static_cast<int>(test_.units());
    for (int step = 0; step < 2; ++step) {
      std::vector<int> order = ascending(units);
      for (const int unit : descending(units)) order.push_back(unit);
      for (const int unit : ascending(units)) order.push_back(unit);
      test_.params().expect(order);
      for (const int unit : ascending(units)) SLUICE_RETURN_IF_ERROR(test_.read(unit));
      for (const int unit : descending(units)) SLUICE_RETURN_IF_ERROR(test_.read(unit));
      for (const int unit : ascending(units)) SLUICE_RETURN_IF_ERROR(test_.update(unit));
    }
    return test_.params().drain();
  }
  void expect_names_a_unit(const Error& error) const {
    bool named = false;
    for (const ParamUnit& unit : test_.options().units) {
      const std::string record = "ing record " + unit.name + "[0..";
      named |= error.message().find(record) != std::string::npos;
    }
    EXPECT_TRUE(named) << error.message();
    EXPECT_NE(error.code(), ErrorCode::kCancelled);
  }

  aio::FaultBackend faults_;
  ParamsUnderTest test_;
  int errors_ = 0;
};

int run_matrix(aio::IoBackend& inner, const std::string& folder, std::uint64_t stride) {
  return run_fault_matrix("parameter faults", inner.name(), stride,
                          [&](const FaultPlan& plan, bool persistent) {
                            ParamFaults life(inner, folder);
                            const bool met = life.run(plan, persistent);
                            return FaultLife{.met = met, .failed = life.errors() > 0};
                          });
}

TEST(ParamOffloaderFaults, EveryTransferMayFailOnASimulatedDrive) {
  aio::VirtualLoop loop;
  aio::SimDrive drive(loop, {.half_duplex = false, .latency_jitter = 0.5});
  ASSERT_OK(drive.files().make_directories("/d"));
  EXPECT_GT(run_matrix(drive, "/d", kFaultStrideSimulated), kFaultStrideSimulated == 1 ? 20 : 4);
}

class ParamOffloaderFaultsOn : public aio::EveryBackend {};

TEST_P(ParamOffloaderFaultsOn, EveryTransferMayFailOnRealFiles) {
  aio::TemporaryFolder folder;
  const auto inner = backend(2, 8);
  EXPECT_GT(run_matrix(*inner, folder.path(), kFaultStrideReal), 3);
}

// The drive fails while two threads use it: both get the same error, whatever they wait for.
TEST_P(ParamOffloaderFaultsOn, EveryThreadIsToldTheSameError) {
  aio::TemporaryFolder folder;
  const auto inner = backend(2, 8);
  log::set_sink([](log::Level, std::string_view) {});
  for (std::uint64_t nth = 1; nth <= 40; nth += 3) {
    aio::FaultBackend faults(*inner, {});
    ParamsUnderTest test(faults, {folder.path()}, {.cache_buffers = 3});
    test.fill();
    faults.set_plan(FaultPlan::of({.nth = nth, .persistent = true, .path_contains = "/records"}));
    const auto use = [&](Access access, std::string& told) {
      for (int unit = 0;; unit = (unit + 1) % static_cast<int>(test.units())) {
        const auto lease = test.params().acquire(unit, access);
        if (lease.ok()) continue;
        told = lease.error().message();
        return;
      }
    };
    std::string reader_told;
    std::string updater_told;
    std::thread reader([&] { use(Access::kRead, reader_told); });
    use(Access::kUpdate, updater_told);
    reader.join();
    EXPECT_EQ(reader_told, updater_told);
    EXPECT_THAT(reader_told, testing::HasSubstr("ing record "));
    faults.set_plan({});
  }
  log::set_sink({});
}

SLUICE_TEST_EVERY_BACKEND(ParamOffloaderFaultsOn);

}  // namespace
}  // namespace sluice::offload
