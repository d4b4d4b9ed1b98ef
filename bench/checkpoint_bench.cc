// checkpoint_bench: measures saving and loading of checkpoints against the drive alone. See --help.
#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "aio/real_file_system.h"
#include "aio/units.h"
#include "bench/aio_session.h"
#include "bench/aio_workload.h"
#include "bench/bench_program.h"
#include "bench/checkpoint_options.h"
#include "bench/checkpoint_report.h"
#include "bench/checkpoint_workload.h"
#include "bench/scratch_file.h"
#include "engine/observe/process_memory.h"
#include "tools/support/interrupt.h"

namespace sluice::bench {
namespace {

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
