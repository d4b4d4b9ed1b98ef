// RunEvents: the entries of DIR/events.jsonl (engine/observe/event_log.h). It receives the
// process's warnings from its construction on; warnings before begin() are written right after it.
//
// Threads: warnings from any; the rest from one.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "aio/result.h"
#include "engine/config/resolve.h"
#include "engine/model/unit_costs.h"
#include "engine/observe/event_log.h"
#include "engine/run/run_checkpoints.h"
#include "tools/session/run_setup.h"
#include "tools/session/sample_text.h"

namespace sluice::tools {

class RunEvents {
 public:
  RunEvents();
  ~RunEvents();
  RunEvents(const RunEvents&) = delete;
  RunEvents& operator=(const RunEvents&) = delete;

  struct Begin {
    std::int64_t step = 0;              // the last completed step
    std::int64_t steps = 0;             // the whole run's; 0: unknown
    std::uint64_t tokens_per_step = 0;  // 0: unknown
    std::string family;
    std::uint64_t parameters = 0;
    std::uint64_t trained_parameters = 0;
    std::optional<engine::Flops> flops_per_token;  // nullopt: unknown
    const config::Resolved& resolved;
    const std::vector<TierUsage>& tiers;
    const PlannedStep* planned = nullptr;  // null: the planner was not used
    int ranks = 1;
  };
  // Begins an attempt of the run in `path`. A failure to write is a warning.
  void begin(const std::string& path, const Begin& begin);

  // Call before begin(): the listener also gets each event's line.
  void set_listener(std::function<void(std::string_view line)> listener) {
    shared_->log.set_listener(std::move(listener));
  }

  void after_step(std::int64_t step);
  void checkpoint(const engine::SavedCheckpoint& saved);
  void sample(std::int64_t step, const SampleText& sample);
  // `text`: the sentence of the terminal.
  void early_stop(const engine::StoredEvaluations& made, std::string_view text);
  void end(std::string_view how, std::string_view reason = {});

  std::int64_t lost_events() const { return shared_->log.lost_events(); }

 private:
  // Shared with threads that may still be logging when this object is destroyed.
  struct Shared {
    engine::EventLog log;
    std::atomic<std::int64_t> step = 0;  // the last completed step

    std::mutex mutex;
    bool has_begun = false;          // guarded by mutex
    std::vector<std::string> early;  // guarded by mutex: warnings before begin()

    void log_warning(std::string_view warning);
  };
  void note(std::string_view kind, std::int64_t step, const std::string& object);

  const std::shared_ptr<Shared> shared_ = std::make_shared<Shared>();
};

}  // namespace sluice::tools
