#include <sys/random.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <cctype>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "engine/observe/event_log.h"
#include "engine/observe/log_parts.h"
#include "tools/cli/command.h"
#include "tools/cli/option_checks.h"
#include "tools/report/report_data.h"
#include "tools/support/interrupt.h"
#include "tools/support/version.h"
#include "tools/watch/run_watcher.h"
#include "tools/watch/screen.h"
#include "tools/watch/sentences.h"
#include "tools/watch/terminal.h"
#include "tools/watch/web_server.h"

namespace sluice::tools {
namespace {

using std::chrono::milliseconds;

constexpr int kMostWatched = 32;
constexpr double kScreenEveryS = 1;
constexpr double kLineEveryS = 5;
constexpr int kKeyWaitMs = 50;

struct WatchOptions {
  std::vector<std::string> runs;
  std::string web;
  std::string token;
  std::string no_colour;
  std::optional<double> every_s;
  bool plain = false;
  bool no_wait = false;
};

Status check_runs(const WatchOptions& options) {
  std::error_code ignored;
  for (const std::string& path : options.runs) {
    const bool is_there = std::filesystem::exists(path, ignored);
    if (is_there && !std::filesystem::is_directory(path, ignored))
      return Error(ErrorCode::kInvalidArgument,
                   path + " is not a run's folder (sluice train --out)");
    bool has_run = false;
    for (const char* const name : {"metrics.jsonl", "config.json", "events.jsonl", "lock"})
      has_run = has_run || std::filesystem::exists(path + "/" + name, ignored) ||
                (is_there && !engine::log_parts(path + "/" + name).empty());
    if (has_run) continue;
    if (options.no_wait)
      return Error(
          ErrorCode::kNotFound,
          path + " has no run (sluice train --out); without --no-wait this command waits for it");
    std::cerr << "waiting for a run in " << watch::printable(path) << "\n";
  }
  return {};
}

std::vector<std::unique_ptr<watch::RunFollower>> followers(const WatchOptions& options) {
  std::vector<std::string> names;
  names.reserve(options.runs.size());
  for (const std::string& path : options.runs) names.push_back(report::run_name(path));
  std::vector<std::unique_ptr<watch::RunFollower>> runs;
  for (std::size_t i = 0; i < names.size(); ++i) {
    // Adds the paths to runs with the same name.
    const bool is_alone = std::count(names.begin(), names.end(), names[i]) == 1;
    runs.push_back(std::make_unique<watch::RunFollower>(
        watch::RunFollower::Options{.path = options.runs[i],
                                    .name = is_alone ? names[i] : options.runs[i],
                                    .most_buckets = report::buckets_for(names.size()),
                                    .now_unix_s = engine::unix_seconds}));
  }
  return runs;
}

int exit_code(const watch::WatchSnapshot& snapshot) {
  const bool is_bad = std::any_of(snapshot.runs.begin(), snapshot.runs.end(),
                                  [](const auto& run) { return watch::is_bad(run.view.phase); });
  return is_bad ? kExitFailed : 0;
}

bool all_over(const watch::WatchSnapshot& snapshot) {
  return std::all_of(snapshot.runs.begin(), snapshot.runs.end(),
                     [](const auto& run) { return watch::is_over(run.view.phase); });
}

// Prints a line per run at intervals, if there is news; ends when all runs have ended.
int print_lines(const watch::RunWatcher& watcher, double every_s, const Interrupt& interrupt) {
  std::vector<std::string> said(watcher.snapshot()->runs.size());
  const SteadyClock clock;
  for (;;) {
    const auto snapshot = watcher.snapshot();
    for (std::size_t i = 0; i < said.size(); ++i) {
      const watch::RunView& view = snapshot->runs[i].view;
      const std::string line = watch::plain_line(view);
      // The remaining time changes by itself, so it is not compared.
      const std::string state =
          std::to_string(static_cast<int>(view.phase)) + " " + std::to_string(view.lines);
      if (state == said[i]) continue;
      said[i] = state;
      std::cout << line << "\n";
    }
    if (!std::cout.flush()) return 0;  // the reader has gone
    if (all_over(*snapshot)) return exit_code(*snapshot);
    const auto deadline_ns = clock.now_ns() + static_cast<std::int64_t>(every_s * 1e9);
    while (clock.now_ns() < deadline_ns) {
      if (interrupt.requested()) return kInterruptedExitCode;
      nap_until(clock, deadline_ns);
      if (all_over(*watcher.snapshot())) break;
    }
  }
}

class Viewer {
 public:
  Viewer(const watch::RunWatcher& watcher, watch::Terminal& terminal, bool unicode)
      : watcher_(watcher), terminal_(terminal), snapshot_(watcher.snapshot()) {
    options_.unicode = unicode;
    options_.runs = static_cast<int>(snapshot_->runs.size());
  }

