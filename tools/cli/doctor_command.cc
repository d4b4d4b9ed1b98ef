#include <fcntl.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <iostream>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "aio/clock.h"
#include "aio/log_style.h"
#include "tools/cli/child_process.h"
#include "tools/cli/command.h"
#include "tools/cli/engine_program.h"
#include "tools/cli/option_checks.h"
#include "tools/doctor/gather_facts.h"
#include "tools/doctor/judge.h"
#include "tools/doctor/show.h"
#include "tools/session/speeds_path.h"
#include "tools/support/version.h"

namespace sluice::tools {
namespace {

namespace fs = std::filesystem;

struct DoctorOptions {
  std::vector<std::string> paths;
  bool quick = false;
  bool json = false;
};

std::string text_of(int descriptor) {
  std::string text;
  char piece[4096];
  for (off_t at = 0;;) {
    const ssize_t count = ::pread(descriptor, piece, sizeof piece, at);
    if (count <= 0) return text;
    text.append(piece, static_cast<std::size_t>(count));
    at += count;
  }
}

// A program that does not end in time is killed. It is not waited for then: a call of a mount that
// does not answer cannot be ended.
doctor::ProgramEnd run_program(const std::vector<std::string>& words, int patience_s) {
  doctor::ProgramEnd end;
  const int output = ::memfd_create("sluice-doctor", MFD_CLOEXEC);
  if (output < 0) {
    end.ending = std::string("its output cannot be kept: ") + std::strerror(errno);
    return end;
  }
  auto begun = ChildProcess::start(words, {.output = output, .own_group = true});
  end.started = begun.ok();
  if (begun.ok()) {
    ChildProcess& child = **begun;
    const SteadyClock clock;
    const std::int64_t deadline_ns = clock.now_ns() + std::int64_t{patience_s} * 1'000'000'000;
    constexpr useconds_t kPollUs = 2000;
    while (child.runs() && clock.now_ns() < deadline_ns) ::usleep(kPollUs);
    end.timed_out = child.runs();
    if (end.timed_out) {
      child.send_signal(SIGKILL);
      child.leave();
      end.ending = "it did not end within " + std::to_string(patience_s) + " s";
    } else {
      end.ending = "it ended " + child.ending();
      end.ended_well = child.ending() == "with exit code 0";
    }
    end.output = text_of(output);
  } else {
    end.ending = begun.error().message();
  }
  ::close(output);
  return end;
}

// A child looks first: this process could not end while one of its threads waits for a mount.
bool answers(const std::string& path) {
  constexpr int kPatienceS = 10;
  return !run_program({"/usr/bin/env", "stat", "-f", "--", path}, kPatienceS).timed_out;
}

Status check_folder(const std::string& path) {
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (fs::is_directory(status)) return {};
  if (status.type() == fs::file_type::not_found)
    return Error(ErrorCode::kNotFound, "there is no folder " + path);
  return Error(
      ErrorCode::kInvalidArgument,
      path + (status.type() == fs::file_type::none ? ": " + error.message() : " is not a folder"));
}

// The current folder, where runs are stored unless --out says otherwise; that of temporary files;
// and Sluice's cache folder, or the nearest one above it that exists.
std::vector<std::string> default_paths() {
  std::vector<std::string> paths = {".", "/tmp"};
  const std::string speeds = speeds_path();
  if (speeds.empty()) return paths;
  fs::path cache = fs::path(speeds).parent_path();
  std::error_code error;
  while (cache.has_relative_path() && answers(cache.string()) && !fs::is_directory(cache, error))
    cache = cache.parent_path();
  paths.push_back(cache.string());
  return paths;
}

doctor::TableOptions table_options() {
  doctor::TableOptions options;
  if (::isatty(STDOUT_FILENO) == 0) return options;
  winsize size{};
  if (::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0)
    options.columns = size.ws_col;
  const auto value = [](const char* name) {
    const char* const text = std::getenv(name);  // NOLINT(concurrency-mt-unsafe): never set here
    return std::string_view(text == nullptr ? "" : text);
  };
  options.colours = value("NO_COLOR").empty() && value("TERM") != "dumb";
  return options;
}

Result<int> run(const DoctorOptions& options) {
  // What the log would say of drives and rings is in the table.
  log::show_from(log::Level::kError);
  SLUICE_ASSIGN_OR_RETURN(const std::string engine, engine_path());
  doctor::GatherOptions gather{
      .paths = options.paths.empty() ? default_paths() : options.paths,
      .paths_are_named = !options.paths.empty(),
      .quick = options.quick,
      .engine = engine,
      .run_program =
          [](const std::vector<std::string>& words) {
            constexpr int kPatienceS = 60;  // LibTorch on a network drive takes long to load
            return run_program(words, kPatienceS);
          },
  };
  std::vector<std::string> looked_at;
  for (const std::string& path : gather.paths) {
    if (!answers(path)) {
      gather.silent.insert(path);
    } else if (const Status checked = check_folder(path); !checked.ok()) {
      if (gather.paths_are_named) return checked.error();
      continue;
    }
    looked_at.push_back(path);
  }
  gather.paths = std::move(looked_at);
  // NOLINTNEXTLINE(concurrency-mt-unsafe): never set here
  if (const char* const visible = std::getenv("CUDA_VISIBLE_DEVICES"))
    gather.visible_devices = visible;
  const auto findings = doctor::judge(doctor::gather_facts(gather));
  const std::string version = version_text("sluice");
  if (options.json)
    std::cout << doctor::json_of(findings, version.substr(0, version.find('\n')));
  else
    std::cout << doctor::table_of(findings, table_options());
  return doctor::can_train(findings) ? 0 : kExitFailed;
}

}  // namespace

Command add_doctor_command(CLI::App& sluice) {
  CLI::App* const command = sluice.add_subcommand(
      "doctor", "Check this machine: report what works for training, what is limited, and why");
  command->footer(
      "Each line is good, limited (what it costs, and how to change it) or not possible (what "
      "cannot\nbe done).\n  sluice doctor                 the current folder, /tmp and the cache "
      "folder\n  sluice doctor /nvme /data     the drives of these folders\nEach drive is measured "
      "for half a second, with an unnamed file. The speeds for plans are measured\nby sluice "
      "probe.\nExit code 1: something that training needs is missing or broken: the engine, "
      "memory, a named\nfolder, or a GPU that this machine has but that cannot be used.");
  const auto options = std::make_shared<DoctorOptions>();
  command->add_option("PATH", options->paths, "Folders whose drives would store a run's state")
      ->check(not_empty());
  command->add_flag("--quick", options->quick, "Does not measure the drives");
  command->add_flag("--json", options->json, "Prints one JSON object");
  return [options](aio::IoWatchdog& /*watchdog*/) { return run(*options); };
}

}  // namespace sluice::tools
