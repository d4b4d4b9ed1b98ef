#include <CLI/CLI.hpp>
#include <algorithm>
#include <iostream>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "aio/small_file.h"
#include "aio/units.h"
#include "engine/checkpoint/checkpoint_folder.h"
#include "engine/observe/event_log.h"
#include "tools/cli/command.h"
#include "tools/cli/option_checks.h"
#include "tools/report/report_data.h"
#include "tools/report/report_page.h"
#include "tools/session/open_queue.h"
#include "tools/support/output_file.h"
#include "tools/support/version.h"

namespace sluice::tools {
namespace {

constexpr int kMostRuns = 32;

struct ReportCommandOptions {
  std::vector<std::string> runs;
  std::string out;
  std::optional<double> drive_tbw;
  bool force = false;
};

// Adds the run's checkpoints; adds a notice if its folder cannot be searched.
void add_checkpoints(aio::IoQueue& queue, report::RunRecord& record) {
  const std::string path = record.path + "/checkpoints";
  const auto kind = queue.backend().files().kind_of(path);
  if (kind.ok() && *kind == aio::PathKind::kLink) {
    record.notices.emplace_back("checkpoints is a link: the checkpoints in it are not listed");
    return;
  }
  const auto list = engine::CheckpointFolder(queue, path).list();
  if (!list.ok()) {
    record.notices.push_back("the checkpoints cannot be listed: " + list.error().message());
    return;
  }
  for (const engine::CheckpointEntry& entry : *list) {
    if (entry.leftover) continue;
    record.checkpoints.push_back({.step = entry.step,
                                  .bytes = entry.bytes,
                                  .state = entry.complete() ? "complete" : "cannot be read"});
  }
}

// Adds the paths to runs with the same name.
void name_apart(std::vector<report::RunRecord>& runs) {
  std::vector<std::string> names;
  names.reserve(runs.size());
  for (const report::RunRecord& run : runs) names.push_back(run.name);
  for (report::RunRecord& run : runs)
    if (std::count(names.begin(), names.end(), run.name) > 1) run.name = run.path;
}

std::string title_of(const std::vector<report::RunRecord>& runs) {
  std::string text;
  constexpr std::size_t kMostNames = 3;
  for (std::size_t i = 0; i < runs.size() && i < kMostNames; ++i)
    text += (i > 0 ? ", " : "") + runs[i].name;
  if (runs.size() > kMostNames) text += " and more";
  return text + " - Sluice report";
}

std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

Result<int> run(const ReportCommandOptions& options, aio::IoWatchdog& watchdog) {
  SLUICE_RETURN_IF_ERROR(check_output_file(
      {.option = "--out", .path = options.out, .replaces = options.force, .made_folder = {}}));
  SLUICE_ASSIGN_OR_RETURN(const FileQueue files, open_queue(watchdog));
  std::vector<report::RunRecord> runs;
  for (const std::string& path : options.runs) {
    SLUICE_ASSIGN_OR_RETURN(report::RunRecord record,
                            report::read_run(path, report::buckets_for(options.runs.size())));
    if (!record.config.empty() || !record.events.events.empty())
      add_checkpoints(*files.queue, record);
    runs.push_back(std::move(record));
  }
  name_apart(runs);
  const std::string json = report::report_json(runs, {.made_unix_s = engine::unix_seconds(),
                                                      .made_by = first_line(version_text("sluice")),
                                                      .drive_tbw = options.drive_tbw});
  const std::string page = report::report_page(title_of(runs), json);
  SLUICE_RETURN_IF_ERROR(aio::write_small_file(*files.queue, options.out, page));
  std::cout << "report: " << options.out << " (" << format_bytes(page.size()) << ")\n";
  for (const report::RunRecord& record : runs)
    for (const std::string& notice : record.notices)
      std::cerr << record.path << ": " << notice << "\n";
  return 0;
}

}  // namespace

Command add_report_command(CLI::App& sluice) {
  CLI::App* const command =
      sluice.add_subcommand("report", "Make an HTML page about one or several runs");
  command->footer(
      "  sluice report runs/demo -o report.html\n  sluice report runs/a runs/b -o both.html "
      "--drive-tbw 1200\nOne self-contained file: losses, rates, where the time went compared with "
      "the plan, memory,\ndrives, events, configurations and their differences. A run may still be "
      "running, and its\nfiles may be damaged: the page lists what cannot be read.");
  const auto options = std::make_shared<ReportCommandOptions>();
  command->add_option("RUN", options->runs, "Folders of runs, or metrics.jsonl files")
      ->required()
      ->expected(1, kMostRuns);
  command->add_option("-o,--out", options->out, "The .html file to write")
      ->required()
      ->check(not_empty());
  command
      ->add_option("--drive-tbw", options->drive_tbw,
                   "Rated write endurance of all drives together, in TB written (TBW)")
      ->check(above_zero());
  command->add_flag("--force", options->force, "Replaces the file of --out");
  return [options](aio::IoWatchdog& watchdog) { return run(*options, watchdog); };
}

}  // namespace sluice::tools
