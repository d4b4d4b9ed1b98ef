#include <CLI/CLI.hpp>
#include <iostream>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "aio/io_watchdog.h"
#include "aio/text.h"
#include "engine/comm/rank_context.h"
#include "tools/cli/command.h"
#include "tools/cli/monitors.h"
#include "tools/cli/option_checks.h"
#include "tools/cli/output_form.h"
#include "tools/cli/sample_prompts.h"
#include "tools/cli/start_ranks.h"
#include "tools/cli/train_ranks.h"
#include "tools/session/error_text.h"
#include "tools/session/plan_here.h"
#include "tools/session/run_tokenizer.h"
#include "tools/session/train_end.h"
#include "tools/session/train_start.h"
#include "tools/session/weight_dtype.h"
#include "tools/support/interrupt.h"
#include "tools/support/value_hints.h"

namespace sluice::tools {
namespace {

std::string options_of(const CLI::App& app, const std::set<std::string>& without) {
  std::string text;
  for (const CLI::Option* const option : app.get_options()) {
    const std::string name = option->get_name();
    if (option->count() == 0 || without.contains(name)) continue;
    const bool is_flag = option->get_items_expected_max() == 0;
    if (is_flag) {
      text += " " + name;
      continue;
    }
    for (const std::string& value : option->results())
      text += " " + (option->nonpositional() ? name + " " : std::string()) + shell_word(value);
  }
  return text;
}

// "sluice train run.json --out runs/a", including the options of `sluice` itself, quoted for a
// shell. `without`: names of options to leave out, such as "--resume".
std::string same_command(const CLI::App& command, const std::set<std::string>& without) {
  return "sluice" + options_of(*command.get_parent(), without) + " " + command.get_name() +
         options_of(command, without);
}

constexpr const char* kTrainInterruptNotice =
    "\nfinishing the current step and saving it; interrupt again to stop immediately\n";

struct TrainOptions : TrainRequest {
  RankOptions ranks;
  int signal_exit_code = kSavedExitCode;
  OutputOptions output;
  std::unique_ptr<OutputForm> form;  // exists until all output is written
};

// The typed command with a different --resume; an option in `more` replaces the same option.
std::string resume_command(const CLI::App& command, const std::string& resume,
                           const std::string& more) {
  const std::string other = more.substr(0, more.find(' '));
  return same_command(command, {"--resume", "--set-aside-later", other}) + " --resume" +
         (resume.empty() ? "" : "=" + shell_word(resume)) + (more.empty() ? "" : " " + more);
}

// The command that starts again from where this one started, once the folder belongs to the run.
std::string begin_again(const CLI::App& command, RunFolder::Entry entry, const ResumePoint& from) {
  if (entry == RunFolder::Entry::kResume)
    return resume_command(command, from.checkpoint ? from.checkpoint->path : "", "");
  return same_command(command, {"--overwrite"}) + " --overwrite";
}

struct TrainWork {
  const RunningTraining& started;
  const Interrupt& interrupt;
  RunEvents& events;
  Monitors& monitors;
  OutputForm& form;
  std::string again;  // the command that starts the run again from the same point
  int signal_exit_code = kSavedExitCode;
};

Result<TrainSession::End> train(const TrainWork& work) {
  TrainSession::End end = TrainSession::End::kCompleted;
  SLUICE_RETURN_IF_ERROR(say_where_it_continues(work.started, [&]() -> Status {
    SLUICE_ASSIGN_OR_RETURN(end, work.started.session->train());
    return {};
  }));
  return end;
}

// Whether a plain --resume continues after the last step taken.
bool is_saved(const RunningTraining& started) {
  const auto newest = started.located->folder.newest();
  return newest.ok() && *newest && (*newest)->step == started.run->trainer().state().global_step;
}

// The work after all checks have passed: the steps, the files written after the last step, and the
// messages about a run that broke off. Returns the exit code. Errors, including exceptions, name
// the drives of the run's state and say where the run can continue.
Result<int> train_and_finish(const TrainWork& work) {
  const RunningTraining& started = work.started;
  const auto ended = train(work);
  if (!ended.ok()) work.events.end("failed", ended.error().message());
  work.form.work_is_done();
  if (!ended.ok()) work.monitors.finish(work.interrupt);
  SLUICE_ASSIGN_OR_RETURN(const TrainSession::End end, ended);
  work.events.end(end == TrainSession::End::kCompleted ? "completed" : "interrupted");
  TrainSession& session = *started.session;
  session.print_totals(std::cout);
  work.monitors.finish(work.interrupt);
  if (started.planned.step && session.far_from_plan())
    judge_plan(started.run->config(), started.planned.step->machine);
  std::vector<std::string> missing = session.missing();
  write_last_files(started, {.notes = std::cerr, .results = std::cout}, missing);
  for (const std::string& sentence : missing) std::cerr << ("sluice: " + sentence + "\n");
  if (!missing.empty()) return kExitNotSaved;
  if (end == TrainSession::End::kCompleted && session.applied_nothing()) {
    std::cerr << ("sluice: " + std::string(kNothingApplied) + "\n");
    return kExitNothingApplied;
  }
  if (end == TrainSession::End::kCompleted) return 0;
  if (is_saved(started)) {
    std::cerr << "interrupted; --resume continues from here\n";
    return work.signal_exit_code;
  }
  std::cerr << "interrupted, and no step is saved; to start again: " << work.again << "\n";
  return kInterruptedExitCode;
}

// For the first rank, or the only one. `reason` is sent to the other ranks; empty if they reached
// the end too. `interrupt` is created once there is something to finish.
Result<int> run(const TrainOptions& options, const CLI::App& app,
                const engine::RankContext& context, engine::Communicator& link,
                aio::IoWatchdog& watchdog, std::optional<Interrupt>& made, std::string& reason) {
  const ResumeCommand command = [&](const std::string& name, const std::string& more) {
    return resume_command(app, name, more);
  };
  RunEvents events;
  OutputForm& form = *options.form;
  events.set_listener([&form](std::string_view line) { form.event(line); });
  SLUICE_ASSIGN_OR_RETURN(CheckedRequest wanted, check_training(options, context, watchdog));
  const bool as_json = form.kind() == OutputForm::Kind::kJsonLines;
  const Interrupt& interrupt = made.emplace(as_json ? nullptr : kTrainInterruptNotice);
  std::optional<Monitors> monitors;
  std::unique_ptr<SamplePrompts> samples;
  fail_writes_without_reader();
  const TrainEnvironment environment{
      .context = context,
      .link = link,
      .watchdog = watchdog,
      .stop = [&interrupt] { return interrupt.requested(); },
      .command = command,
      .notices = std::cerr,
      .events = events,
      .shows_progress = form.shows_progress(),
      .after_step =
          [&](const engine::StepMetrics& metrics) {
            form.step(engine::metrics_line(metrics));
            if (monitors) monitors->look();
          },
      .make_samples = [&samples](engine::TrainingRun& run, const TrainSession::Stop& stop)
          -> Result<std::vector<SampleText>> {
        if (!samples) return std::vector<SampleText>();
        return samples->generate(run, stop);
      }};
  const auto begin = [&]() -> Result<RunningTraining> {
    SLUICE_ASSIGN_OR_RETURN(auto located, locate_training(std::move(wanted), environment));
    const config::Config& config = located->wanted.resolved.config;
    if (!config.samples.prompts.empty()) {
      SLUICE_ASSIGN_OR_RETURN(
          samples, SamplePrompts::open(located->folder.queue(), config, located->wanted.tokenizer));
    }
    if (link.world_size() > 1) SLUICE_RETURN_IF_ERROR(hand_out(link, *located));
    return begin_training(std::move(located), environment);
  };
  auto begun = begin();
  if (!begun.ok() && begun.error().code() == ErrorCode::kCancelled && interrupt.requested()) {
    std::cerr << "interrupted before the first step: nothing was changed\n";
    return kInterruptedExitCode;
  }
  SLUICE_ASSIGN_OR_RETURN(const RunningTraining started, std::move(begun));
  const LocatedRun& located = *started.located;
  monitors.emplace(located.wanted.resolved.config, located.folder.path());
  const TrainWork work{.started = started,
                       .interrupt = interrupt,
                       .events = events,
                       .monitors = *monitors,
                       .form = form,
                       .again = begin_again(app, located.wanted.entry, located.from),
                       .signal_exit_code = options.signal_exit_code};
  const Result<int> ended = train_and_finish(work);
  if (ended.ok()) {
    reason.clear();
  } else {
    reason = ended.error().message();
    // Before the run is destroyed, which would signal the others that all is done.
    link.abort(reason);
  }
  return at_work(ended);
}

Result<int> run_rank(TrainOptions& options, const CLI::App& app, aio::IoWatchdog& watchdog) {
  SLUICE_ASSIGN_OR_RETURN(engine::Launch launch, engine::read_launch(engine::own_environment()));
  if (options.ranks.are_wanted()) launch.tasks_beside = 0;  // the user asked for it
  SLUICE_ASSIGN_OR_RETURN(const auto ended,
                          start_ranks(options.ranks, launch, options.signal_exit_code));
  if (ended) return *ended;
  options.form = std::make_unique<OutputForm>(options.output.kind());
  const int listener = begin_as_rank(launch.context);
  auto met = engine::meet_ranks(launch, listener);
  // The first rank has refused to begin, and prints the reason itself.
  const bool is_cancelled = !met.ok() && met.error().code() == ErrorCode::kCancelled;
  if (is_cancelled && launch.context.rank > 0) return kExitFailed;
  SLUICE_ASSIGN_OR_RETURN(const auto link, std::move(met));
  if (launch.context.rank > 0) return follow_first_rank(launch.context, *link, watchdog);
  const auto failed = [&](Error error) {
    link->abort(error.message());
    return error;
  };
  try {
    std::string reason = "the first rank has ended";
    std::optional<Interrupt> interrupt;  // lives until the last rank has ended
    auto done = run(options, app, launch.context, *link, watchdog, interrupt, reason);
    if (!done.ok()) return failed(std::move(done).error());
    if (!reason.empty()) link->abort(reason);
    // A file that the first rank could not write is no failure of the other ranks.
    if (reason.empty()) end_together(*link, *done == kExitNotSaved ? 0 : *done);
    return done;
  } catch (const std::exception& error) {
    return failed(error_of(error));
  }
}

constexpr const char* kTrainFooter =