  void run(const Interrupt& interrupt) {
    bool is_new = true;
    while (!interrupt.requested()) {
      if (const auto now = watcher_.snapshot();
          !options_.paused && now->number != snapshot_->number) {
        snapshot_ = now;
        is_new = true;
      }
      if (is_new) {
        const watch::WatchSnapshot::Run& run =
            snapshot_->runs[static_cast<std::size_t>(options_.run)];
        terminal_.show(watch::draw_screen(run.view, run.series, terminal_.rows(),
                                          terminal_.columns(), options_));
      }
      const auto press = terminal_.read_key(kKeyWaitMs);
      is_new = press.has_value();
      if (press && !take(*press)) return;
    }
  }

 private:
  // Returns whether to continue.
  bool take(const watch::KeyPress& press) {
    using watch::Key;
    const auto panel = static_cast<int>(options_.panel);
    if (press.key == Key::kTab)
      options_.panel = static_cast<watch::Panel>((panel + 1) % watch::kPanels);
    if (press.key == Key::kBackTab)
      options_.panel = static_cast<watch::Panel>((panel + watch::kPanels - 1) % watch::kPanels);
    if (press.key == Key::kDown) scroll(1);
    if (press.key == Key::kUp) scroll(-1);
    const char c = press.character;
    if (c >= '1' && c < '1' + watch::kPanels) options_.panel = static_cast<watch::Panel>(c - '1');
    switch (c) {
      case 'q':
      case 'Q':
        return false;
      case 'p':
      case ' ':
        options_.paused = !options_.paused;
        break;
      case '+':
      case '=':
        options_.zoom = std::min(options_.zoom + 1, watch::kMostZoom);
        break;
      case '-':
        options_.zoom = std::max(options_.zoom - 1, 0);
        break;
      case '0':
        options_.zoom = 0;
        break;
      case 'l':
        options_.log = !options_.log;
        break;
      case '?':
      case 'h':
        options_.help = !options_.help;
        break;
      case 'n':
        options_.run = (options_.run + 1) % options_.runs;
        break;
      case 'N':
        options_.run = (options_.run + options_.runs - 1) % options_.runs;
        break;
      default:
        break;
    }
    return true;
  }

  // Scrolls the events, from the newest at the top to older ones.
  void scroll(int lines) {
    const auto& run = snapshot_->runs[static_cast<std::size_t>(options_.run)];
    const int most = static_cast<int>(run.view.facts.events.size()) - 1;
    options_.scroll = std::clamp(options_.scroll + lines, 0, std::max(most, 0));
  }

