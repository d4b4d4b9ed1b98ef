// aio_bench: measures the IO layer on a drive. See --help.
#include <algorithm>
#include <cstdio>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "aio/machine_info.h"
#include "aio/real_file_system.h"
#include "aio/striped_file.h"
#include "aio/units.h"
#include "bench/aio_options.h"
#include "bench/aio_report.h"
#include "bench/aio_sweep.h"
#include "bench/aio_workload.h"
#include "bench/bench_program.h"
#include "bench/result_file.h"
#include "bench/scratch_file.h"
#include "tools/support/interrupt.h"
#include "tools/support/progress_line.h"

namespace sluice::bench {
namespace {

// aio_bench without a sweep: runs each mode several times on one session, and adds a row per run to
// the table.
class Measurement {
 public:
  Measurement(AioSession& session, const AioOptions& options, const tools::Interrupt& interrupt,
              tools::ProgressLine& progress)
      : session_(session),
        options_(options),
        interrupt_(interrupt),
        progress_(progress),
        pattern_seed_(options.seed) {}

  Result<RunResult> run(Mode mode, int number) {
    const std::string what = std::string(to_string(mode)) + ", run " + std::to_string(number + 1) +
                             " of " + std::to_string(options_.runs);
    // Different data each time: a write that never happened would leave the previous run's pattern.
    if (mode == Mode::kWrite) ++pattern_seed_;
    RunPlan plan{.mode = mode,
                 .range_bytes = options_.size_bytes,
                 .seconds = options_.seconds,
                 .ramp_seconds = options_.ramp_seconds,
                 .pattern_seed = std::nullopt,
                 .random_seed = options_.seed + static_cast<std::uint64_t>(runs_done_)};
    if (options_.verify) plan.pattern_seed = pattern_seed_;
    const double seconds_each = plan.seconds + plan.ramp_seconds;
    const double runs_in_all = options_.runs * static_cast<double>(options_.modes.size());
    SLUICE_ASSIGN_OR_RETURN(
        RunResult result,
        run_measured(session_, plan, interrupt_, [&](double fraction, double gb_per_s) {
          progress_.update(what,
                           {.fraction = fraction,
                            .gb_per_s = gb_per_s,
                            .seconds_left = (runs_in_all - runs_done_ - fraction) * seconds_each});
        }));
    ++runs_done_;
    if (!result.has_every_kind() && !result.interrupted)
      return nothing_completed(result, plan.seconds);
    if (options_.verify && writes(mode) && !result.interrupted) {
      SLUICE_RETURN_IF_ERROR(read_back(what, result));
    }
    return result;
  }

 private:
  Status read_back(const std::string& what, RunResult& result) {
    const auto show = [&](const char* doing) {
      return [this, text = what + doing](double fraction, double gb_per_s) {
        progress_.update(text, {.fraction = fraction, .gb_per_s = gb_per_s});
      };
    };
    PassPlan plan{.range_bytes = options_.size_bytes, .pattern_seed = pattern_seed_};
    if (result.mode == Mode::kWrite) {
      plan.first_block = result.issued_blocks;
      SLUICE_RETURN_IF_ERROR(write_pass(session_, plan, interrupt_, show(": writing the rest")));
      plan.first_block = 0;
    }
    SLUICE_ASSIGN_OR_RETURN(const std::uint64_t checked,
                            check_pass(session_, plan, interrupt_, show(": reading back")));
    result.verified_bytes += checked;
    return {};
  }

