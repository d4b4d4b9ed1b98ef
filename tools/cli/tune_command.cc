#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cerrno>
#include <cmath>
#include <filesystem>
#include <iostream>
#include <memory>
#include <utility>

#include "aio/real_file_system.h"
#include "aio/small_file.h"
#include "aio/terminal_line.h"
#include "engine/comm/rank_context.h"
#include "engine/observe/text_table.h"
#include "engine/preflight/nvme_folders.h"
#include "tools/cli/command.h"
#include "tools/cli/option_checks.h"
#include "tools/cli/trial_runner.h"
#include "tools/session/config_options.h"
#include "tools/session/open_queue.h"
#include "tools/session/plan_here.h"
#include "tools/session/run_tokenizer.h"
#include "tools/support/command_line.h"
#include "tools/support/interrupt.h"
#include "tools/support/output_file.h"
#include "tools/support/progress_line.h"
#include "tools/tune/tune_dimensions.h"
#include "tools/tune/tune_report.h"
#include "tools/tune/tune_search.h"

namespace sluice::tools {
namespace {

constexpr const char* kInterruptNotice =
    "\nending the trial and keeping the best so far; interrupt again to stop immediately\n";
constexpr int kNothingRan = 1;

struct TuneOptions {
  ConfigOptions config;
  VaryOptions vary;
  std::string out;
  std::string log;
  std::vector<std::string> program;  // runs the trials; empty: this program
  double budget_minutes = 15;
  double trial_seconds = 0;
  int trials = 60;
  int steps = 5;
  int warmup = 2;
  bool force = false;
  bool json = false;
};

class LogFile {
 public:
  // An empty path opens a log in memory, which provides the last line of a failed trial.
  static Result<LogFile> open(const std::string& path) {
    const int descriptor =
        path.empty() ? memfd_create("trials", MFD_CLOEXEC)
                     : ::open(path.c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    if (descriptor < 0) return Error::from_errno(errno, {.operation = "open", .path = path});
    return LogFile(descriptor);
  }
  ~LogFile() {
    if (descriptor_ >= 0) close(descriptor_);
  }
  LogFile(LogFile&& other) noexcept : descriptor_(std::exchange(other.descriptor_, -1)) {}
  LogFile& operator=(LogFile&&) = delete;

  int descriptor() const { return descriptor_; }

 private:
  explicit LogFile(int descriptor) : descriptor_(descriptor) {}
  int descriptor_;
};

// Called before minutes are spent. A log is only appended to.
Status check_out(const TuneOptions& options) {
  if (!options.out.empty() && options.out == options.log)
    return Error(ErrorCode::kInvalidArgument, "--out and --log name one file: " + options.out);
  SLUICE_RETURN_IF_ERROR(check_output_file(
      {.option = "--out", .path = options.out, .replaces = options.force, .made_folder = {}}));
  return check_output_file(
      {.option = "--log", .path = options.log, .replaces = true, .made_folder = {}});
}

class Tuning {
 public:
  Tuning(const TuneOptions& options, const config::Sources& sources,
         const config::Resolved& resolved, int log, aio::IoWatchdog& watchdog)
      : watchdog_(watchdog),
        options_(options),
        sources_(sources),
        resolved_(resolved),
        runner_(sources, interrupt_, runner_options(log)) {}

  Result<int> run() {
    SLUICE_RETURN_IF_ERROR(find_space());
    return at_work(search());
  }

