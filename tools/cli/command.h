// A subcommand of `sluice`, and what all subcommands share.
//
// A command adds its options to the app and returns the function that runs it. It prints results on
// standard output, and progress and warnings on standard error. Exit codes: 0; 1 for failures of
// this program or machine; 2 for the user's mistakes; 1 also if a check found damage or a
// difference. Ctrl-C gives 130, but 0 if train saved its work, or at chat's prompt.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "aio/io_watchdog.h"
#include "aio/result.h"

namespace CLI {  // NOLINT(readability-identifier-naming): named by CLI11
class App;
}

namespace sluice::tools {

// Returns the exit code. An error returned before the work has begun is printed as one sentence and
// mapped to its exit code; later errors go through at_work(). The watchdog is the process-wide one:
// it sees file calls by itself, and queues that are registered with it (open_queue.h).
using Command = std::function<Result<int>(aio::IoWatchdog& watchdog)>;

// Handles the outcome of a command's work: once training, writing or measuring has begun, an error
// is no longer the user's mistake, whatever its code. Prints the error and returns exit code 1.
int at_work(const Result<int>& ended);

Command add_chat_command(CLI::App& sluice);  // only with LibTorch
Command add_completion_command(CLI::App& sluice);
Command add_config_command(CLI::App& sluice);
Command add_copy_command(CLI::App& sluice);
Command add_data_command(CLI::App& sluice);
Command add_diff_command(CLI::App& sluice);
Command add_doctor_command(CLI::App& sluice);
Command add_eval_command(CLI::App& sluice);  // this and the next one only with LibTorch
Command add_export_command(CLI::App& sluice);
Command add_generate_command(CLI::App& sluice);  // only with LibTorch
Command add_import_command(CLI::App& sluice);
Command add_ls_command(CLI::App& sluice);
Command add_man_command(CLI::App& sluice);
Command add_metrics_command(CLI::App& sluice);
Command add_plan_command(CLI::App& sluice);
Command add_prepare_command(CLI::App& sluice);
Command add_probe_command(CLI::App& sluice);    // only with LibTorch
Command add_profile_command(CLI::App& sluice);  // only with LibTorch
Command add_report_command(CLI::App& sluice);
Command add_scrub_command(CLI::App& sluice);
Command add_train_command(CLI::App& sluice);
Command add_trial_command(CLI::App& sluice);  // this and the next one only with LibTorch
Command add_tune_command(CLI::App& sluice);
Command add_watch_command(CLI::App& sluice);

inline constexpr int kExitFailed = 1;
inline constexpr int kExitDamaged = 1;
inline constexpr int kExitDiffers = 1;
inline constexpr int kExitNotSaved = 1;
inline constexpr int kExitNothingApplied = 1;
inline constexpr int kExitNotFinite = 1;

}  // namespace sluice::tools
