#include "tools/cli/train_ranks.h"

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <iostream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string_view>
#include <utility>

#include "aio/bounded_json.h"
#include "aio/log.h"
#include "aio/mount_table.h"
#include "engine/comm/launcher_text.h"
#include "engine/config/resolve.h"
#include "engine/device/gpu.h"
#include "tools/cli/start_ranks.h"
#include "tools/session/error_text.h"
#include "tools/session/run_setup.h"

namespace sluice::tools {
namespace {

using nlohmann::json;

// Whether this rank sees the run's folder at the same path, since each rank writes files of a
// checkpoint there. The first rank has put a mark file there.
Status see_folder(engine::Communicator& link, const std::string& path, const std::string& content) {
  std::error_code none;
  const bool is_there = std::filesystem::exists(path, none);
  const std::string answer =
      is_there && aio::read_text(path) == content ? "" : path + (is_there ? " is another" : "");
  SLUICE_ASSIGN_OR_RETURN(const auto all, link.all_gather_text(answer));
  const auto blind =
      std::find_if(all.begin(), all.end(), [](const auto& it) { return !it.empty(); });
  if (blind == all.end()) return {};
  return Error(link.rank() == 0 ? ErrorCode::kInvalidArgument : ErrorCode::kCancelled,
               "rank " + std::to_string(blind - all.begin()) +
                   " does not see the run's folder: it finds no " + engine::shown(*blind, 4096) +
                   ", which rank 0 has just written. Choose an --out that all hosts share at the "
                   "same path, such as a folder on a network file system");
}

// Sets up the run that the first rank sends, and follows its calls. `has_begun`: set before the
// first of them.
Status follow(const engine::RankContext& context, engine::Communicator& link,
              aio::IoWatchdog& watchdog, bool& has_begun) {
  SLUICE_ASSIGN_OR_RETURN(const auto texts, link.all_gather_text(""));
  SLUICE_ASSIGN_OR_RETURN(const json content, read_json<json>(texts.front()));
  SLUICE_ASSIGN_OR_RETURN(
      const config::Resolved resolved,
      config::resolve({.run_file = config::Source{"the first rank's configuration",
                                                  content.at("config").get<std::string>()},
                       .world_size = link.world_size()}));
  const config::Config& config = resolved.config;
  std::optional<engine::CheckpointEntry> from;
  if (content.contains("checkpoint")) {
    from.emplace().path = content.at("checkpoint").get<std::string>();
    from->step = content.at("step").get<std::int64_t>();
  }
  SLUICE_RETURN_IF_ERROR(see_folder(link, content.at("seen_at").get<std::string>(),
                                    content.at("seen").get<std::string>()));
  watchdog.set_limit_s(config.run.io_watchdog_s);
  const bool is_first_on_gpu = content.at("on_gpu").get<bool>();
  if (is_first_on_gpu != engine::uses_cuda(config))
    return engine::wrong(
        std::string(is_first_on_gpu ? "there is no GPU for this rank, but the first rank uses one"
                                    : "this rank sees a GPU, but the first rank sees none") +
        ": each rank of a host needs its own GPU, but " + std::to_string(context.local_world) +
        " run here. Start fewer, or set run.device to \"cpu\"");
  SLUICE_ASSIGN_OR_RETURN(const auto run, set_up_run(config, from, {.link = &link}));
  has_begun = true;
  if (content.contains("trace"))
    run->trace().start({.first_step = content.at("trace").at(0).get<std::int64_t>(),
                        .last_step = content.at("trace").at(1).get<std::int64_t>()});
  return run->follow();
}

// With several ranks at one terminal, a rank's own failure is printed by that rank and by the first
// one. A lost rank is reported by the first and the second rank, in case the first is the lost one.
bool is_said_by_others(const Error& error, const Status& known, int rank) {
  if (!is_started_rank()) return false;
  if (error.code() == ErrorCode::kCancelled) return true;
  return rank > 1 && !known.ok() &&
         error.message().find(known.error().message()) != std::string::npos;
}

}  // namespace

Status hand_out(engine::Communicator& link, const LocatedRun& run) {
  const config::Config& config = run.wanted.resolved.config;
  const std::optional<engine::CheckpointEntry>& from = run.from.checkpoint;
  const std::optional<engine::TraceLog::Options>& trace = run.wanted.trace;
  SLUICE_ASSIGN_OR_RETURN(const RunFolder::Mark mark, run.folder.leave_mark());
  json content = {{"config", config::to_json(config)},
                  {"on_gpu", engine::uses_cuda(config)},
                  {"seen_at", mark.path},
                  {"seen", mark.content}};
  if (from) content.update({{"checkpoint", from->path}, {"step", from->step}});
  if (trace) content["trace"] = {trace->first_step, trace->last_step};
  SLUICE_RETURN_IF_ERROR(link.all_gather_text(content.dump()).status());
  Status seen = see_folder(link, mark.path, mark.content);
  SLUICE_RETURN_IF_ERROR(run.folder.remove_mark());
  return seen;
}

int end_together(engine::Communicator& link, int code) {
  // A rank that is gone by now had already completed its part of the run.
  const auto codes = link.all_gather_text(std::to_string(code));
  return codes.ok() ? engine::whole_number(codes->front(), 255).value_or(code) : code;
}

Result<int> follow_first_rank(const engine::RankContext& context, engine::Communicator& link,
                              aio::IoWatchdog& watchdog) {
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2}) std::signal(signal, SIG_IGN);
  // A terminal shows only warnings and errors of this rank, with its number.
  const std::string name = "rank " + std::to_string(link.rank());
  std::ostringstream nowhere;
  std::streambuf* const terminal = std::cerr.rdbuf(nowhere.rdbuf());
  log::set_sink([&name, terminal](log::Level level, std::string_view message) {
    if (level == log::Level::kInfo) return;
    // At once: other ranks write to the same terminal.
    std::ostream(terminal) << name + ": " + std::string(message) + "\n" << std::flush;
  });
  bool has_begun = false;
  Status done;
  try {
    done = follow(context, link, watchdog, has_begun);
  } catch (const std::exception& error) {
    done = error_of(error);
  }
  log::set_sink({});
  std::cerr.rdbuf(terminal);
  if (done.ok()) return end_together(link, 0);
  // The first rank or another one refused to begin; the first one prints the reason.
  if (!has_begun && done.error().code() == ErrorCode::kCancelled) return 1;
  const Status known = link.health();
  link.abort(done.error().message());
  if (is_said_by_others(done.error(), known, link.rank())) return 1;
  return std::move(done).error().with_context(name);
}

}  // namespace sluice::tools
