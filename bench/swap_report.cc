#include "bench/swap_report.h"

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <utility>

#include "aio/units.h"
#include "bench/result_header.h"

namespace sluice::bench {
namespace {

using Json = nlohmann::ordered_json;

constexpr double kReached = 0.95;  // share of the reference: the drive limits

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const std::size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

double share_of(const SwapStep& step, const RunResult& reference) {
  return reference.gb_per_s() > 0 ? step.gb_per_s() / reference.gb_per_s() : 0;
}

double part(std::int64_t ns, double seconds) { return static_cast<double>(ns) * 1e-9 / seconds; }

std::string percent(double part_of_one) {
  char text[16];
  std::snprintf(text, sizeof text, "%.0f%%", 100 * part_of_one);
  return text;
}

template <typename... Values>
std::string format(const char* pattern, Values... values) {
  char text[512];
  std::snprintf(text, sizeof text, pattern, values...);
  return text;
}

Json json_of(const SwapStep& step) {
  return Json{{"order", to_string(step.order)},
              {"seconds", step.seconds},
              {"read_gb_per_s", step.read_gb_per_s()},
              {"write_gb_per_s", step.write_gb_per_s()},
              {"read_bytes", step.stats.bytes_read},
              {"write_bytes", step.stats.bytes_written},
              {"records_read", step.stats.records_read},
              {"records_written", step.stats.records_written},
              {"wait_read_s", static_cast<double>(step.stats.wait_read_ns) * 1e-9},
              {"compute_s", static_cast<double>(step.stats.compute_ns) * 1e-9},
              {"wait_write_s", static_cast<double>(step.stats.wait_write_ns) * 1e-9}};
}

}  // namespace

std::string SwapReport::shape_text() const {
  const AioOptions& io = options.io;
  std::string text = backend + "; state " + format_bytes(options.state_bytes()) + " in " +
                     std::to_string(options.records()) + " records of " +
                     format_bytes(options.image_bytes()) + ", " + std::to_string(options.buffers) +
                     " buffers; block " + format_bytes(io.block_bytes) + ", depth " +
                     std::to_string(io.queue_depth) + " over " + std::to_string(options.queues) +
                     (options.queues == 1 ? " queue" : " queues") + "; " +
                     (options.adamw ? "AdamW, " + std::string(offload::to_string(options.isa))
                                    : std::string("no computing")) +
                     ", " + std::to_string(options.threads) + " threads\n";
  return text;
}

std::string SwapReport::table_heading() {
  return "order    run     read GB/s  write GB/s  of aio   seconds  wait read  compute  wait "
         "write\n";
}

std::string SwapReport::step_row(const SwapStep& step, const std::string& label,
                                 const std::optional<RunResult>& reference) {
  const std::string share = reference ? format("%.3f", share_of(step, *reference)) : "-";
  return format("%-8s %-6s %10.3f  %10.3f  %6s  %8.3f  %9s  %7s  %10s\n",
                std::string(to_string(step.order)).c_str(), label.c_str(), step.read_gb_per_s(),
                step.write_gb_per_s(), share.c_str(), step.seconds,
                percent(part(step.stats.wait_read_ns, step.seconds)).c_str(),
                percent(part(step.stats.compute_ns, step.seconds)).c_str(),
                percent(part(step.stats.wait_write_ns, step.seconds)).c_str());
}

std::string SwapReport::reference_row(const RunResult& run, const std::string& label) {
  return format("%-8s %-6s %10.3f  %10.3f  %6s  %8.3f\n", "aio", label.c_str(), run.read_gb_per_s(),
                run.write_gb_per_s(), "", run.seconds);
}

SwapReport::Medians SwapReport::medians(std::size_t order) const {
  const auto of = [&](const auto& value) {
    std::vector<double> values;
    values.reserve(rounds.size());
    for (const SwapRound& round : rounds) values.push_back(value(round.steps[order]));
    return median(std::move(values));
  };
  Medians medians;
  medians.read_gb_per_s = of([](const SwapStep& step) { return step.read_gb_per_s(); });
  medians.write_gb_per_s = of([](const SwapStep& step) { return step.write_gb_per_s(); });
  medians.seconds = of([](const SwapStep& step) { return step.seconds; });
  medians.wait_read =
      of([](const SwapStep& step) { return part(step.stats.wait_read_ns, step.seconds); });
  medians.compute =
      of([](const SwapStep& step) { return part(step.stats.compute_ns, step.seconds); });
  medians.wait_write =
      of([](const SwapStep& step) { return part(step.stats.wait_write_ns, step.seconds); });
  if (options.reference) {
    std::vector<double> shares;
    shares.reserve(rounds.size());
    for (const SwapRound& round : rounds)
      shares.push_back(share_of(round.steps[order], *round.reference));
    medians.share = median(std::move(shares));
  }
  return medians;
}

std::size_t SwapReport::better_order() const {
  std::size_t better = 0;
  for (std::size_t order = 1; order < options.orders.size(); ++order)
    if (medians(order).seconds < medians(better).seconds) better = order;
  return better;
}

double SwapReport::checksum_part(const Medians& step) const {
  return checksums.seconds_a_record * static_cast<double>(options.records()) / step.seconds;
}

std::string SwapReport::bottleneck_text(std::size_t order) const {
  const Medians step = medians(order);
  const std::string name(to_string(options.orders[order]));
  if (step.compute >= std::max(step.wait_read, step.wait_write)) {
    std::string text = "bottleneck (" + name + "): computing, " + percent(step.compute) +
                       " of the step on " + std::to_string(options.threads) + " threads";
    if (step.share && *step.share >= kReached)
      return text + ", but the drive had little to spare: both are well used.\n";
    return text + ": use more --threads on more cores" +
           (options.buffers < 4 ? ", and more memory, to work further ahead.\n" : ".\n");
  }
  const std::string waits = percent(step.wait_read) + " of the step waiting for reads, " +
                            percent(step.wait_write) + " for writes";
  if (options.buffers < 4)
    return "bottleneck (" + name + "): memory, " + std::to_string(options.buffers) + " buffers (" +
           waits + "): give a larger --pinned-budget, or smaller --record-elements.\n";
  if (step.share && *step.share < kReached)
    return "bottleneck (" + name + "): the drive, " + waits + ", at " + percent(*step.share) +
           " of its speed without work: more buffers, smaller --record-elements, a deeper "
           "--queue-depth or the other --order may help.\n";
  return "bottleneck (" + name + "): the drive, " + waits +
         ": only another --path or a faster drive would help.\n";
}

std::string SwapReport::summary() const {
  std::string text;
  for (std::size_t order = 0; order < options.orders.size(); ++order) {
    const Medians step = medians(order);
    text +=
        format("%-8s %-6s %10.3f  %10.3f  %6s  %8.3f  %9s  %7s  %10s\n",
               std::string(to_string(options.orders[order])).c_str(), "median", step.read_gb_per_s,
               step.write_gb_per_s, step.share ? format("%.3f", *step.share).c_str() : "-",
               step.seconds, percent(step.wait_read).c_str(), percent(step.compute).c_str(),
               percent(step.wait_write).c_str());
  }
  const Medians best = medians(better_order());
  const SwapStep& one = rounds.front().steps.front();
  const auto each = [&](std::uint64_t bytes) {
    return static_cast<double>(bytes) / static_cast<double>(options.elements);
  };
  text += format(
      "\nchecksums: %.2f GB/s alone (checked and sealed); they add %.2f ms to a record, "
      "%.1f%% of the step\n",
      checksums.alone_gb_per_s, checksums.seconds_a_record * 1e3, 100 * checksum_part(best));
  text += "pinned: " + format_bytes(options.pinned_bytes()) + " promised" +
          (options.pinned_budget_bytes > 0
               ? " within a budget of " + format_bytes(options.pinned_budget_bytes)
               : std::string()) +
          ", " + format_bytes(pinned.peak_leased_bytes) + " leased at most; the state is " +
          format("%.1f", static_cast<double>(options.state_bytes()) /
                             static_cast<double>(options.pinned_bytes())) +
          " times that\n";
  text += format("NVMe: %.4f bytes read and %.4f written for each parameter and step\n",
                 each(one.stats.bytes_read), each(one.stats.bytes_written));
  return text + bottleneck_text(better_order());
}

std::string SwapReport::json(const aio::MachineInfo& machine, const std::string& command) const {
  Json json = result_header(machine, command);
  json["machine"]["paths"] = Json::array();
  for (const std::string& path : options.io.paths) {
    const aio::MountInfo mount = aio::mount_info(path);
    json["machine"]["paths"].push_back(
        {{"path", path}, {"file_system", mount.file_system}, {"device", mount.device}});
  }
  json["elements"] = options.elements;
  json["record_elements"] = options.record_elements;
  json["records"] = options.records();
  json["state_bytes"] = options.state_bytes();
  json["block_size"] = options.io.block_bytes;
  json["queue_depth"] = options.io.queue_depth;
  json["queues"] = options.queues;
  json["threads"] = options.threads;
  json["backend"] = backend;
  json["compute"] = options.adamw ? "adamw" : "none";
  json["isa"] = offload::to_string(options.isa);
  json["pinned"] = {{"budget_bytes", options.pinned_budget_bytes},
                    {"buffers", options.buffers},
                    {"promised_bytes", options.pinned_bytes()},
                    {"peak_leased_bytes", pinned.peak_leased_bytes},
                    {"mapped_bytes", pinned.total_bytes}};
  json["interrupted"] = interrupted;
  json["rounds"] = Json::array();
  for (const SwapRound& round : rounds) {
    Json one = {{"steps", Json::array()}};
    for (const SwapStep& step : round.steps) {
      one["steps"].push_back(json_of(step));
      if (round.reference) one["steps"].back()["share"] = share_of(step, *round.reference);
    }
    if (round.reference)
      one["aio_mixed"] = {{"read_gb_per_s", round.reference->read_gb_per_s()},
                          {"write_gb_per_s", round.reference->write_gb_per_s()},
                          {"seconds", round.reference->seconds}};
    json["rounds"].push_back(std::move(one));
  }
  json["medians"] = Json::object();
  for (std::size_t order = 0; order < options.orders.size(); ++order) {
    const Medians step = medians(order);
    Json& of_order = json["medians"][std::string(to_string(options.orders[order]))];
    of_order = {{"read_gb_per_s", step.read_gb_per_s},
                {"write_gb_per_s", step.write_gb_per_s},
                {"seconds", step.seconds},
                {"wait_read", step.wait_read},
                {"compute", step.compute},
                {"wait_write", step.wait_write},
                {"checksums", checksum_part(step)}};
    if (step.share) of_order["share_of_aio_mixed"] = *step.share;
  }
  json["checksums"] = {{"alone_gb_per_s", checksums.alone_gb_per_s},
                       {"seconds_a_record", checksums.seconds_a_record},
                       {"work_seconds_a_record", checksums.work_seconds_a_record}};
  return text_of(json);
}

}  // namespace sluice::bench
