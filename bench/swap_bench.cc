// swap_bench: measures steps over optimizer state on NVMe against the drive alone. See --help.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "aio/machine_info.h"
#include "aio/real_file_system.h"
#include "bench/aio_session.h"
#include "bench/aio_workload.h"
#include "bench/result_file.h"
#include "bench/result_header.h"
#include "bench/scratch_file.h"
#include "bench/swap_options.h"
#include "bench/swap_report.h"
#include "bench/swap_workload.h"
#include "tools/support/command_line.h"
#include "tools/support/interrupt.h"
#include "tools/support/progress_line.h"

namespace sluice::bench {
namespace {

constexpr int kOurError = 1;
constexpr int kUserError = 2;

// While nothing has been written yet, what fails is the user's to change, but for broken drives.
int exit_code_of_setup(ErrorCode code) {
  if (code == ErrorCode::kCancelled) return tools::kInterruptedExitCode;
  return code == ErrorCode::kIo || code == ErrorCode::kCorrupt || code == ErrorCode::kInternal
             ? kOurError
             : kUserError;
}

// aio_bench's mixed mode on a scratch file of its own, on the same paths with the same blocks.
class Reference {
 public:
  // Takes its space; nothing is written yet.
  static Result<std::unique_ptr<Reference>> create(const AioOptions& io) {
    std::unique_ptr<Reference> reference(new Reference(io));
    SLUICE_ASSIGN_OR_RETURN(reference->file_, ScratchFile::create({.folders = io.paths,
                                                                   .size_bytes = io.size_bytes,
                                                                   .stripe_bytes = io.stripe_bytes,
                                                                   .weights = io.weights}));
    return reference;
  }
  Status fill(const tools::Interrupt& interrupt, const OnProgress& on_progress) {
    SLUICE_ASSIGN_OR_RETURN(session_,
                            AioSession::open(file_->target(), {.backend = io_.backend,
                                                               .block_bytes = io_.block_bytes,
                                                               .queue_depth = io_.queue_depth,
                                                               .writable = true}));
    return write_pass(*session_, {.range_bytes = io_.size_bytes}, interrupt, on_progress);
  }
  Result<RunResult> run(double seconds, const tools::Interrupt& interrupt,
                        const OnProgress& on_progress) {
    return run_measured(*session_,
                        {.mode = Mode::kMixed, .range_bytes = io_.size_bytes, .seconds = seconds},
                        interrupt, on_progress);
  }

 private:
  explicit Reference(const AioOptions& io) : io_(io) {}

  const AioOptions io_;
  std::unique_ptr<ScratchFile> file_;
  std::unique_ptr<AioSession> session_;
};

class Program {
 public:
  Program(SwapBenchOptions options, std::string command)
      : command_(std::move(command)), table_(options.io.json == "-" ? stderr : stdout) {
    report_.options = std::move(options);
  }

  int run() {
    if (Status taken = take_space(); !taken.ok())
      return fail(taken.error(), exit_code_of_setup(taken.error().code()));
    std::fputs(machine_line("swap_bench", machine_).c_str(), table_);
    for (const std::string& path : options().io.paths) {
      const aio::MountInfo mount = aio::mount_info(path);
      std::fprintf(table_, "%s: %s on %s\n", path.c_str(), mount.file_system.c_str(),
                   mount.device.c_str());
    }
    std::fprintf(table_, "%s\n", report_.shape_text().c_str());
    std::fflush(table_);
    const Status measured = measure();
    progress_.clear();
    const bool interrupted = !measured.ok() && measured.error().code() == ErrorCode::kCancelled;
    if (!measured.ok() && !interrupted) return fail(measured.error(), kOurError);
    if (report_.rounds.empty()) return fail(measured.error(), tools::kInterruptedExitCode);
    report_.interrupted = interrupted;
    std::fputs(report_.summary().c_str(), table_);
    if (const Status removed = workload_->remove(); !removed.ok())
      return fail(removed.error(), kOurError);
    if (!options().io.json.empty()) {
      const Status written = json_file().write(report_.json(machine_, command_));
      if (!written.ok()) return fail(written.error(), kOurError);
    }
    if (!interrupted) return 0;
    std::fputs("interrupted: the results above are not complete\n", table_);
    return tools::kInterruptedExitCode;
  }

 private:
  const SwapBenchOptions& options() const { return report_.options; }
  ResultFile json_file() const {
    return ResultFile("--json", options().io.json, ResultFile::Kind::kMeasurement);
  }

