#include "engine/probe/probe_report.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "aio/check.h"
#include "aio/text.h"
#include "aio/units.h"
#include "engine/observe/text_table.h"
#include "engine/probe/speed_values.h"
#include "swap/stripe_weights.h"

namespace sluice::engine {
namespace {

using Json = nlohmann::ordered_json;
using offload::DuplexRates;

std::string gb(double bytes_per_s) { return decimals(1e-9 * bytes_per_s, 2) + " GB/s"; }

std::string elements(double per_s) { return decimals(1e-9 * per_s, 2) + " G elements/s"; }

std::string milliseconds(double seconds) { return decimals(1e3 * seconds, 3) + " ms"; }

std::string age(const ProbedWhen& when, std::int64_t now_unix_s) {
  constexpr std::int64_t kMinuteSeconds = 60;
  constexpr std::int64_t kHourSeconds = 3600;
  constexpr std::int64_t kDayHours = 24;
  if (when.estimated) return "estimated";
  if (!when.cached) return when.disturbed ? "now, while busy" : "now";
  const std::int64_t seconds = now_unix_s - when.unix_s;
  if (when.disturbed) return std::to_string(seconds / kMinuteSeconds) + " min ago, while busy";
  const std::int64_t hours = seconds / kHourSeconds;
  if (hours < 1) return "less than an hour ago";
  if (hours < 2 * kDayHours) return std::to_string(hours) + " h ago";
  return std::to_string(hours / kDayHours) + " days ago";
}

struct DirectionNames {
  std::string in;
  std::string out;
};

void add_duplex(std::vector<TextRow>& rows, const DuplexRates& rates, const DirectionNames& names,
                const std::string& when) {
  rows.push_back({"  " + names.in, gb(rates.in_bytes_per_s), when});
  rows.push_back({"  " + names.out, gb(rates.out_bytes_per_s), when});
  rows.push_back(
      {"  " + names.in + ", while also " + names.out, gb(rates.in_both_bytes_per_s), when});
  rows.push_back(
      {"  " + names.out + ", while also " + names.in, gb(rates.out_both_bytes_per_s), when});
}

void add_drives(std::vector<TextRow>& rows, const ProbeReport& report, std::int64_t now_unix_s) {
  const DirectionNames names{.in = "read", .out = "write"};
  for (const ProbedPath& path : report.paths) {
    rows.push_back({"NVMe, " + path.path +
                    (path.sharers > 1 ? ", measured alone on a drive that has " +
                                            std::to_string(path.sharers) + " of the paths"
                                      : "")});
    add_duplex(rows, path.rates, names, age(path.when, now_unix_s));
  }
  if (report.paths.size() < 2) return;
  std::vector<int> weights;
  weights.reserve(report.paths.size());
  for (const ProbedPath& path : report.paths) weights.push_back(path.weight);
  rows.push_back({"NVMe, all paths together, stripes distributed " + swap::to_text(weights)});
  add_duplex(rows, report.speeds.drives, names, age(report.drives_when, now_unix_s));
}

std::string pinnable(const ProbeReport& report) {
  return format_bytes(static_cast<std::uint64_t>(report.pin.pinned_bytes));
}

void add_gpu(std::vector<TextRow>& rows, const ProbeReport& report, std::int64_t now_unix_s) {
  if (report.gpu.empty()) return;
  const std::string when = age(report.gpu_when, now_unix_s);
  rows.push_back({report.gpu});
  const std::string kind = report.pin.is_limited() ? ", pageable" : "";
  add_duplex(rows, report.speeds.bus, {.in = "host to GPU" + kind, .out = "GPU to host" + kind},
             when);
  if (report.pin.is_limited())
    rows.push_back({"  host memory that can be pinned", pinnable(report), when});
  rows.push_back({"  memory, copy", gb(report.speeds.gpu_copy_bytes_per_s), when});
  rows.push_back({"  AdamW", elements(report.speeds.gpu_adamw_elements_per_s), when});
  rows.push_back({"  matrix product",
                  decimals(1e-12 * report.speeds.gpu_matmul_flops_per_s, 1) + " TFLOP/s", when});
}

std::string unit_table(const ProbeReport& report) {
  std::vector<TextRow> rows = {{"  unit", "forward", "recompute", "backward"}};
  for (const auto& [kind, seconds] : report.units.kinds)
    rows.push_back({"  " + kind, milliseconds(seconds.forward_s), milliseconds(seconds.recompute_s),
                    milliseconds(seconds.backward_s)});
  return aligned(rows);
}

Json when_json(const ProbedWhen& when) {
  if (when.estimated) return {{"estimated", true}};
  Json json = {{"measured_at", utc_text(when.unix_s)}, {"cached", when.cached}};
  if (when.disturbed) json["disturbed"] = true;
  return json;
}

Json with_values(Json json, const SpeedValues& values) {
  for (const auto& [name, value] : values) json[name] = value;
  return json;
}

}  // namespace

std::vector<swap::PathSpeed> path_speeds(const ProbeReport& report) {
  std::vector<swap::PathSpeed> speeds;
  speeds.reserve(report.paths.size());
  for (const ProbedPath& path : report.paths)
    speeds.push_back({.rates = path.rates, .sharers = path.sharers});
  return speeds;
}

namespace {

// "memory and cores: other work had 90% of the processor time; the model's units: 85%"
std::string causes_text(const std::vector<std::string>& causes) {
  std::string text;
  for (std::string cause : causes) {
    for (const std::string_view again : {"other work used ", " of the processor time"}) {
      const auto at = cause.find(again);
      if (!text.empty() && at != std::string::npos) cause.erase(at, again.size());
    }
    text += (text.empty() ? "" : "; ") + cause;
  }
  return text;
}

}  // namespace

std::string busy_warning(const ProbeReport& report) {
  std::string text;
  if (!report.disturbances.empty()) {
    text = "this machine was busy while it was measured (" + causes_text(report.disturbances) +
           "): the plan may be far off, and the measurement is not saved" +
           (report.of_a_series ? " beyond this series of runs" : "");
  }
  if (!report.disturbed_before.empty()) {
    text += std::string(text.empty() ? "" : ". ") +
            "Earlier in this series of runs this machine was busy while it was measured (" +
            joined(report.disturbed_before, ", ") + "): a plan based on that may be far off";
  }
  return text;
}

std::string pinning_text(const ProbeReport& report) {
  if (!report.pin.is_limited()) return "";
  return "only " + pinnable(report) +
         " of host memory can be pinned for the GPU, so the plan assumes copies of pageable "
         "memory: " +
         gb(report.speeds.bus.in_bytes_per_s) + " to the GPU and " +
         gb(report.speeds.bus.out_bytes_per_s) +
         " from it (see \"Pinned memory\" in docs/troubleshooting.md)";
}

std::string format_report(const ProbeReport& report, std::int64_t now_unix_s) {
  const std::string host_when = age(report.host_when, now_unix_s);
  std::vector<TextRow> rows = {{"measured", "", "when"}, {report.cpu}};
  rows.push_back({"  memory, copy", gb(report.speeds.host_copy_bytes_per_s), host_when});
  rows.push_back({"  AdamW", elements(report.speeds.cpu_adamw_elements_per_s), host_when});
  add_drives(rows, report, now_unix_s);
  add_gpu(rows, report, now_unix_s);
  std::string text = aligned(rows);
  text += "one micro-batch through a unit: " + report.units_of + " (" +
          age(report.units_when, now_unix_s) + ")\n" + unit_table(report);
  if (!report.cache_path.empty()) text += "kept in " + report.cache_path + "\n";
  return text;
}

std::string to_json(const ProbeReport& report) {
  const offload::MachineSpeeds& speeds = report.speeds;
  Json json = {{"cpu", report.cpu}, {"gpu", report.gpu}, {"cache", report.cache_path}};
  json["host"] = with_values(when_json(report.host_when),
                             {{"copy_bytes_per_s", speeds.host_copy_bytes_per_s},
                              {"adamw_elements_per_s", speeds.cpu_adamw_elements_per_s}});
  json["paths"] = Json::array();
  for (const ProbedPath& path : report.paths) {
    Json one = {{"path", path.path}};
    one.update(with_values(when_json(path.when), values_of(path.rates)));
    one["paths_on_its_drive"] = path.sharers;
    one["weight"] = path.weight;
    json["paths"].push_back(one);
  }
  if (!report.paths.empty())
    json["drives"] = with_values(when_json(report.drives_when), values_of(speeds.drives));
  if (!report.gpu.empty()) {
    json["gpu_speeds"] =
        with_values(when_json(report.gpu_when),
                    values_of(GpuSpeeds{.bus = speeds.bus,
                                        .pin = report.pin,
                                        .copy_bytes_per_s = speeds.gpu_copy_bytes_per_s,
                                        .adamw_elements_per_s = speeds.gpu_adamw_elements_per_s,
                                        .matmul_flops_per_s = speeds.gpu_matmul_flops_per_s}));
  }
  if (speeds.link.gather_bytes_per_s > 0)
    json["link"] = with_values(when_json(report.link_when), values_of(speeds.link));
  if (!report.disturbances.empty()) json["disturbed_by"] = report.disturbances;
  for (const RateShare& it : report.shares)
    json["shares_of_data_sheet"].push_back(
        {{"what", it.what}, {"share", it.share}, {"from", it.from}});
  if (!report.assumed.empty()) json["assumed"] = report.assumed;
  if (!report.from_here.empty()) json["from_this_machine"] = report.from_here;
  json["units"] = with_values(when_json(report.units_when), values_of(report.units));
  json["units"]["of"] = report.units_of;
  return json.dump(2, ' ', false, Json::error_handler_t::replace);
}

void count_sharers(const std::vector<std::string>& drives, std::vector<ProbedPath>& paths) {
  SLUICE_CHECK(drives.size() == paths.size(), "each path lies on a drive");
  for (std::size_t i = 0; i < paths.size(); ++i) {
    paths[i].sharers = drives[i].empty()
                           ? 1
                           : static_cast<int>(std::count(drives.begin(), drives.end(), drives[i]));
  }
}

void weigh_paths(const std::optional<std::vector<int>>& named, ProbeReport& report) {
  std::vector<int> weights = named ? *named : swap::weights_by_speed(path_speeds(report));
  if (weights.empty()) weights.assign(report.paths.size(), 1);
  SLUICE_CHECK(weights.size() == report.paths.size(), "each path has a weight");
  for (std::size_t i = 0; i < weights.size(); ++i) report.paths[i].weight = weights[i];
}

}  // namespace sluice::engine