  AioSession& session_;
  const AioOptions& options_;
  const tools::Interrupt& interrupt_;
  tools::ProgressLine& progress_;
  std::uint64_t pattern_seed_;  // the seed of the file's content
  int runs_done_ = 0;
};

// Runs what the options say. An interrupt ends it early, with the measurements so far in `results`.
// With --verify the file must hold the pattern of options.seed.
Status measure(AioSession& session, const AioOptions& options, const tools::Interrupt& interrupt,
               tools::ProgressLine& progress, std::FILE* table, std::vector<ModeRuns>& results) {
  Measurement measurement(session, options, interrupt, progress);
  const auto print = [&](const std::string& line) {
    progress.clear();
    std::fputs(line.c_str(), table);
    std::fflush(table);
  };
  print(table_heading());
  for (const Mode mode : options.modes) {
    std::vector<RunResult>& runs = results.emplace_back(ModeRuns{mode, {}}).runs;
    for (int number = 0; number < options.runs && !interrupt.requested(); ++number) {
      SLUICE_ASSIGN_OR_RETURN(RunResult result, measurement.run(mode, number));
      if (result.operations == 0 && result.interrupted) break;
      print(table_row(result, std::to_string(number + 1)));
      runs.push_back(std::move(result));
    }
    const auto complete = std::count_if(runs.begin(), runs.end(),
                                        [](const RunResult& run) { return !run.interrupted; });
    if (complete > 1) print(table_row(median_run(runs), "median"));
    if (interrupt.requested()) break;
  }
  return {};
}

// Options that this machine refuses are the user's to change.
int exit_code_of_setup(ErrorCode code) {
  switch (code) {
    case ErrorCode::kInvalidArgument:
    case ErrorCode::kNotFound:
    case ErrorCode::kAlreadyExists:
    case ErrorCode::kPermission:
    case ErrorCode::kReadOnly:
    case ErrorCode::kNoSpace:
    case ErrorCode::kOutOfMemory:
    case ErrorCode::kUnsupported:
      return kUserError;
    default:
      return kOurError;
  }
}

class Program {
 public:
  Program(AioOptions options, const BenchCommand& command)
      : options_(std::move(options)), bench_(command, options_.json) {}

  int run() {
    if (Status ready = prepare(); !ready.ok()) return fail_setup(ready.error());
    const ReportHeader header = make_header(options_, bench_.command());
    bench_.show(machine_text(header));
    return options_.sweep ? sweep(header) : measure_modes(header);
  }

 private:
  Status prepare() {
    std::vector<std::string> notes;
    aio::RealFileSystem files;
    SLUICE_RETURN_IF_ERROR(check_places(files, options_, notes));
    for (const std::string& note : notes) std::fprintf(stderr, "aio_bench: %s\n", note.c_str());
    if (!options_.file.empty()) {
      target_ = {.open_paths = {options_.file},
                 .shown_paths = {options_.file},
                 .size_bytes = options_.size_bytes,
                 .weights = {1}};
      return options_.verify ? fill() : Status();
    }
    if (options_.auto_weights) SLUICE_RETURN_IF_ERROR(measure_weights());
    SLUICE_ASSIGN_OR_RETURN(scratch_, ScratchFile::create({.folders = options_.paths,
                                                           .size_bytes = options_.size_bytes,
                                                           .stripe_bytes = options_.stripe_bytes,
                                                           .weights = options_.weights}));
    target_ = scratch_->target();
    return fill();
  }

  Status measure_weights() {
    const std::uint64_t probe_bytes = std::min<std::uint64_t>(
        256 * kMiB, align_up(options_.size_bytes / options_.paths.size(), 4 * kKiB));
    SLUICE_ASSIGN_OR_RETURN(
        const std::vector<double> speeds,
        measure_write_speeds(options_.paths, probe_bytes, options_.backend, interrupt_,
                             [this](const std::string& folder, double fraction) {
                               bench_.progress().update("measuring " + folder,
                                                        {.fraction = fraction});
                             }));
    bench_.progress().clear();
    options_.weights = aio::StripedFile::weights_from_speeds(speeds);
    return {};
  }

  // Not measured. Writes the whole file, so that no read meets space that was never written.
  Status fill() {
    AioSession::Options shape{.backend = options_.backend, .writable = true};
    SLUICE_ASSIGN_OR_RETURN(const auto session, AioSession::open(target_, shape));
    const PassPlan plan{.range_bytes = options_.size_bytes, .pattern_seed = options_.seed};
    Status filled = write_pass(*session, plan, interrupt_, [&](double fraction, double gb_per_s) {
      const double left_gb = (1 - fraction) * static_cast<double>(options_.size_bytes) / 1e9;
      bench_.progress().update("writing the file",
                               {.fraction = fraction,
                                .gb_per_s = gb_per_s,
                                .seconds_left = left_gb / std::max(gb_per_s, 0.01)});
    });
    bench_.progress().clear();
    return filled;
  }