    "  sluice train configs/demo.json --out runs/demo\n  sluice train configs/demo.json --out "
    "runs/demo --resume --steps 400\n  sluice train configs/qwen3_0.6b.json --set "
    "model.path=Qwen3-0.6B --out runs/qwen\n  sluice train configs/demo.json --out runs/nvme "
    "--steps 100 \\\n      --set zero_optimization.offload_param.device=nvme --set "
    "budget.nvme_paths='[\"/nvme\"]'\n  sluice train --deepspeed ds_config.json --set "
    "model.preset=gpt2-xl \\\n      --set data.train='[\"train.bin\"]' --out runs/xl\nDIR gets "
    "config.json (resolved; paths are absolute, or relative to DIR if they are inside "
    "it),\ntokenizer/, metrics.jsonl (one line per step), checkpoints/ and, with --trace, "
    "trace.json. It\ncan be moved or copied, and DIR/config.json can be used as CONFIG for the "
    "run in DIR.\nCtrl-C, SIGTERM, SIGHUP, SIGUSR1 or SIGUSR2 finishes the step, saves it and "
    "exits with 75\n(--signal-exit-code); a second Ctrl-C or SIGTERM stops at once, with 130. "
    "Exit code 1: a\ncheckpoint, metrics or another file could not be written.";

void add_weights_options(CLI::App& command, TrainOptions& options) {
  auto* const save = command.add_option("--save-weights", options.save_weights,
                                        "Writes the final weights to this .safetensors file");
  command
      .add_option("--dtype", options.dtype,
                  "Data type of the saved weights: fp32 (default), bf16, fp16")
      ->check(choices(kWeightDTypes))
      ->needs(save);
  command.add_flag("--force", options.force, "Replaces the file of --save-weights")->needs(save);
}

}  // namespace

Command add_train_command(CLI::App& sluice) {
  CLI::App* const command =
      sluice.add_subcommand("train", "Train a transformer whose state may be larger than memory");
  command->footer(kTrainFooter);
  const auto options = std::make_shared<TrainOptions>();
  add_config_options(*command, options->config);
  command->add_option("--out", options->out, "The run's folder (run.dir)");
  auto* const overwrite = command->add_flag("--overwrite", options->overwrite,
                                            "Replaces the run in a folder that is not empty");
  auto* const resume =
      command
          ->add_flag("--resume{newest}", options->resume,
                     "Continues from the newest checkpoint in DIR, or from NAME with --resume=NAME "
                     "(run.resume); without any checkpoint, starts at step 0")
          ->multi_option_policy(CLI::MultiOptionPolicy::Throw)
          ->excludes(overwrite);
  command
      ->add_flag("--set-aside-later", options->set_aside_later,
                 "With --resume=NAME: moves later checkpoints to DIR/checkpoints/set-aside-at-NAME "
                 "(run.later_checkpoints)")
      ->needs(resume);
  auto* const steps = command->add_option("--steps", options->steps, "Optimizer steps (run.steps)")
                          ->type_name("N")
                          ->check(at_least(1));
  command
      ->add_option(
          "--epochs", options->epochs,
          "Passes over the training data, instead of --steps; fractions are allowed (run.epochs)")
      ->type_name("N")
      ->check(above_zero())
      ->excludes(steps);
  command
      ->add_option("--init-from", options->init_from,
                   "Starts from the weights in a safetensors file or folder (model.init_from)")
      ->excludes(resume);
  add_weights_options(*command, *options);
  add_any_tokenizer(*command, options->any_tokenizer);
  add_rank_options(*command, options->ranks);
  command
      ->add_option("--signal-exit-code", options->signal_exit_code,
                   "Exit code after a signal, when all is saved; with 75 a scheduler can tell this "
                   "from a complete run, with 0 it cannot [75]")
      ->type_name("CODE")
      ->check(CLI::Range(0, 255));
  command
      ->add_option("--log-every", options->log_every,
                   "Steps between lines of progress (run.log_every)")
      ->type_name("N")
      ->check(at_least(1));
  add_output_options(*command, options->output);
  command->add_option(
      "--trace", options->trace,
      "FIRST:LAST: writes a timeline of these steps, with a track for each resource");
  return [options, command](aio::IoWatchdog& watchdog) -> Result<int> {
    options->gpus = options->ranks.gpus;
    return run_rank(*options, *command, watchdog);
  };
}

}  // namespace sluice::tools
