// checkpoint_bench: measures saving and loading of checkpoints against the drive alone. See --help.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "aio/machine_info.h"
#include "aio/real_file_system.h"
#include "aio/units.h"
#include "bench/aio_session.h"
#include "bench/aio_workload.h"
#include "bench/bench_program.h"
#include "bench/checkpoint_options.h"
#include "bench/checkpoint_workload.h"
#include "bench/result_header.h"
#include "bench/scratch_file.h"
#include "engine/observe/process_memory.h"
#include "tools/support/interrupt.h"

namespace sluice::bench {
namespace {

// The results of checkpoint_bench: rows, a summary and JSON.
struct CheckpointRound {
  CheckpointPass save;
  CheckpointPass load;
  RunResult write;  // measured by aio
  RunResult read;
};

struct CheckpointReport {
  CheckpointBenchOptions options;
  std::string backend;
  std::uint64_t staging_bytes = 0;        // for a save, and for a load
  std::uint64_t peak_resident_bytes = 0;  // this process; 0: unknown
  bool interrupted = false;
  std::vector<CheckpointRound> rounds;

  std::string shape_text() const;
  static std::string table_heading();
  static std::string row(const CheckpointRound& round, std::size_t number);
  std::string summary() const;
  std::string json(const aio::MachineInfo& machine, const std::string& command) const;
};

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
    text += "; the process used " + format_bytes(peak_resident_bytes) + " at most, including aio's";
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

// A checkpoint may be small, and the drive slow.
constexpr double kReferencePatienceSeconds = 60;

class Program {
 public:
  Program(CheckpointBenchOptions options, const BenchCommand& command)
      : bench_(command, options.io.json) {
    report_.options = std::move(options);
  }

  int run() {
    if (Status ready = prepare(); !ready.ok()) {
      const ErrorCode code = ready.error().code();
      return bench_.fail(ready.error(), code == ErrorCode::kIo ? kOurError : kUserError);
    }
    bench_.show_machine({options().path()});
    bench_.show(report_.shape_text() + "\n" + CheckpointReport::table_heading());
    const Status measured = measure();
    report_.interrupted = !measured.ok() && measured.error().code() == ErrorCode::kCancelled;
    if (!measured.ok() && !report_.interrupted) return bench_.fail(measured.error(), kOurError);
    if (report_.rounds.empty()) return bench_.fail_interrupted();
    bench_.show(report_.summary());
    if (const Status removed = workload_->remove(); !removed.ok())
      return bench_.fail(removed.error(), kOurError);
    return bench_.finish([this] { return report_.json(bench_.machine(), bench_.command()); },
                         report_.interrupted);
  }

 private:
  const CheckpointBenchOptions& options() const { return report_.options; }

  Status prepare() {
    AioOptions places = options().io;
    std::vector<std::string> notes;
    aio::RealFileSystem files;
    places.size_bytes = places.block_bytes;  // space is checked below, for everything together
    SLUICE_RETURN_IF_ERROR(check_places(files, places, notes));
    const std::uint64_t needed = options().state_bytes() + options().io.size_bytes;
    SLUICE_ASSIGN_OR_RETURN(const std::uint64_t free, files.free_bytes(options().path()));
    if (needed > free)
      return Error(ErrorCode::kNoSpace, "--parameters " + format_bytes(options().parameters) +
                                            ": there is no room for " + format_bytes(needed) +
                                            " in " + options().path() + ", the checkpoint and " +
                                            "aio's file: " + format_bytes(free) + " are free");
    SLUICE_ASSIGN_OR_RETURN(workload_, CheckpointWorkload::create(options()));
    report_.backend = workload_->backend_name();
    report_.staging_bytes = workload_->staging_bytes();
    SLUICE_ASSIGN_OR_RETURN(scratch_,
                            ScratchFile::create({.folders = options().io.paths,
                                                 .size_bytes = options().io.size_bytes,
                                                 .stripe_bytes = options().io.stripe_bytes,
                                                 .weights = options().io.weights}));
    return {};
  }

  Status measure() {
    {
      SLUICE_ASSIGN_OR_RETURN(const auto session, open_session());
      SLUICE_RETURN_IF_ERROR(write_pass(*session, {.range_bytes = options().io.size_bytes},
                                        interrupt_, bench_.showing("writing aio's file")));
    }
    while (report_.rounds.size() < static_cast<std::size_t>(options().runs)) {
      SLUICE_ASSIGN_OR_RETURN(CheckpointRound round, measure_round(report_.rounds.size()));
      report_.rounds.push_back(std::move(round));
      bench_.show(CheckpointReport::row(report_.rounds.back(), report_.rounds.size()));
    }
    if (const auto memory = engine::process_memory(); memory.ok())
      report_.peak_resident_bytes = memory->peak_resident_bytes;
    return workload_->check(interrupt_, bench_.showing("comparing"));
  }

  // The order changes from round to round, so that neither always follows the other.
  Result<CheckpointRound> measure_round(std::size_t number) {
    CheckpointRound round;
    for (const bool writing : {true, false}) {
      for (const bool ours : {number % 2 == 0, number % 2 != 0}) {
        if (ours) {
          auto pass = writing ? workload_->save(interrupt_, bench_.showing("save"))
                              : workload_->load(interrupt_, bench_.showing("load"));
          if (!pass.ok()) return std::move(pass).error();
          (writing ? round.save : round.load) = *pass;
          seconds_ = std::clamp(pass->seconds, 1.0, 5.0);
        } else {
          SLUICE_ASSIGN_OR_RETURN((writing ? round.write : round.read),
                                  reference(writing ? Mode::kWrite : Mode::kRead));
        }
      }
    }
    return round;
  }

  Result<std::unique_ptr<AioSession>> open_session() {
    return AioSession::open(scratch_->target(), {.backend = options().io.backend,
                                                 .block_bytes = options().io.block_bytes,
                                                 .queue_depth = options().io.queue_depth,
                                                 .writable = true});
  }
  Result<RunResult> reference(Mode mode) {
    SLUICE_ASSIGN_OR_RETURN(const auto session, open_session());
    auto result =
        run_measured(*session,
                     {.mode = mode,
                      .range_bytes = options().io.size_bytes,
                      .seconds = seconds_,
                      .patience_seconds = kReferencePatienceSeconds},
                     interrupt_, bench_.showing(mode == Mode::kWrite ? "aio, write" : "aio, read"));
    if (result.ok() && result->interrupted) return Error(ErrorCode::kCancelled, "interrupted");
    if (result.ok() && !result->has_every_kind())
      return nothing_completed(*result, seconds_ + kReferencePatienceSeconds);
    return result;
  }

  const tools::Interrupt interrupt_;
  BenchProgram bench_;
  CheckpointReport report_;
  std::unique_ptr<CheckpointWorkload> workload_;
  std::unique_ptr<ScratchFile> scratch_;
  double seconds_ = 2;  // time of the latest pass; aio is measured for as long
};

int run(CheckpointBenchOptions options, const BenchCommand& command) {
  return Program(std::move(options), command).run();
}

}  // namespace

}  // namespace sluice::bench

int main(int argc, char** argv) {
  return sluice::bench::bench_main("checkpoint_bench", argc, argv,
                                   sluice::bench::parse_checkpoint_command_line,
                                   sluice::bench::run);
}