 private:
  Result<int> search() {
    TuneSearch search(
        space_.dimensions, runner_,
        {.most_trials = options_.trials,
         .on_row = [this](const TuneRow& row, std::size_t number) { tell(row, number); }});
    SLUICE_ASSIGN_OR_RETURN(const TuneResult result, search.run());
    line_.clear();
    if (result.rows.empty()) {
      const bool interrupted = result.end == TuneEnd::kInterrupted;
      std::cerr << (interrupted ? "interrupted" : "the time (--budget-minutes) was used up")
                << " before anything was measured\n";
      return interrupted ? kInterruptedExitCode : kNothingRan;
    }
    std::vector<KeyValue> keys;
    if (result.best && is_worth_it(result)) {
      SLUICE_ASSIGN_OR_RETURN(keys, runner_.keys(result.rows[*result.best].point));
    }
    const TuneReport report{space_.dimensions, result, keys, space_.kept};
    std::cout << (options_.json ? json_of(report) + "\n" : table_of(report)) << std::flush;
    if (result.best) SLUICE_RETURN_IF_ERROR(keep(keys));
    if (result.end == TuneEnd::kInterrupted) return kInterruptedExitCode;
    return result.best ? 0 : kNothingRan;
  }

  TrialRunner::Options runner_options(int log) {
    std::vector<std::string> program = options_.program;
    if (program.empty()) program = {"/proc/self/exe", "trial"};
    return {.program = std::move(program),
            .log = log,
            .watchdog = &watchdog_,
            .warmup = options_.warmup,
            .steps = options_.steps,
            .trial_s = options_.trial_seconds,
            .budget_s = 60 * options_.budget_minutes,
            .on_wait = [this](std::string_view what, double trial_s) { wait(what, trial_s); }};
  }

  Status find_space() {
    // Report the user's mistakes first, since a plan takes seconds.
    SLUICE_RETURN_IF_ERROR(tune_space(resolved_, {}, options_.vary).status());
    SLUICE_ASSIGN_OR_RETURN(const TrialPlan start, runner_.plan_start());
    SLUICE_ASSIGN_OR_RETURN(space_, tune_space(resolved_, start.facts, options_.vary));
    runner_.set_dimensions(space_.dimensions);
    return {};
  }

  void wait(std::string_view what, double trial_s) {
    const double budget_s = 60 * options_.budget_minutes;
    const double left_s = runner_.seconds_left();
    std::string text = what.empty() ? "trial " + std::to_string(rows_ + 1) : std::string(what);
    if (trial_s >= 1) text += ", " + engine::duration(std::floor(trial_s));
    if (best_step_s_ > 0) text += "; best step " + engine::decimals(1e3 * best_step_s_, 1) + " ms";
    line_.update(text, {.fraction = 1 - left_s / budget_s, .gb_per_s = 0, .seconds_left = left_s});
  }

  void tell(const TuneRow& row, std::size_t number) {
    rows_ = number;
    if (row.verdict == Verdict::kPruned) return;
    const bool is_best = row.verdict == Verdict::kStart || row.verdict == Verdict::kFaster;
    if (is_best) best_step_s_ = row.trial.step_s;
    line_.clear();
    const std::string changed = describe(space_.dimensions, row.point);
    std::cerr << "trial " << number << ", " << (changed.empty() ? "as configured" : changed) << ": "
              << outcome_of(row) << (row.verdict == Verdict::kFaster ? ": faster" : "") << "\n";
  }

  Status keep(const std::vector<KeyValue>& keys) const {
    std::string settings;
    for (const KeyValue& one : keys) settings += " --set " + one.key + "='" + one.json + "'";
    if (options_.out.empty()) {
      if (!keys.empty()) std::cerr << "To use it:" << settings << "\n";
      return {};
    }
    SLUICE_ASSIGN_OR_RETURN(const std::string text, merged_config(sources_, keys));
    SLUICE_ASSIGN_OR_RETURN(const FileQueue files, open_queue(watchdog_));
    SLUICE_RETURN_IF_ERROR(aio::write_small_file(*files.queue, options_.out, text));
    std::cerr << options_.out
              << (keys.empty() ? " is the unchanged configuration" : " has the best configuration")
              << "; to use it: sluice train " << options_.out << " --out DIR\n";
    return {};
  }

