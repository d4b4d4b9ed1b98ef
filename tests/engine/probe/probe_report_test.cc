#include "engine/probe/probe_report.h"

#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

namespace sluice::engine {
namespace {

using testing::HasSubstr;
using testing::Not;

constexpr std::int64_t kNow = 1'772'366'400;

ProbeReport example() {
  ProbeReport report{.cpu = "Some CPU, 64 threads", .gpu = "Some GPU"};
  report.speeds.host_copy_bytes_per_s = 201.5e9;
  report.speeds.cpu_adamw_elements_per_s = 6.25e9;
  report.speeds.bus.in_both_bytes_per_s = 41.5e9;
  report.speeds.gpu_matmul_flops_per_s = 701.5e12;
  report.speeds.drives.out_bytes_per_s = 9.75e9;
  report.paths = {{.path = "/nvme0", .rates = {.in_bytes_per_s = 6.5e9}, .when = {.unix_s = kNow}},
                  {.path = "/nvme1", .rates = {}, .when = {}}};
  report.paths[0].weight = 3;
  report.host_when = {.unix_s = kNow - 4 * 86'400, .cached = true};
  report.gpu_when = {.unix_s = kNow - 7200, .cached = true};
  report.units.kinds = {{"embedding", {}}, {"block", {.backward_s = 0.00125}}, {"head", {}}};
  report.units_of = "hidden 64";
  report.units_when = {.unix_s = kNow, .estimated = true};
  report.cache_path = "/home/speeds.json";
  return report;
}

TEST(ProbeReport, ShowsEveryNumberWithItsAge) {
  const std::string text = format_report(example(), kNow);
  EXPECT_THAT(text, testing::ContainsRegex("memory, copy +201.50 GB/s +4 days ago"));
  EXPECT_THAT(text, testing::ContainsRegex("AdamW +6.25 G elements/s"));
  EXPECT_THAT(text, testing::ContainsRegex("read +6.50 GB/s +now"));
  EXPECT_THAT(text, testing::ContainsRegex("host to GPU, while also GPU to host +41.50 GB/s +2 h"));
  EXPECT_THAT(text, testing::ContainsRegex("matrix product +701.5 TFLOP/s"));
  EXPECT_THAT(text, testing::ContainsRegex("block +0.000 ms +0.000 ms +1.250 ms"));
  EXPECT_THAT(text, testing::AllOf(HasSubstr("estimated"), HasSubstr("/home/speeds.json"),
                                   HasSubstr("all paths together, stripes distributed 3:1")));
  EXPECT_THAT(text, Not(HasSubstr("alone on a drive")));
  ProbeReport of_one_drive = example();
  of_one_drive.paths[1].sharers = 2;
  EXPECT_THAT(format_report(of_one_drive, kNow),
              HasSubstr("/nvme1, measured alone on a drive that has 2 of the paths"));
}

TEST(ProbeReport, SaysWhatWasMeasuredWhileTheMachineWasBusy) {
  ProbeReport report = example();
  EXPECT_EQ(busy_warning(report), "");
  report.host_when = {.unix_s = kNow, .disturbed = true};
  report.disturbances = {"memory and cores: other work used 90% of the processor time"};
  EXPECT_THAT(format_report(report, kNow),
              testing::ContainsRegex("memory, copy +201.50 GB/s +now, while busy"));
  EXPECT_THAT(busy_warning(report),
              testing::AllOf(HasSubstr("this machine was busy"), HasSubstr(report.disturbances[0]),
                             HasSubstr("is not saved")));
  report.disturbances.emplace_back("nvme: other work used 80% of the processor time");
  EXPECT_THAT(busy_warning(report), HasSubstr("90% of the processor time; nvme: 80%)"));
  report.disturbances.pop_back();
  const auto json = nlohmann::json::parse(to_json(report));
  EXPECT_EQ(json["host"]["disturbed"], true);
  EXPECT_EQ(json["disturbed_by"][0], report.disturbances[0]);
}

TEST(ProbeReport, SaysThatLittleHostMemoryCanBePinned) {
  ProbeReport report = example();
  EXPECT_EQ(pinning_text(report), "");
  EXPECT_THAT(format_report(report, kNow), Not(HasSubstr("pageable")));
  report.pin = {.tried_bytes = 2048.0 * 1048576, .pinned_bytes = 2048.0 * 1048576};
  EXPECT_EQ(pinning_text(report), "") << "all that was tried could be pinned";
  report.pin.pinned_bytes = 896.0 * 1048576;
  report.speeds.bus = {.in_bytes_per_s = 6.25e9, .out_bytes_per_s = 5.5e9};
  EXPECT_THAT(pinning_text(report),
              testing::AllOf(HasSubstr("only 896M of host memory can be pinned"),
                             HasSubstr("6.25 GB/s to the GPU and 5.50 GB/s from it")));
  const std::string text = format_report(report, kNow);
  EXPECT_THAT(text, testing::ContainsRegex("host to GPU, pageable +6.25 GB/s +2 h"));
  EXPECT_THAT(text, testing::ContainsRegex("can be pinned +896M +2 h"));
  const auto json = nlohmann::json::parse(to_json(report));
  EXPECT_EQ(json["gpu_speeds"]["pinned_bytes"], 896.0 * 1048576);
  EXPECT_EQ(json["gpu_speeds"]["pin_tried_bytes"], 2048.0 * 1048576);
}

// Like a trial of sluice tune that uses the measurement of an earlier one.
TEST(ProbeReport, SaysWhatWasMeasuredEarlierWhileTheMachineWasBusy) {
  ProbeReport report = example();
  report.of_a_series = true;
  report.host_when = {.unix_s = kNow - 12 * 60, .cached = true, .disturbed = true};
  report.disturbed_before = {"memory and cores", "the GPU"};
  EXPECT_THAT(format_report(report, kNow),
              testing::ContainsRegex("memory, copy +201.50 GB/s +12 min ago, while busy"));
  EXPECT_THAT(
      busy_warning(report),
      testing::AllOf(HasSubstr("Earlier in this series"), HasSubstr("(memory and cores, the GPU)"),
                     Not(HasSubstr("not saved")), Not(HasSubstr("again"))));
  report.disturbances = {"nvme: other work used 90% of the processor time"};
  EXPECT_THAT(busy_warning(report),
              testing::AllOf(HasSubstr("not saved beyond this series"),
                             Not(HasSubstr("measures it again")), HasSubstr(". Earlier")));
}

TEST(ProbeReport, LeavesOutWhatIsNotThere) {
  ProbeReport report = example();
  report.gpu.clear();
  report.paths.resize(1);
  report.cache_path.clear();
  EXPECT_THAT(
      format_report(report, kNow),
      testing::AllOf(Not(HasSubstr("GPU")), Not(HasSubstr("together")), Not(HasSubstr("kept"))));
  report.paths.clear();
  const auto json = nlohmann::json::parse(to_json(report));
  EXPECT_FALSE(json.contains("drives"));
  EXPECT_FALSE(json.contains("gpu_speeds"));
}

TEST(ProbeReport, IsOneJsonObject) {
  const auto json = nlohmann::json::parse(to_json(example()));
  EXPECT_EQ(json["host"]["copy_bytes_per_s"], 201.5e9);
  EXPECT_EQ(json["host"]["cached"], true);
  EXPECT_EQ(json["host"]["measured_at"], "2026-02-25T12:00:00Z");
  EXPECT_EQ(json["paths"][0]["path"], "/nvme0");
  EXPECT_EQ(json["paths"][0]["in_bytes_per_s"], 6.5e9);
  EXPECT_EQ(json["paths"][0]["weight"], 3);
  EXPECT_EQ(json["paths"][0]["paths_on_its_drive"], 1);
  EXPECT_EQ(json["drives"]["out_bytes_per_s"], 9.75e9);
  EXPECT_EQ(json["gpu_speeds"]["bus_in_both_bytes_per_s"], 41.5e9);
  EXPECT_EQ(json["units"]["block_backward_s"], 0.00125);
  EXPECT_EQ(json["units"]["estimated"], true);
}

}  // namespace
}  // namespace sluice::engine