  const watch::RunWatcher& watcher_;
  watch::Terminal& terminal_;
  std::shared_ptr<const watch::WatchSnapshot> snapshot_;
  watch::ScreenOptions options_;
};

// A token of 128 random bits.
Result<std::string> new_token() {
  std::array<unsigned char, 16> bits{};
  if (::getrandom(bits.data(), bits.size(), 0) != static_cast<ssize_t>(bits.size()))
    return Error(ErrorCode::kInternal, "the system has no random numbers for a token");
  std::string token;
  constexpr const char* kDigits = "0123456789abcdef";
  for (const unsigned char byte : bits) {
    token += kDigits[byte >> 4U];
    token += kDigits[byte & 15U];
  }
  return token;
}

Status check_token(const std::string& token) {
  constexpr std::size_t kLeast = 16;
  constexpr std::size_t kMost = 256;
  const bool is_plain = std::all_of(token.begin(), token.end(), [](unsigned char c) {
    return std::isalnum(c) != 0 || c == '-' || c == '_' || c == '.';
  });
  if (token.empty() || (is_plain && token.size() >= kLeast && token.size() <= kMost)) return {};
  return Error(ErrorCode::kInvalidArgument,
               "--token: a token has 16 to 256 letters, digits, '-', '_' and '.'");
}

Result<int> serve(const WatchOptions& options, const Interrupt& interrupt) {
  std::string token = options.token;
  // NOLINTNEXTLINE(concurrency-mt-unsafe): never set here
  const char* const exported = std::getenv("SLUICE_WATCH_TOKEN");
  if (token.empty() && exported != nullptr) token = exported;
  SLUICE_RETURN_IF_ERROR(check_token(token));
  SLUICE_ASSIGN_OR_RETURN(const watch::WebAddress wanted, watch::parse_address(options.web));
  SLUICE_ASSIGN_OR_RETURN(std::unique_ptr<watch::WebServer> server,
                          watch::WebServer::listen(wanted));
  const watch::WebAddress& address = server->address();
  if (token.empty() && !address.is_loopback()) {
    SLUICE_ASSIGN_OR_RETURN(token, new_token());
  }
  const double every_s = options.every_s.value_or(kScreenEveryS);
  const watch::RunWatcher watcher(followers(options),
                                  milliseconds(static_cast<std::int64_t>(every_s * 1e3)));
  const std::string version = version_text("sluice");
  watch::WebPages pages(watcher, {.made_by = version.substr(0, version.find('\n')),
                                  .token = token,
                                  .hosts = {"localhost", "127.0.0.1", "[::1]", address.host},
                                  .cookie_name = "sluice_" + std::to_string(address.port),
                                  .every_ms = static_cast<int>(std::max(every_s, 2.0) * 1e3),
                                  .now_unix_s = engine::unix_seconds});
  SLUICE_RETURN_IF_ERROR(server->serve(pages));
  std::cout << "watch: http://" << address.text() << "/" << (token.empty() ? "" : "?token=" + token)
            << "\n"
            << "watch: http://" << address.text() << "/metrics for Prometheus\n";
  if (!address.is_loopback())
    std::cout << "watch: anyone with the token can see the page, and it is sent unencrypted: "
                 "better tunnel a local port (ssh -L)\n";
  std::cout.flush();
  while (!interrupt.requested()) {
    server->sweep();
    std::this_thread::sleep_for(milliseconds(200));
  }
  server.reset();  // before the objects it answers with
  return 0;
}

Result<int> run(const WatchOptions& options) {
  const bool unicode = watch::use_locale();
  SLUICE_RETURN_IF_ERROR(check_runs(options));
  const Interrupt interrupt;
  fail_writes_without_reader();
  if (!options.web.empty()) return serve(options, interrupt);
  const bool on_screen = !options.plain && watch::has_terminal();
  const double every_s = options.every_s.value_or(on_screen ? kScreenEveryS : kLineEveryS);
  const watch::RunWatcher watcher(
      followers(options),
      milliseconds(static_cast<std::int64_t>(std::min(every_s, kScreenEveryS) * 1e3)));
  if (on_screen) {
    // If the terminal is not capable enough, print lines.
    auto terminal = watch::Terminal::open(options.no_colour.empty());
    if (terminal.ok()) {
      Viewer(watcher, **terminal, unicode).run(interrupt);
      terminal->reset();
      return interrupt.requested() ? kInterruptedExitCode : 0;
    }
    std::cerr << terminal.error().message() << ": prints a line every few seconds instead\n";
  }
  return print_lines(watcher, every_s, interrupt);
}

}  // namespace

Command add_watch_command(CLI::App& sluice) {
  CLI::App* const command =
      sluice.add_subcommand("watch", "Monitor runs in the terminal or a browser");
  command->footer(
      "  sluice watch runs/demo\n  sluice watch runs/a runs/b --web 127.0.0.1:8080\nIn the "
      "terminal: losses, speed, what limits the step, memory and budgets, drives,\ncheckpoints and "
      "warnings, time left; ? lists the keys. Without a terminal it prints a line\nwhen something "
      "is new, until the runs have ended; exit code 1 if one failed or crashed.\n--web serves the "
      "page of sluice report, which then follows the runs, and /metrics for\nPrometheus, until "
      "Ctrl-C. Only files are read, so runs are not affected.");
  const auto options = std::make_shared<WatchOptions>();
  command->add_option("RUN", options->runs, "Folders of runs; they need not exist yet")
      ->required()
      ->expected(1, kMostWatched)
      ->check(not_empty());
  command
      ->add_option("--every", options->every_s, "Seconds between updates [1; without a terminal 5]")
      ->check(between(0.1, 3600));
  auto* const plain =
      command->add_flag("--plain", options->plain, "Prints lines even on a terminal");
  command->add_flag("--no-wait", options->no_wait, "Refuses a run that does not exist yet");
  auto* const web = command
                        ->add_option("--web", options->web,
                                     "HOST:PORT to serve the page at; port 0 is any free port. "
                                     "Non-local addresses require a token")
                        ->check(not_empty())
                        ->excludes(plain);
  command
      ->add_option("--token", options->token,
                   "Access token; default: generated for non-local addresses. Prefer the variable "
                   "SLUICE_WATCH_TOKEN, because other users can see command lines")
      ->needs(web);
  // https://no-color.org: any value counts unless it is empty.
  command->add_option("--no-color", options->no_colour)->envname("NO_COLOR")->group("");
  return [options](aio::IoWatchdog& /*watchdog*/) { return run(*options); };
}

}  // namespace sluice::tools
