#include "bench/aio_report.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

#include "aio/units.h"
#include "bench/result_header.h"

namespace sluice::bench {
namespace {

using Json = nlohmann::ordered_json;

std::string microseconds(std::int64_t ns) {
  const double us = static_cast<double>(ns) * 1e-3;
  char text[32];
  std::snprintf(text, sizeof text, us < 100 ? "%.1f" : "%.0f", us);
  return text;
}

Json numbers_of(const RunResult& run) {
  return Json{{"mode", to_string(run.mode)},
              {"read_gb_per_s", run.read_gb_per_s()},
              {"write_gb_per_s", run.write_gb_per_s()},
              {"iops", run.iops()},
              {"p50_us", static_cast<double>(run.p50_ns) * 1e-3},
              {"p99_us", static_cast<double>(run.p99_ns) * 1e-3},
              {"p999_us", static_cast<double>(run.p999_ns) * 1e-3},
              {"cpu_s_per_gb", run.cpu_s_per_gb()}};
}

Json json_of(const RunResult& run) {
  Json json = numbers_of(run);
  json["block_size"] = run.shape.block_bytes;
  json["queue_depth"] = run.shape.queue_depth;
  json["threads"] = run.shape.threads;
  json["backend"] = run.backend;
  json["seconds"] = run.seconds;
  json["direct"] = run.direct;
  json["registered_buffers"] = run.registered;
  json["read_bytes"] = run.read_bytes;
  json["write_bytes"] = run.written_bytes;
  json["cpu_s"] = run.cpu_seconds;
  json["retries"] = run.retries;
  json["verified_bytes"] = run.verified_bytes;
  json["interrupted"] = run.interrupted;
  return json;
}

Json header_json(const ReportHeader& header, const AioOptions& options) {
  Json paths = Json::array();
  for (const ReportHeader::Place& place : header.places)
    paths.push_back({{"path", place.path},
                     {"file_system", place.mount.file_system},
                     {"device", place.mount.device}});
  Json json = result_header(header.machine, header.command);
  json["machine"]["paths"] = std::move(paths);
  json["size_bytes"] = options.size_bytes;
  return json;
}

Json section_of(const AioSession::Options& shape) {
  return Json{{"block_size", shape.block_bytes},
              {"queue_depth", shape.queue_depth},
              {"intra_op_parallelism", shape.threads},
              {"single_submit", shape.single_submit},
              {"overlap_events", true}};
}

}  // namespace

std::optional<double> SweepPoint::mean() const {
  double sum = 0;
  bool any = false;
  for (const std::optional<double>& one : gb_per_s) {
    sum += one.value_or(0);
    any |= one.has_value();
  }
  return any ? std::optional(sum / static_cast<double>(gb_per_s.size())) : std::nullopt;
}

ReportHeader make_header(const AioOptions& options, std::string command) {
  ReportHeader header{.machine = aio::machine_info(), .places = {}, .command = std::move(command)};
  for (const std::string& path : options.paths)
    header.places.push_back({path, aio::mount_info(path)});
  if (!options.file.empty()) header.places.push_back({options.file, aio::mount_info(options.file)});
  return header;
}

const RunResult& median_run(const std::vector<RunResult>& runs) {
  std::vector<const RunResult*> order;
  for (const RunResult& run : runs)
    if (!run.interrupted) order.push_back(&run);
  if (order.empty()) return runs.front();
  std::stable_sort(order.begin(), order.end(), [](const RunResult* a, const RunResult* b) {
    return a->gb_per_s() < b->gb_per_s();
  });
  return *order[(order.size() - 1) / 2];
}

std::string machine_text(const ReportHeader& header) {
  std::string text = machine_line("aio_bench", header.machine);
  for (const ReportHeader::Place& place : header.places)
    text += place.path + ": " + place.mount.file_system + " on " + place.mount.device + "\n";
  return text;
}

std::string shape_text(const AioOptions& options, const AioSession& session) {
  const AioSession::Options& shape = session.options();
  std::string text = session.backend_name();
  text += session.direct() ? ", direct" : ", buffered (through the page cache)";
  if (session.backend_name() == "uring")
    text += session.registered() ? ", registered buffers" : ", unregistered buffers";
  text += "; file " + format_bytes(options.size_bytes) + ", block " +
          format_bytes(shape.block_bytes) + ", depth " + std::to_string(shape.queue_depth) +
          ", threads " + std::to_string(shape.threads);
  if (shape.single_submit) text += ", single submit";
  if (options.paths.size() > 1) {
    text += "; striped by " + format_bytes(options.stripe_bytes) + ", weights ";
    for (std::size_t i = 0; i < options.weights.size(); ++i)
      text += (i == 0 ? "" : ":") + std::to_string(options.weights[i]);
  }
  return text + "\n";
}

std::string table_heading() {
  return "mode      run     read GB/s  write GB/s      IOPS    p50 us    p99 us  p99.9 us  CPU "
         "s/GB\n";
}

std::string table_row(const RunResult& run, const std::string& label) {
  const auto rate = [](double gb_per_s, bool used) {
    char text[32];
    std::snprintf(text, sizeof text, used ? "%.3f" : "-", gb_per_s);
    return std::string(text);
  };
  char row[256];
  std::snprintf(row, sizeof row, "%-9s %-6s %10s  %10s  %8.0f  %8s  %8s  %8s  %8.4f",
                std::string(to_string(run.mode)).c_str(), label.c_str(),
                rate(run.read_gb_per_s(), run.read_bytes > 0).c_str(),
                rate(run.write_gb_per_s(), run.written_bytes > 0).c_str(), run.iops(),
                microseconds(run.p50_ns).c_str(), microseconds(run.p99_ns).c_str(),
                microseconds(run.p999_ns).c_str(), run.cpu_s_per_gb());
  std::string text = row;
  if (run.verified_bytes > 0) text += "  verified " + format_bytes(run.verified_bytes);
  if (run.retries > 0) text += "  " + std::to_string(run.retries) + " retries";
  if (run.interrupted) {
    std::snprintf(row, sizeof row, "  interrupted after %.1f s", run.seconds);
    text += row;
  }
  return text + "\n";
}

std::string runs_json(const ReportHeader& header, const AioOptions& options,
                      const std::vector<ModeRuns>& results, bool interrupted) {
  Json json = header_json(header, options);
  json["interrupted"] = interrupted;
  json["runs"] = Json::array();
  for (const ModeRuns& of_mode : results)
    for (const RunResult& run : of_mode.runs) json["runs"].push_back(json_of(run));
  if (options.modes.size() == 1) {
    if (!results.empty() && !results[0].runs.empty())
      json["median"] = numbers_of(median_run(results[0].runs));
  } else {
    json["medians"] = Json::object();
    for (const ModeRuns& of_mode : results)
      if (!of_mode.runs.empty())
        json["medians"][std::string(to_string(of_mode.mode))] =
            numbers_of(median_run(of_mode.runs));
  }
  return text_of(json);
}

std::string sweep_json(const ReportHeader& header, const AioOptions& options,
                       const std::vector<SweepPoint>& points, const SweepPoint& best) {
  Json json = header_json(header, options);
  Json list = Json::array();
  const auto or_null = [](const std::optional<double>& speed) {
    return speed ? Json(*speed) : Json(nullptr);
  };
  for (const SweepPoint& point : points) {
    Json tries = Json::array();
    for (const std::optional<double>& one : point.gb_per_s) tries.push_back(or_null(one));
    list.push_back({{"block_size", point.shape.block_bytes},
                    {"queue_depth", point.shape.queue_depth},
                    {"threads", point.shape.threads},
                    {"gb_per_s", or_null(point.mean())},
                    {"tries_gb_per_s", std::move(tries)}});
  }
  json["sweep"] = {{"mode", to_string(options.modes[0])}, {"points", std::move(list)}};
  json["aio"] = section_of(best.shape);
  return text_of(json);
}

std::string aio_section_json(const AioSession::Options& shape) {
  return text_of(Json{{"aio", section_of(shape)}});
}

}  // namespace sluice::bench
