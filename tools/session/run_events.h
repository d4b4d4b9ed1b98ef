// RunEvents: what a run notes in DIR/events.jsonl (engine/observe/event_log.h). From its
// construction on it hears the process's warnings; those before its beginning follow that.
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

namespace sluice::tools {

class RunEvents {
 public:
  RunEvents();
  ~RunEvents();
  RunEvents(const RunEvents&) = delete;
  RunEvents& operator=(const RunEvents&) = delete;

  struct Begin {
    std::int64_t step = 0;              // the last one done
    std::int64_t steps = 0;             // of the whole run; 0: it is not known
    std::uint64_t tokens_per_step = 0;  // likewise
    std::string family;
    std::uint64_t parameters = 0;
    std::uint64_t trained_parameters = 0;
    std::optional<engine::Flops> flops_per_token;  // nothing: unknown
    const config::Resolved& resolved;
    const std::vector<TierUse>& tiers;
    const PlannedStep* planned = nullptr;  // null: the planner was not asked
    int ranks = 1;
  };
  // A life of the run begins in `path`. What cannot be written is a warning.
  void begin(const std::string& path, const Begin& begin);

  // Before begin(): gets each event's line, too.
  void set_listener(std::function<void(std::string_view line)> listener) {
    heard_->log.set_listener(std::move(listener));
  }

  void after_step(std::int64_t step);
  void checkpoint(const engine::SavedCheckpoint& saved);
  void end(std::string_view how, std::string_view reason = {});

  std::int64_t lost_events() const { return heard_->log.lost_events(); }

 private:
  // What a thread that is just logging may still be in when this is gone.
  struct Heard {
    engine::EventLog log;
    std::atomic<std::int64_t> step = 0;  // the last one done

    std::mutex mutex;
    bool has_begun = false;          // guarded by mutex
    std::vector<std::string> early;  // guarded by mutex: warnings before that

    void hear(std::string_view warning);
  };
  void note(std::string_view kind, std::int64_t step, const std::string& object);

  const std::shared_ptr<Heard> heard_ = std::make_shared<Heard>();
};

}  // namespace sluice::tools
