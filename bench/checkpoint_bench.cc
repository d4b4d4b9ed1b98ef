// checkpoint_bench: measures saving and loading of checkpoints against the drive alone. See --help.
#include <algorithm>
#include <cstdio>
#include <exception>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "aio/machine_info.h"
#include "aio/real_file_system.h"
#include "aio/units.h"
#include "bench/aio_session.h"
#include "bench/aio_workload.h"
#include "bench/checkpoint_options.h"
#include "bench/checkpoint_report.h"
#include "bench/checkpoint_workload.h"
#include "bench/result_file.h"
#include "bench/result_header.h"
#include "bench/scratch_file.h"
#include "engine/observe/process_memory.h"
#include "tools/support/command_line.h"
#include "tools/support/interrupt.h"
#include "tools/support/progress_line.h"

namespace sluice::bench {
namespace {

constexpr int kOurError = 1;
constexpr int kUserError = 2;

class Program {
 public:
  Program(CheckpointBenchOptions options, std::string command)
      : command_(std::move(command)), table_(options.io.json == "-" ? stderr : stdout) {
    report_.options = std::move(options);
  }

  int run() {
    if (Status ready = prepare(); !ready.ok()) {
      const ErrorCode code = ready.error().code();
      return fail(ready.error(), code == ErrorCode::kIo ? kOurError : kUserError);
    }
    const aio::MountInfo mount = aio::mount_info(options().path());
    std::fprintf(table_, "%s%s: %s on %s\n%s\n%s",
                 machine_line("checkpoint_bench", machine_).c_str(), options().path().c_str(),
                 mount.file_system.c_str(), mount.device.c_str(), report_.shape_text().c_str(),
                 CheckpointReport::table_heading().c_str());
    std::fflush(table_);
    const Status measured = measure();
    progress_.clear();
    report_.interrupted = !measured.ok() && measured.error().code() == ErrorCode::kCancelled;
    if (!measured.ok() && !report_.interrupted)
      return fail(measured.error(),
                  measured.error().code() == ErrorCode::kNoSpace ? kUserError : kOurError);
    if (report_.rounds.empty()) return fail(measured.error(), tools::kInterruptedExitCode);
    return tell();
  }

 private:
  const CheckpointBenchOptions& options() const { return report_.options; }

  Status prepare() {
    AioOptions places = options().io;
    std::vector<std::string> notes;
    aio::RealFileSystem files;
    places.size_bytes = places.block_bytes;  // the space is looked at below, for all together
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
                                        interrupt_, showing("writing aio's file")));
    }
    while (report_.rounds.size() < static_cast<std::size_t>(options().runs)) {
      SLUICE_ASSIGN_OR_RETURN(CheckpointRound round, measure_round(report_.rounds.size()));
      progress_.clear();
      report_.rounds.push_back(std::move(round));
      std::fputs(CheckpointReport::row(report_.rounds.back(), report_.rounds.size()).c_str(),
                 table_);
      std::fflush(table_);
    }
    if (const auto memory = engine::process_memory(); memory.ok())
      report_.peak_resident_bytes = memory->peak_resident_bytes;
    return workload_->check(interrupt_, showing("comparing"));
  }

  // Which comes first changes from round to round, so that neither always follows the other.
  Result<CheckpointRound> measure_round(std::size_t number) {
    CheckpointRound round;
    for (const bool writing : {true, false}) {
      for (const bool ours : {number % 2 == 0, number % 2 != 0}) {
        if (ours) {
          auto pass = writing ? workload_->save(interrupt_, showing("save"))
                              : workload_->load(interrupt_, showing("load"));
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
    auto result = run_measured(
        *session, {.mode = mode, .range_bytes = options().io.size_bytes, .seconds = seconds_},
        interrupt_, showing(mode == Mode::kWrite ? "aio, write" : "aio, read"));
    if (result.ok() && result->interrupted) return Error(ErrorCode::kCancelled, "interrupted");
    return result;
  }

  int tell() {
    std::fputs(report_.summary().c_str(), table_);
    if (const Status removed = workload_->remove(); !removed.ok())
      return fail(removed.error(), kOurError);
    if (!options().io.json.empty()) {
      const ResultFile file("--json", options().io.json, ResultFile::Kind::kMeasurement);
      if (const Status written = file.write(report_.json(machine_, command_)); !written.ok())
        return fail(written.error(), kOurError);
    }
    if (!report_.interrupted) return 0;
    std::fputs("interrupted: the results above are not complete\n", table_);
    return tools::kInterruptedExitCode;
  }

  OnProgress showing(std::string what) {
    return [this, what = std::move(what)](double fraction, double speed) {
      progress_.update(what, {.fraction = fraction, .gb_per_s = speed});
    };
  }

  int fail(const Error& error, int code) {
    progress_.clear();
    if (code == tools::kInterruptedExitCode) {
      std::fputs("checkpoint_bench: interrupted before anything was measured\n", stderr);
    } else {
      std::fprintf(stderr, "checkpoint_bench: %s\n", error.message().c_str());
    }
    return code;
  }

  const tools::Interrupt interrupt_;
  const std::string command_;
  std::FILE* const table_;
  const aio::MachineInfo machine_ = aio::machine_info();
  tools::ProgressLine progress_;
  CheckpointReport report_;
  std::unique_ptr<CheckpointWorkload> workload_;
  std::unique_ptr<ScratchFile> scratch_;
  double seconds_ = 2;  // of the latest pass: how long aio is measured
};

int run(int argc, const char* const* argv) {
  const auto complain = [](const Error& error) {
    std::fprintf(stderr, "checkpoint_bench: %s\n", error.message().c_str());
    return kUserError;
  };
  const auto arguments = parse_checkpoint_command_line(argc, argv);
  if (!arguments.ok()) return complain(arguments.error());
  if (!arguments->has_value()) return 0;
  auto options = parse_checkpoint_options(**arguments);
  if (!options.ok()) return complain(options.error());
  return Program(std::move(options).value(), tools::command_text("checkpoint_bench", argc, argv))
      .run();
}

}  // namespace
}  // namespace sluice::bench

int main(int argc, char** argv) {
  try {
    return sluice::bench::run(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "checkpoint_bench: %s\n", error.what());
    return 1;
  }
}
