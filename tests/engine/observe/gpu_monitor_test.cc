#include "engine/observe/gpu_monitor.h"

#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <functional>
#include <vector>

#include "tests/aio/backends_under_test.h"

namespace sluice::engine {
namespace {

using std::chrono::milliseconds;
using testing::HasSubstr;

constexpr int kNotSupported = 3;
constexpr int kGpuIsLost = 15;

class GpuMonitors : public testing::Test {
 protected:
  GpuMonitors() : library_(::dlopen(SLUICE_FAKE_NVML, RTLD_NOW)) { call<void()>("reset")(); }
  ~GpuMonitors() override { call<void()>("reset")(); }

  template <typename Function>
  Function* call(const std::string& name) {
    return reinterpret_cast<Function*>(::dlsym(library_, ("fake_nvml_" + name).c_str()));
  }
  static GpuMonitor::Options options(std::string library = SLUICE_FAKE_NVML) {
    return {.bus_id = "0000:18:00.0", .library = std::move(library), .every = milliseconds(1)};
  }
  static void wait_for(const std::function<bool()>& done) {
    while (!done()) std::this_thread::sleep_for(milliseconds(1));
  }
  // Makes sure that later samples see what was set before.
  void wait_for_samples() {
    const int before = call<int()>("calls")();
    wait_for([&] { return call<int()>("calls")() >= before + 3; });
  }
  void says(unsigned int percent, unsigned long long reasons = 0) {
    call<void(int, unsigned int)>("utilization")(0, percent);
    call<void(unsigned long long)>("reasons")(reasons);
  }
  static std::string problem_of(const GpuMonitor::Options& options) {
    const GpuMonitor monitor(options);
    wait_for([&] { return !monitor.problem().empty(); });
    EXPECT_EQ(monitor.use(), GpuUse());
    return monitor.problem();
  }

