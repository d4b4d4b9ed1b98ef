#include "bench/checkpoint_report.h"

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "aio/units.h"
#include "bench/result_header.h"

namespace sluice::bench {
namespace {

using Json = nlohmann::ordered_json;

template <typename... Values>
std::string format(const char* pattern, Values... values) {
  char text[512];
  std::snprintf(text, sizeof text, pattern, values...);
  return text;
}

double share(double part, double whole) { return whole > 0 ? part / whole : 0; }

struct Medians {
  double save, write, save_share, load, read, load_share;
};

template <typename Value>
double median(const std::vector<CheckpointRound>& rounds, const Value& value) {
  std::vector<double> values;
  values.reserve(rounds.size());
  for (const CheckpointRound& round : rounds) values.push_back(value(round));
  std::sort(values.begin(), values.end());
  const std::size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

Medians medians_of(const std::vector<CheckpointRound>& rounds) {
  using Round = const CheckpointRound&;
  return {.save = median(rounds, [](Round r) { return r.save.gb_per_s(); }),
          .write = median(rounds, [](Round r) { return r.write.gb_per_s(); }),
          .save_share =
              median(rounds, [](Round r) { return share(r.save.gb_per_s(), r.write.gb_per_s()); }),
          .load = median(rounds, [](Round r) { return r.load.gb_per_s(); }),
          .read = median(rounds, [](Round r) { return r.read.gb_per_s(); }),
          .load_share =
              median(rounds, [](Round r) { return share(r.load.gb_per_s(), r.read.gb_per_s()); })};
}

Json json_of(const CheckpointPass& pass) {
  return Json{{"seconds", pass.seconds},
              {"begin_seconds", pass.begin_seconds},
              {"end_seconds", pass.end_seconds},
              {"bytes", pass.bytes},
              {"gb_per_s", pass.gb_per_s()}};
}

}  // namespace

std::string CheckpointReport::shape_text() const {
  return backend + "; " + format_bytes(options.parameters) + " parameters, " +
         format_bytes(options.state_bytes()) + " of state in shards of " +
         format_bytes(options.shard_bytes) + "; staging " + format_bytes(staging_bytes) +
         "; blocks of " + format_bytes(options.io.block_bytes) + ", " +
         std::to_string(options.io.queue_depth) + " in flight";
}

std::string CheckpointReport::table_heading() {
  return " run   save GB/s   aio write   share   load GB/s    aio read   share\n";
}

std::string CheckpointReport::row(const CheckpointRound& round, std::size_t number) {
  const double save = round.save.gb_per_s();
  const double load = round.load.gb_per_s();
  return format("%4zu  %10.2f  %10.2f   %4.0f%%  %10.2f  %10.2f   %4.0f%%\n", number, save,
                round.write.gb_per_s(), 100 * share(save, round.write.gb_per_s()), load,
                round.read.gb_per_s(), 100 * share(load, round.read.gb_per_s()));
}

std::string CheckpointReport::summary() const {
  const Medians m = medians_of(rounds);
  std::string text = format(
      "median of %zu: save %.2f GB/s, %.0f%% of aio's writes; load %.2f GB/s, %.0f%% of aio's "
      "reads\n",
      rounds.size(), m.save, 100 * m.save_share, m.load, 100 * m.load_share);
  text += "host memory: " + format_bytes(staging_bytes) + " of staging in a save or a load";
  if (peak_resident_bytes > 0)
    text += "; the process had " + format_bytes(peak_resident_bytes) + " at most, aio's included";
  return text + "\n";
}

std::string CheckpointReport::json(const aio::MachineInfo& machine,
                                   const std::string& command) const {
  Json json = result_header(machine, command);
  const aio::MountInfo mount = aio::mount_info(options.path());
  json["path"] = {
      {"path", options.path()}, {"file_system", mount.file_system}, {"device", mount.device}};
  json["backend"] = backend;
  json["parameters"] = options.parameters;
  json["state_bytes"] = options.state_bytes();
  json["shard_bytes"] = options.shard_bytes;
  json["staging_bytes"] = staging_bytes;
  json["peak_resident_bytes"] = peak_resident_bytes;
  json["interrupted"] = interrupted;
  Json list = Json::array();
  for (const CheckpointRound& round : rounds)
    list.push_back({{"save", json_of(round.save)},
                    {"load", json_of(round.load)},
                    {"aio_write_gb_per_s", round.write.gb_per_s()},
                    {"aio_read_gb_per_s", round.read.gb_per_s()}});
  json["rounds"] = std::move(list);
  const Medians m = medians_of(rounds);
  json["median"] = {{"save_gb_per_s", m.save},     {"aio_write_gb_per_s", m.write},
                    {"save_share", m.save_share},  {"load_gb_per_s", m.load},
                    {"aio_read_gb_per_s", m.read}, {"load_share", m.load_share}};
  return text_of(json);
}

}  // namespace sluice::bench