  int measure_modes(const ReportHeader& header) {
    const bool any_writes = std::any_of(options_.modes.begin(), options_.modes.end(), writes);
    auto session = AioSession::open(target_, {.backend = options_.backend,
                                              .block_bytes = options_.block_bytes,
                                              .queue_depth = options_.queue_depth,
                                              .threads = options_.threads,
                                              .single_submit = options_.single_submit,
                                              .writable = any_writes});
    if (!session.ok()) return fail_setup(session.error());
    bench_.show(shape_text(options_, **session) + "\n");
    std::vector<ModeRuns> results;
    const Status measured =
        measure(**session, options_, interrupt_, bench_.progress(), bench_.out(), results);
    if (!measured.ok() && measured.error().code() != ErrorCode::kCancelled)
      return bench_.fail(measured.error(), kOurError);
    const bool any = std::any_of(results.begin(), results.end(),
                                 [](const ModeRuns& of_mode) { return !of_mode.runs.empty(); });
    if (!any) {
      bench_.show("interrupted before anything was measured\n");
      return tools::kInterruptedExitCode;
    }
    const bool interrupted = interrupt_.requested();
    return bench_.finish([&] { return runs_json(header, options_, results, interrupted); },
                         interrupted);
  }

  int sweep(const ReportHeader& header) {
    const std::vector<AioSession::Options> grid =
        sweep_grid(options_, header.machine.cores, aio::available_ram_bytes());
    if (grid.empty())
      return bench_.fail(Error(ErrorCode::kInvalidArgument,
                               "--sweep: no block size and depth fits a file of " +
                                   format_bytes(options_.size_bytes) + "; give a larger --size"),
                         kUserError);
    std::fprintf(bench_.out(), "sweep of %zu shapes, %s, %d x %g s each; file %s\n\n", grid.size(),
                 std::string(to_string(options_.modes[0])).c_str(), options_.runs, options_.seconds,
                 format_bytes(options_.size_bytes).c_str());
    std::fflush(bench_.out());
    const auto points = run_sweep(target_, options_, grid, interrupt_, bench_.progress());
    if (!points.ok()) return fail_setup(points.error());
    const SweepPoint& best = best_point(*points);
    bench_.show(sweep_tables(*points, best));
    if (interrupt_.requested()) return bench_.results_incomplete();

    const Status section = ResultFile("--out", options_.out, ResultFile::Kind::kAioSection)
                               .write(aio_section_json(best.shape));
    if (!section.ok()) return bench_.fail(section.error(), kOurError);
    std::fprintf(bench_.out(),
                 "\nbest: block %s, depth %d, threads %d: %.3f GB/s, %s in flight; written to %s\n",
                 format_bytes(best.shape.block_bytes).c_str(), best.shape.queue_depth,
                 best.shape.threads, *best.mean(),
                 format_bytes(best.shape.bytes_in_flight()).c_str(), options_.out.c_str());
    return bench_.finish([&] { return sweep_json(header, options_, *points, best); });
  }

  int fail_setup(const Error& error) {
    if (error.code() == ErrorCode::kCancelled) return bench_.fail_interrupted();
    return bench_.fail(error, exit_code_of_setup(error.code()));
  }

  const tools::Interrupt interrupt_;
  AioOptions options_;
  BenchProgram bench_;
  std::unique_ptr<ScratchFile> scratch_;
  BenchTarget target_;
};

int run(AioOptions options, const BenchCommand& command) {
  return Program(std::move(options), command).run();
}

}  // namespace

}  // namespace sluice::bench

int main(int argc, char** argv) {
  return sluice::bench::bench_main("aio_bench", argc, argv, sluice::bench::parse_command_line,
                                   sluice::bench::run);
}