  void* const library_;
};

TEST_F(GpuMonitors, HaveTheMeansSinceTheyWereRestarted) {
  says(80);
  GpuMonitor monitor(options());
  wait_for([&] { return monitor.use() != GpuUse(); });
  EXPECT_EQ(monitor.use(),
            (GpuUse{.utilization_percent = 80, .power_watts = 312.5, .throttled_percent = 0}));
  says(20, 0x4);  // the power cap
  wait_for_samples();
  EXPECT_LT(monitor.use().utilization_percent, 80);
  EXPECT_GT(monitor.use().utilization_percent, 20);
  monitor.restart();
  wait_for_samples();
  EXPECT_EQ(monitor.use().utilization_percent, 20);
  EXPECT_EQ(monitor.use().throttled_percent, 0);
  says(20, 0x4 | 0x20);  // heat
  wait_for_samples();
  monitor.restart();
  wait_for_samples();
  EXPECT_EQ(monitor.use().throttled_percent, 100);
  EXPECT_EQ(monitor.problem(), "");
}

TEST_F(GpuMonitors, RepeatTheLastSampleWhereThereWasTimeForNone) {
  says(37);
  GpuMonitor monitor(
      {.bus_id = "0000:18:00.0", .library = SLUICE_FAKE_NVML, .every = std::chrono::hours(1)});
  wait_for([&] { return monitor.use() != GpuUse(); });
  monitor.restart();
  EXPECT_EQ(monitor.use().utilization_percent, 37);
  EXPECT_EQ(call<int()>("calls")(), 1);
}

TEST_F(GpuMonitors, LeaveOutWhatTheDriverDoesNotSay) {
  call<void(int, unsigned int)>("utilization")(kNotSupported, 50);
  {
    GpuMonitor monitor(options());
    wait_for([&] { return monitor.use() != GpuUse(); });
    EXPECT_EQ(monitor.use().utilization_percent, std::nullopt);
    EXPECT_EQ(monitor.use().power_watts, 312.5);
    EXPECT_EQ(call<int()>("calls")(), 1) << "what is not supported is not asked again";
  }
  says(101);
  call<void(int)>("other_code")(kNotSupported);
  GpuMonitor monitor(options());
  wait_for_samples();
  EXPECT_EQ(monitor.use(), GpuUse());
  says(60);
  wait_for([&] { return monitor.use() != GpuUse(); });
  EXPECT_EQ(monitor.use(), GpuUse{.utilization_percent = 60});
}

TEST_F(GpuMonitors, GoOnAfterAnErrorThatPasses) {
  call<void(int, unsigned int)>("utilization")(999, 50);
  GpuMonitor monitor(options());
  wait_for_samples();
  EXPECT_EQ(monitor.use().utilization_percent, std::nullopt);
  says(50);
  wait_for([&] { return monitor.use().utilization_percent.has_value(); });
  EXPECT_EQ(monitor.use().utilization_percent, 50);
  call<void(int, unsigned int)>("utilization")(kGpuIsLost, 50);
  wait_for([&] { return !monitor.problem().empty(); });
  EXPECT_EQ(monitor.problem(), "the driver has lost the GPU");
  wait_for([&] { return call<int()>("users")() == 0; });
}

TEST_F(GpuMonitors, SayWhyNothingIsKnown) {
  EXPECT_THAT(problem_of(options("libsluice-has-no-such-library.so.1")),
              HasSubstr("libsluice-has-no-such-library.so.1"));
  EXPECT_THAT(problem_of(options(SLUICE_OLD_NVML)), HasSubstr("nvmlDeviceGetUtilizationRates"));
  const aio::TemporaryFolder folder;
  const std::string text = folder.path() + "/libnvidia-ml.so.1";
  std::ofstream(text) << "not a library\n";
  EXPECT_THAT(problem_of(options(text)), HasSubstr(text));
  EXPECT_THAT(problem_of({.bus_id = "", .library = SLUICE_FAKE_NVML}),
              HasSubstr("nvmlDeviceGetHandleByPciBusId_v2: Some Error"));
  EXPECT_EQ(call<int()>("users")(), 0);
  call<void(int)>("init_code")(9);
  EXPECT_EQ(problem_of(options()), "nvmlInit_v2: Driver Not Loaded");
}

TEST_F(GpuMonitors, NeverWaitForADriverThatHangs) {
  says(70);
  const auto begin = std::chrono::steady_clock::now();
  {
    GpuMonitor monitor(options());
    wait_for([&] { return monitor.use() != GpuUse(); });
    call<void(bool)>("hangs")(true);
    monitor.restart();
    static_cast<void>(monitor.use());
  }
  {
    call<void(bool)>("hangs")(true);
    GpuMonitor monitor(options());  // in nvmlInit
    EXPECT_EQ(monitor.use(), GpuUse());
    EXPECT_EQ(monitor.problem(), "");
  }
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::minutes(1));
  call<void(bool)>("hangs")(false);
  wait_for([&] { return call<int()>("users")() == 0; });
}

TEST(GpuUses, OfSeveralRanksAreOfThoseThatKnow) {
  EXPECT_EQ(use_of_all({}), GpuUse());
  const std::vector<GpuUse> none(2);
  EXPECT_EQ(use_of_all(none), GpuUse());
  const std::vector<GpuUse> uses = {
      {.utilization_percent = 90, .power_watts = 400, .throttled_percent = 0},
      {.utilization_percent = 50, .power_watts = 300, .throttled_percent = 25}};
  EXPECT_EQ(use_of_all(uses),
            (GpuUse{.utilization_percent = 70, .power_watts = 700, .throttled_percent = 25}));
  const std::vector<GpuUse> some = {uses[0], GpuUse{}};
  EXPECT_EQ(use_of_all(some), (GpuUse{.utilization_percent = 90, .throttled_percent = 0}));
}

}  // namespace
}  // namespace sluice::engine
