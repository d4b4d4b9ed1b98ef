#include <CLI/CLI.hpp>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <vector>

#include "aio/units.h"
#include "engine/checkpoint/checkpoint_folder.h"
#include "engine/checkpoint/verify_checkpoint.h"
#include "engine/observe/text_table.h"
#include "tools/cli/command.h"
#include "tools/session/open_queue.h"

namespace sluice::tools {
namespace {

struct LsOptions {
  std::string directory;
  bool verify = false;
  bool json = false;
};

struct Row {
  engine::CheckpointEntry entry;
  std::string state;    // "complete", "intact", ...; otherwise see `problem`
  std::string problem;  // one sentence
  bool is_best = false;
};

Result<Row> look_at(aio::IoQueue& queue, const engine::CheckpointEntry& entry, bool verify) {
  if (entry.leftover) return Row{entry, "not finished", ""};
  if (!entry.complete()) {
    const Error& error = entry.status.error();
    return Row{entry,
               error.code() == ErrorCode::kNewerVersion ? "newer version"
               : error.code() == ErrorCode::kCorrupt    ? "damaged"
                                                        : "cannot be read",
               error.message()};
  }
  if (!verify) return Row{entry, "complete", ""};
  SLUICE_ASSIGN_OR_RETURN(const auto report, engine::verify_checkpoint(queue, entry.path, {}));
  if (report.removed) return Row{entry, "removed meanwhile", ""};
  if (report.damaged.empty()) return Row{entry, "intact", ""};
  return Row{entry, "damaged", report.damaged.front().problem};
}

// A run without checkpoints still has its configuration.
Status check_is_run(aio::FileSystem& files, const std::string& directory) {
  for (const char* const name : {"/checkpoints", "/config.json"}) {
    SLUICE_ASSIGN_OR_RETURN(const bool there, files.exists(directory + name));
    if (there) return {};
  }
  return Error(ErrorCode::kNotFound, directory +
                                         " is not a run's folder (sluice train --out): it has "
                                         "neither checkpoints nor config.json");
}

// ", in the store on /nvme0 and /nvme1"; empty if all state is in files.
std::string in_store(const engine::CheckpointEntry& entry) {
  std::string text;
  const std::vector<std::string>& paths = entry.store_paths;
  for (std::size_t i = 0; i < paths.size(); ++i)
    text.append(i == 0                  ? ", in the store on "
                : i + 1 == paths.size() ? " and "
                                        : ", ")
        .append(paths[i]);
  return text;
}

// Problems are sentences, so they are printed below the table.
std::string table_of(const std::vector<Row>& rows) {
  const auto loss = [](const std::optional<double>& value) {
    return value ? engine::decimals(*value, 4) : "-";
  };
  std::vector<engine::TextRow> cells = {
      {"checkpoint", "step", "loss", "val loss", "size", "state"}};
  std::string problems;
  for (const Row& row : rows) {
    cells.push_back({row.entry.name, std::to_string(row.entry.step), loss(row.entry.loss),
                     loss(row.entry.validation_loss), format_bytes(row.entry.bytes),
                     row.state + in_store(row.entry) + (row.is_best ? ", best" : "")});
    if (!row.problem.empty()) problems += row.entry.name + ": " + row.problem + "\n";
  }
  return engine::aligned(cells) + problems;
}

std::string json_of(const LsOptions& options, const std::vector<Row>& rows) {
  using Json = nlohmann::ordered_json;
  Json list = Json::array();
  for (const Row& row : rows) {
    Json one = {{"name", row.entry.name}, {"path", row.entry.path}, {"step", row.entry.step}};
    one["loss"] = row.entry.loss ? Json(*row.entry.loss) : Json();
    one["validation_loss"] = row.entry.validation_loss ? Json(*row.entry.validation_loss) : Json();
    one["bytes"] = row.entry.bytes;
    if (!row.entry.store_paths.empty()) one["store_paths"] = row.entry.store_paths;
    one["state"] = row.state;
    one["best"] = row.is_best;
    if (!row.problem.empty()) one["problem"] = row.problem;
    list.push_back(std::move(one));
  }
  const Json all = {{"directory", options.directory}, {"checkpoints", std::move(list)}};
  return all.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

Result<int> run(const LsOptions& options, aio::IoWatchdog& watchdog) {
  SLUICE_ASSIGN_OR_RETURN(const FileQueue files, open_queue(watchdog));
  SLUICE_ASSIGN_OR_RETURN(const bool there, files.backend->files().exists(options.directory));
  if (!there)
    return Error(ErrorCode::kNotFound,
                 "there is no " + options.directory + ": name a run's folder (sluice train --out)");
  const engine::CheckpointFolder folder(*files.queue, options.directory + "/checkpoints");
  SLUICE_RETURN_IF_ERROR(check_is_run(files.backend->files(), options.directory));
  SLUICE_ASSIGN_OR_RETURN(const auto list, folder.list());
  const auto best = engine::best_of(list);
  std::vector<Row> rows;
  bool sound = true;
  for (const engine::CheckpointEntry& entry : list) {
    SLUICE_ASSIGN_OR_RETURN(rows.emplace_back(), look_at(*files.queue, entry, options.verify));
    rows.back().is_best = best != list.end() && entry.path == best->path;
    sound = sound && rows.back().problem.empty();
  }
  if (options.json)
    std::cout << json_of(options, rows);
  else if (rows.empty())
    std::cout << "there are no checkpoints in " << folder.path() << "\n";
  else
    std::cout << table_of(rows);
  return sound ? 0 : kExitDamaged;
}

}  // namespace

Command add_ls_command(CLI::App& sluice) {
  CLI::App* const command =
      sluice.add_subcommand("ls", "List a run's checkpoints: step, loss, size and integrity");
  command->footer(
      "  sluice ls runs/demo            reads manifests and sizes only\n"
      "  sluice ls runs/demo --verify   reads every byte and checks it\n"
      "Exit code 1: a checkpoint is damaged or cannot be read.");
  const auto options = std::make_shared<LsOptions>();
  command->add_option("DIR", options->directory, "The run's folder")->required();
  command->add_flag("--verify", options->verify, "Reads every byte, as sluice scrub DIR does");
  command->add_flag("--json", options->json, "Prints one JSON object");
  return [options](aio::IoWatchdog& watchdog) { return run(*options, watchdog); };
}

}  // namespace sluice::tools
