#include "tools/session/take_folder.h"

#include <filesystem>
#include <ostream>
#include <string>
#include <utility>

#include "aio/small_file.h"
#include "engine/checkpoint/run_directory.h"
#include "engine/config/stored_config.h"
#include "engine/exchange/base_model.h"
#include "tools/session/run_tokenizer.h"
#include "tools/session/train_start.h"

namespace sluice::tools {
namespace {

// config.json, written next to the file that it replaces.
class StagedConfig {
 public:
  explicit StagedConfig(const RunFolder& folder) : folder_(folder) {}
  ~StagedConfig() { static_cast<void>(aio::remove_durably(files(), new_path())); }
  StagedConfig(const StagedConfig&) = delete;
  StagedConfig& operator=(const StagedConfig&) = delete;

  Status write(const config::Resolved& resolved) const {
    std::error_code error;
    const std::string here = std::filesystem::current_path(error).string();
    SLUICE_ASSIGN_OR_RETURN(const std::string text, config::run_folder_json(resolved, here));
    return aio::write_small_file(folder_.queue(), new_path(), text + "\n");
  }

  Status put() const {
    SLUICE_RETURN_IF_ERROR(files().rename(new_path(), folder_.file("config.json")));
    return files().sync_directory(folder_.path());
  }

 private:
  aio::FileSystem& files() const { return folder_.queue().backend().files(); }
  std::string new_path() const { return folder_.file("config.json.new"); }

  const RunFolder& folder_;
};

// For a run that begins here; a resumed run already has its base.
Status keep_base(const LocatedRun& located) {
  const auto& [wanted, folder, from] = located;
  if (from.checkpoint && from.own) return {};
  const std::string& weights =
      from.checkpoint ? from.checkpoint->path : wanted.resolved.config.model.init_from;
  if (weights.empty()) return {};
  SLUICE_ASSIGN_OR_RETURN(const engine::BaseModel base,
                          engine::base_model_of(folder.queue(), weights));
  return engine::keep_base_model(folder.queue(), base, folder.path());
}

}  // namespace

Result<std::unique_ptr<engine::MetricsLog>> take_folder(const LocatedRun& located,
                                                        std::ostream& says) {
  const auto& [wanted, folder, from] = located;
  const config::Config& config = wanted.resolved.config;
  const StagedConfig staged(folder);
  const bool replaces = wanted.entry == RunFolder::Entry::kOverwrite;
  if (!replaces) SLUICE_RETURN_IF_ERROR(engine::mark_run_directory(folder.queue(), folder.path()));
  SLUICE_RETURN_IF_ERROR(staged.write(wanted.resolved));
  if (replaces) {
    SLUICE_RETURN_IF_ERROR(folder.clear());
    SLUICE_RETURN_IF_ERROR(engine::mark_run_directory(folder.queue(), folder.path()));
  }
  const std::int64_t first_step = (from.checkpoint ? from.checkpoint->step : 0) + 1;
  SLUICE_RETURN_IF_ERROR(keep_run_tokenizer(folder.queue(), config, wanted.tokenizer, first_step));
  SLUICE_RETURN_IF_ERROR(keep_base(located));
  const bool goes_on = from.checkpoint && from.own;
  const std::int64_t last_step = goes_on ? from.checkpoint->step : 0;
  std::unique_ptr<engine::MetricsLog> log;
  SLUICE_RETURN_IF_ERROR(make_way(folder, from, says, [&](const std::string& cut_path) -> Status {
    auto opened = engine::MetricsLog::resume(folder.file("metrics.jsonl"), last_step, cut_path,
                                             config.run.log_part_bytes());
    if (!opened.ok() && !cut_path.empty())
      static_cast<void>(folder.queue().backend().files().remove(cut_path));
    if (!opened.ok()) return std::move(opened).error();
    log = *std::move(opened);
    return {};
  }));
  if (log->cut_lines() > 0) {
    says << "metrics of later steps, " << log->cut_lines() << " lines, are now in "
         << log->cut_path() << "\n";
  }
  SLUICE_RETURN_IF_ERROR(staged.put());
  return log;
}

}  // namespace sluice::tools