  // All that the run needs on the paths, so that a full disk shows before anything is written.
  Status take_space() {
    SLUICE_RETURN_IF_ERROR(check());
    SLUICE_ASSIGN_OR_RETURN(workload_, SwapWorkload::create(options()));
    report_.backend = workload_->backend_name();
    if (options().reference) {
      SLUICE_ASSIGN_OR_RETURN(reference_, Reference::create(options().io));
    }
    return {};
  }
  // Not the space: what takes it says so itself, and names its own options.
  Status check() {
    AioOptions places = options().io;
    places.size_bytes = places.block_bytes;
    std::vector<std::string> notes;
    aio::RealFileSystem files;
    return check_places(files, places, notes);
  }

  Status measure() {
    SLUICE_RETURN_IF_ERROR(workload_->fill(interrupt_, showing("writing the state")));
    if (reference_ != nullptr) {
      SLUICE_RETURN_IF_ERROR(reference_->fill(interrupt_, showing("writing aio's file")));
    }
    SLUICE_ASSIGN_OR_RETURN(report_.checksums, workload_->measure_checksums());
    progress_.clear();
    std::fputs(SwapReport::table_heading().c_str(), table_);
    const auto begin = std::chrono::steady_clock::now();
    const auto more = [&](std::size_t rounds) {
      if (options().steps > 0) return rounds < static_cast<std::size_t>(options().steps);
      const std::chrono::duration<double> passed = std::chrono::steady_clock::now() - begin;
      return rounds == 0 || passed.count() < options().seconds;
    };
    while (more(report_.rounds.size())) {
      SLUICE_ASSIGN_OR_RETURN(SwapRound round, measure_round(report_.rounds.size()));
      progress_.clear();
      const std::string label = std::to_string(report_.rounds.size() + 1);
      for (const SwapStep& step : round.steps)
        std::fputs(SwapReport::step_row(step, label, round.reference).c_str(), table_);
      if (round.reference)
        std::fputs(SwapReport::reference_row(*round.reference, label).c_str(), table_);
      std::fflush(table_);
      report_.rounds.push_back(std::move(round));
      report_.pinned = workload_->pinned();
    }
    return {};
  }

  // The order rotates from round to round, so that none always follows the same other.
  Result<SwapRound> measure_round(std::size_t number) {
    constexpr double kFirstSeconds = 2;
    const std::size_t orders = options().orders.size();
    const std::size_t kinds = orders + (reference_ != nullptr ? 1 : 0);
    SwapRound round;
    round.steps.resize(orders);
    for (std::size_t i = 0; i < kinds; ++i) {
      const std::size_t kind = (i + number) % kinds;
      if (kind == orders) {
        const double seconds =
            step_seconds_ > 0 ? std::clamp(step_seconds_, 0.5, 5.0) : kFirstSeconds;
        SLUICE_ASSIGN_OR_RETURN(round.reference,
                                reference_->run(seconds, interrupt_, showing("aio, mixed")));
        if (round.reference->interrupted) return Error(ErrorCode::kCancelled, "interrupted");
        continue;
      }
      const std::string name = "step, " + std::string(to_string(options().orders[kind]));
      SLUICE_ASSIGN_OR_RETURN(round.steps[kind],
                              workload_->step(options().orders[kind], interrupt_, showing(name)));
      step_seconds_ = round.steps[kind].seconds;
    }
    return round;
  }

  OnProgress showing(std::string what) {
    return [this, what = std::move(what)](double fraction, double speed) {
      progress_.update(what, {.fraction = fraction, .gb_per_s = speed});
    };
  }

  int fail(const Error& error, int code) {
    progress_.clear();
    if (code == tools::kInterruptedExitCode) {
      std::fputs("swap_bench: interrupted before anything was measured\n", stderr);
    } else {
      std::fprintf(stderr, "swap_bench: %s\n", error.message().c_str());
    }
    return code;
  }

  const tools::Interrupt interrupt_;
  const std::string command_;
  std::FILE* const table_;
  const aio::MachineInfo machine_ = aio::machine_info();
  tools::ProgressLine progress_;
  SwapReport report_;
  std::unique_ptr<SwapWorkload> workload_;
  std::unique_ptr<Reference> reference_;
  double step_seconds_ = 0;  // of the latest step
};

int run(int argc, const char* const* argv) {
  const auto complain = [](const Error& error) {
    std::fprintf(stderr, "swap_bench: %s\n", error.message().c_str());
    return kUserError;
  };
  const auto arguments = parse_swap_command_line(argc, argv);
  if (!arguments.ok()) return complain(arguments.error());
  if (!arguments->has_value()) return 0;
  auto options = parse_swap_options(**arguments);
  if (!options.ok()) return complain(options.error());
  return Program(std::move(options).value(), tools::command_text("swap_bench", argc, argv)).run();
}

}  // namespace
}  // namespace sluice::bench

int main(int argc, char** argv) {
  try {
    return sluice::bench::run(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "swap_bench: %s\n", error.what());
    return 1;
  }
}
