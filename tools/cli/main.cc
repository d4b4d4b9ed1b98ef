// sluice: trains transformers larger than GPU memory.
#include <fcntl.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <functional>
#include <iostream>
#include <map>
#include <string>
#include <string_view>

#include "aio/io_watchdog.h"
#include "aio/log_style.h"
#include "tools/cli/command.h"
#include "tools/cli/engine_program.h"
#include "tools/cli/option_checks.h"
#include "tools/support/command_line.h"
#include "tools/support/interrupt.h"

namespace {

using sluice::ErrorCode;

constexpr double kWatchdogS = 30;

// No file of a run may become standard input or output. Read-only: writing fails, as if closed.
void open_missing_streams() {
  for (int stream = STDIN_FILENO; stream <= STDERR_FILENO; ++stream)
    if (fcntl(stream, F_GETFD) < 0) static_cast<void>(open("/dev/null", O_RDONLY));
}

// For errors before a command's work begins: 2 if the user can fix them, otherwise 1.
int exit_code_of(ErrorCode code) {
  switch (code) {
    case ErrorCode::kInvalidArgument:
    case ErrorCode::kNotFound:
    case ErrorCode::kAlreadyExists:
    case ErrorCode::kPermission:
    case ErrorCode::kReadOnly:
    case ErrorCode::kNoSpace:
    case ErrorCode::kOutOfMemory:
    case ErrorCode::kBusy:
      return 2;
    default:
      return sluice::tools::kExitFailed;
  }
}

using AddCommand = sluice::tools::Command (*)(CLI::App&);

// The commands that need no LibTorch.
const std::map<std::string, AddCommand, std::less<>> kOfFiles = {
    {"copy", sluice::tools::add_copy_command},
    {"data", sluice::tools::add_data_command},
    {"diff", sluice::tools::add_diff_command},
    {"doctor", sluice::tools::add_doctor_command},
    {"export", sluice::tools::add_export_command},
    {"import", sluice::tools::add_import_command},
    {"ls", sluice::tools::add_ls_command},
    {"metrics", sluice::tools::add_metrics_command},
    {"prepare", sluice::tools::add_prepare_command},
    {"report", sluice::tools::add_report_command},
    {"scrub", sluice::tools::add_scrub_command},
    {"watch", sluice::tools::add_watch_command},
};

#ifdef SLUICE_STARTS_ENGINE
// The first word after --io-watchdog is the command. For --help and for misspelt commands all
// commands are needed.
bool needs_engine(int argc, const char* const* argv) {
  int at = 1;
  while (at < argc && std::string_view(argv[at]).starts_with("--io-watchdog"))
    at += std::string_view(argv[at]) == "--io-watchdog" ? 2 : 1;
  return at >= argc || kOfFiles.find(std::string_view(argv[at])) == kOfFiles.end();
}
#endif

int run(int argc, const char* const* argv) {
  CLI::App app("Trains transformers larger than GPU memory, their state streaming from NVMe.",
               "sluice");
  app.require_subcommand(1);
  double watchdog_s = kWatchdogS;
  app.add_option("--io-watchdog", watchdog_s,
                 "Reports a file operation that hangs for longer than these seconds [30]; 0 never "
                 "does. Goes before the command, and wins over a configuration's run.io_watchdog")
      ->check(sluice::tools::between(0, 86400));
  std::map<std::string, sluice::tools::Command> commands;
#ifdef SLUICE_HAS_ENGINE
  commands["train"] = sluice::tools::add_train_command(app);
  commands["eval"] = sluice::tools::add_eval_command(app);
  commands["generate"] = sluice::tools::add_generate_command(app);
  commands["chat"] = sluice::tools::add_chat_command(app);
  commands["plan"] = sluice::tools::add_plan_command(app);
  commands["probe"] = sluice::tools::add_probe_command(app);
  commands["profile"] = sluice::tools::add_profile_command(app);
  commands["trial"] = sluice::tools::add_trial_command(app);
  commands["tune"] = sluice::tools::add_tune_command(app);
#endif
  commands["completion"] = sluice::tools::add_completion_command(app);
  commands["config"] = sluice::tools::add_config_command(app);
  commands["man"] = sluice::tools::add_man_command(app);
  for (const auto& [name, add] : kOfFiles) commands[name] = add(app);

  const auto parsed = sluice::tools::parse_words(app, argc, argv);
  if (parsed.ok() && !*parsed) return 0;
  sluice::aio::IoWatchdog watchdog({.file_calls = true});
  watchdog.set_limit_s(watchdog_s);
  const auto done = parsed.ok() ? commands.at(app.get_subcommands().front()->get_name())(watchdog)
                                : sluice::Result<int>(parsed.error());
  if (done.ok()) return *done;
  std::cerr << ("sluice: " + done.error().message() + "\n");
  return exit_code_of(done.error().code());
}

int guarded_run(int argc, const char* const* argv) {
  const sluice::tools::SignalThread signals;
  sluice::tools::fail_writes_beyond_limits();
  const char* const no_color = std::getenv("NO_COLOR");  // https://no-color.org
  if (no_color != nullptr && *no_color != '\0') sluice::log::show_without_colours();
  try {
    return run(argc, argv);
  } catch (const std::exception& error) {
    std::cerr << ("sluice: " + std::string(error.what()) + "\n");
    return 1;
  }
}

}  // namespace

namespace sluice::tools {

int at_work(const Result<int>& ended) {
  if (ended.ok()) return *ended;
  std::cerr << ("sluice: " + ended.error().message() + "\n");
  return kExitFailed;
}

}  // namespace sluice::tools

int main(int argc, char** argv) {
  open_missing_streams();
#ifdef SLUICE_STARTS_ENGINE
  if (needs_engine(argc, argv)) {
    std::cerr << ("sluice: " + sluice::tools::become_engine(argv).message() + "\n");
    return sluice::tools::kExitFailed;
  }
#endif
  const int code = guarded_run(argc, argv);
#ifdef SLUICE_HAS_ENGINE
  // LibTorch needs a tenth of a second to unregister its operators one by one, so exit without
  // destructors.
  std::cout.flush();
  std::fflush(nullptr);
  std::_Exit(code);
#endif
  return code;
}
