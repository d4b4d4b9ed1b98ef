// swap_bench: measures steps over optimizer state on NVMe against the drive alone. See --help.
#include <algorithm>
#include <chrono>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "aio/real_file_system.h"
#include "bench/aio_session.h"
#include "bench/aio_workload.h"
#include "bench/bench_program.h"
#include "bench/scratch_file.h"
#include "bench/swap_options.h"
#include "bench/swap_report.h"
#include "bench/swap_workload.h"
#include "tools/support/interrupt.h"

namespace sluice::bench {
namespace {

// A step may be short, and the drive slow.
constexpr double kReferencePatienceSeconds = 60;

// Before anything has been written, errors are the user's to change, except for broken drives.
int exit_code_of_setup(ErrorCode code) {
  return code == ErrorCode::kIo || code == ErrorCode::kCorrupt || code == ErrorCode::kInternal
             ? kOurError
             : kUserError;
}

// aio_bench's mixed mode on its own scratch file, with the same paths and blocks.
class Reference {
 public:
  // Reserves its space; nothing is written yet.
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
    auto run = run_measured(*session_,
                            {.mode = Mode::kMixed,
                             .range_bytes = io_.size_bytes,
                             .seconds = seconds,
                             .patience_seconds = kReferencePatienceSeconds},
                            interrupt, on_progress);
    if (run.ok() && !run->has_every_kind() && !run->interrupted)
      return nothing_completed(*run, seconds + kReferencePatienceSeconds);
    return run;
  }

 private:
  explicit Reference(const AioOptions& io) : io_(io) {}

  const AioOptions io_;
  std::unique_ptr<ScratchFile> file_;
  std::unique_ptr<AioSession> session_;
};

class Program {
 public:
  Program(SwapBenchOptions options, const BenchCommand& command)
      : bench_(command, options.io.json) {
    report_.options = std::move(options);
  }

  int run() {
    if (Status taken = take_space(); !taken.ok())
      return bench_.fail(taken.error(), exit_code_of_setup(taken.error().code()));
    bench_.show_machine(options().io.paths);
    bench_.show(report_.shape_text() + "\n");
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
  const SwapBenchOptions& options() const { return report_.options; }

  // Reserves all space that the run needs on the paths, so that a full disk shows before anything
  // is written.
  Status take_space() {
    SLUICE_RETURN_IF_ERROR(check());
    SLUICE_ASSIGN_OR_RETURN(workload_, SwapWorkload::create(options()));
    report_.backend = workload_->backend_name();
    if (options().reference) {
      SLUICE_ASSIGN_OR_RETURN(reference_, Reference::create(options().io));
    }
    return {};
  }
  // Does not check the space: the code that reserves it reports errors itself, and names its own
  // options.
  Status check() {
    AioOptions places = options().io;
    places.size_bytes = places.block_bytes;
    std::vector<std::string> notes;
    aio::RealFileSystem files;
    return check_places(files, places, notes);
  }

  Status measure() {
    SLUICE_RETURN_IF_ERROR(workload_->fill(interrupt_, bench_.showing("writing the state")));
    if (reference_ != nullptr) {
      SLUICE_RETURN_IF_ERROR(reference_->fill(interrupt_, bench_.showing("writing aio's file")));
    }
    SLUICE_ASSIGN_OR_RETURN(report_.checksums, workload_->measure_checksums());
    bench_.show(SwapReport::table_heading());
    const auto begin = std::chrono::steady_clock::now();
    const auto more = [&](std::size_t rounds) {
      if (options().steps > 0) return rounds < static_cast<std::size_t>(options().steps);
      const std::chrono::duration<double> passed = std::chrono::steady_clock::now() - begin;
      return rounds == 0 || passed.count() < options().seconds;
    };
    while (more(report_.rounds.size())) {
      SLUICE_ASSIGN_OR_RETURN(SwapRound round, measure_round(report_.rounds.size()));
      const std::string label = std::to_string(report_.rounds.size() + 1);
      for (const SwapStep& step : round.steps)
        bench_.show(SwapReport::step_row(step, label, round.reference));
      if (round.reference) bench_.show(SwapReport::reference_row(*round.reference, label));
      report_.rounds.push_back(std::move(round));
      report_.pinned = workload_->pinned();
    }
    return {};
  }

  // The order rotates from round to round, so that no order always follows the same other one.
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
                                reference_->run(seconds, interrupt_, bench_.showing("aio, mixed")));
        if (round.reference->interrupted) return Error(ErrorCode::kCancelled, "interrupted");
        continue;
      }
      const std::string name = "step, " + std::string(to_string(options().orders[kind]));
      SLUICE_ASSIGN_OR_RETURN(round.steps[kind], workload_->step(options().orders[kind], interrupt_,
                                                                 bench_.showing(name)));
      step_seconds_ = round.steps[kind].seconds;
    }
    return round;
  }

  const tools::Interrupt interrupt_;
  BenchProgram bench_;
  SwapReport report_;
  std::unique_ptr<SwapWorkload> workload_;
  std::unique_ptr<Reference> reference_;
  double step_seconds_ = 0;  // time of the latest step
};

int run(SwapBenchOptions options, const BenchCommand& command) {
  return Program(std::move(options), command).run();
}

}  // namespace
}  // namespace sluice::bench

int main(int argc, char** argv) {
  return sluice::bench::bench_main("swap_bench", argc, argv, sluice::bench::parse_swap_command_line,
                                   sluice::bench::run);
}