  const Interrupt interrupt_{kInterruptNotice};
  aio::IoWatchdog& watchdog_;
  const TuneOptions& options_;
  const config::Sources& sources_;
  const config::Resolved& resolved_;
  ProgressLine line_;
  TrialRunner runner_;
  TuneSpace space_;
  std::size_t rows_ = 0;
  double best_step_s_ = 0;
};

// Several ranks would each search and overwrite each other's results.
Status check_alone() {
  SLUICE_ASSIGN_OR_RETURN(const engine::Launch launch,
                          engine::read_launch(engine::own_environment()));
  if (launch.context.world == 1) return {};
  return Error(ErrorCode::kInvalidArgument,
               "tune runs on one rank, but a launcher has started " +
                   std::to_string(launch.context.world) +
                   ": start it without a launcher, and train on several ranks with its result; "
                   "sluice plan --gpus predicts the scaling");
}

Result<int> run(const TuneOptions& options, aio::IoWatchdog& watchdog) {
  SLUICE_RETURN_IF_ERROR(check_alone());
  SLUICE_RETURN_IF_ERROR(check_out(options));
  SLUICE_ASSIGN_OR_RETURN(const config::Sources sources, sources_of(options.config));
  SLUICE_ASSIGN_OR_RETURN(const config::Resolved resolved, config::resolve(sources));
  // Report it once here rather than as the failure of every trial.
  aio::RealFileSystem files;
  SLUICE_RETURN_IF_ERROR(engine::require_nvme_folders(resolved.config, files));
  warn_of_data(resolved.config);
  warn_of_tokenizers(resolved.config, watchdog);
  SLUICE_ASSIGN_OR_RETURN(const LogFile log, LogFile::open(options.log));
  fail_writes_without_reader();
  return Tuning(options, sources, resolved, log.descriptor(), watchdog).run();
}

void add_search_options(CLI::App& command, TuneOptions& options) {
  command.add_option("--budget-minutes", options.budget_minutes, "Time for the whole search [15]")
      ->check(above_zero());
  command.add_option("--trials", options.trials, "Largest number of trials [60]")
      ->check(CLI::Range(1, 10000));
  command
      .add_option("--trial-seconds", options.trial_seconds,
                  "Ends a trial that takes longer; default: three times as long as the others")
      ->check(above_zero());
  command
      .add_option("--steps", options.steps,
                  "Steps measured in each trial, of which the median is used [5]")
      ->check(CLI::Range(1, 1000));
  command.add_option("--warmup", options.warmup, "Warm-up steps before them [2]")
      ->check(CLI::Range(1, 1000));
  command
      .add_option("--vary", options.vary.vary,
                  "Varies this key even if the configuration sets it; \"all\": every key")
      ->allow_extra_args(false);
  command.add_option("--keep", options.vary.keep, "Does not vary this key")
      ->allow_extra_args(false);
}

}  // namespace

Command add_tune_command(CLI::App& sluice) {
  CLI::App* const command = sluice.add_subcommand(
      "tune", "Tune a configuration: measure short runs around the plan, keep the fastest");
  std::string keys;
  for (const std::string& key : tunable_keys()) keys += "  " + key + "\n";
  command->footer(
      "  sluice tune configs/gpt2_xl_24gb.json --out best.json\n"
      "Trains on random tokens: no corpus is needed, and no checkpoint is saved. Varies\n" +
      keys +
      "where they have an effect. The train batch, devices, budgets and those keys of `placement` "
      "that\nthe configuration sets stay as they are, unless --vary names them. A trial that does "
      "not fit,\nfails or hangs is listed in the table. Ctrl-C keeps the best so far and exits "
      "with 130.");
  const auto options = std::make_shared<TuneOptions>();
  add_config_options(*command, options->config);
  auto* const out =
      command->add_option("--out", options->out, "Writes the fastest configuration to this file");
  command->add_flag("--force", options->force, "Replaces the file of --out")->needs(out);
  command->add_flag("--json", options->json, "Prints one JSON object");
  command->add_option("--log", options->log, "Appends the output of the trials to this file");
  add_search_options(*command, *options);
  command->add_option("--trial-program", options->program)
      ->allow_extra_args(false)
      ->group("");  // for tests: one word of the trials' program
  return [options](aio::IoWatchdog& watchdog) { return run(*options, watchdog); };
}

}  // namespace sluice::tools
