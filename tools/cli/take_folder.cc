#include "tools/cli/take_folder.h"

#include <filesystem>
#include <iostream>
#include <string>
#include <utility>

#include "aio/small_file.h"
#include "engine/config/stored_config.h"
#include "tools/cli/run_tokenizer.h"

namespace sluice::tools {
namespace {

// config.json and the tokenizer, written beside those that they replace.
class Staged {
 public:
  explicit Staged(const RunFolder& folder) : folder_(folder) {}
  ~Staged() {
    static_cast<void>(aio::remove_durably(files(), new_config()));
    static_cast<void>(discard_run_tokenizer(files(), folder_.path()));
  }
  Staged(const Staged&) = delete;
  Staged& operator=(const Staged&) = delete;

  Status write(const NewLife& life) const {
    std::error_code error;
    const std::string here = std::filesystem::current_path(error).string();
    SLUICE_RETURN_IF_ERROR(aio::write_small_file(folder_.queue(), new_config(),
                                                 config::stored_json(life.resolved, here) + "\n"));
    return stage_run_tokenizer(folder_.queue(), life.resolved.config, life.tokenizer,
                               life.entry == RunFolder::Entry::kOverwrite);
  }

  Status put() const {
    SLUICE_RETURN_IF_ERROR(files().rename(new_config(), folder_.file("config.json")));
    SLUICE_RETURN_IF_ERROR(put_run_tokenizer(files(), folder_.path()));
    return files().sync_directory(folder_.path());
  }

 private:
  aio::FileSystem& files() const { return folder_.queue().backend().files(); }
  std::string new_config() const { return folder_.file("config.json.new"); }

  const RunFolder& folder_;
};

}  // namespace

Result<std::unique_ptr<engine::MetricsLog>> take_folder(const RunFolder& folder,
                                                        const NewLife& life) {
  const Staged staged(folder);
  SLUICE_RETURN_IF_ERROR(staged.write(life));
  if (life.entry == RunFolder::Entry::kOverwrite) SLUICE_RETURN_IF_ERROR(folder.clear());
  const bool goes_on = life.from.checkpoint && life.from.own;
  const std::int64_t last_step = goes_on ? life.from.checkpoint->step : 0;
  std::unique_ptr<engine::MetricsLog> log;
  SLUICE_RETURN_IF_ERROR(make_way(folder, life.from, [&](const std::string& cut_path) -> Status {
    auto opened = engine::MetricsLog::resume(folder.file("metrics.jsonl"), last_step, cut_path);
    if (!opened.ok() && !cut_path.empty())
      static_cast<void>(folder.queue().backend().files().remove(cut_path));
    if (!opened.ok()) return std::move(opened).error();
    log = *std::move(opened);
    return {};
  }));
  if (log->cut_lines() > 0) {
    std::cerr << "metrics of later steps, " << log->cut_lines() << " lines, are now in "
              << log->cut_path() << "\n";
  }
  SLUICE_RETURN_IF_ERROR(staged.put());
  return log;
}

}  // namespace sluice::tools
