#include "engine/budget/save_plan.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "aio/text.h"
#include "aio/units.h"

namespace sluice::engine {
namespace {

constexpr double kSecondsAMinute = 60;
constexpr double kNsAMinute = 60e9;
// For saves by time, if a run keeps all checkpoints and its duration is unknown: a week's worth,
// one every half hour.
constexpr std::int64_t kAssumedCheckpoints = 7 * 24 * 2;

std::string whole_seconds(double seconds) {
  return seconds < 1 ? "less than 1 s" : significant(std::round(std::min(seconds, 1e15))) + " s";
}

class Planner {
 public:
  Planner(const config::Run& run, const SaveNeeds& needs) : run_(run), needs_(needs) {
    plan_.every_steps = run.checkpoint_every_steps;
    plan_.at_end = run.checkpoint_at_end;
    plan_.best = run.keep_best;
    plan_.stop = {.checkpoint_bytes = needs.checkpoint_bytes,
                  .save_bytes_per_s = needs.save_bytes_per_s,
                  .step_s = needs.step_s};
  }

  SavePlan plan() {
    if (run_.checkpoint_minutes) {
      plan_.every_minutes = *run_.checkpoint_minutes;
    } else if (plan_.saves()) {
      plan_.every_minutes = kDefaultCheckpointMinutes;
      if (!fits(new_checkpoints(run_.keep_last_checkpoints))) leave_out_time();
    }
    if (!plan_.warning && plan_.saves() && !fits(new_checkpoints(run_.keep_last_checkpoints)))
      plan_.warning = does_not_fit() + "A save fails once the disk is full. " + remedy();
    plan_.schedule = schedule();
    return plan_;
  }

 private:
  struct Count {
    std::int64_t most = 0;
    bool known = true;  // else assumed
  };

  // How many checkpoints the rest of the run writes: at most one per step.
  Count writes() const {
    const std::int64_t before = needs_.first_step - 1;
    const std::int64_t steps = std::max<std::int64_t>(run_.steps - before, 0);
    std::int64_t count = 0;
    const std::int64_t every = plan_.every_steps;
    if (every > 0) count = std::max(run_.steps / every - before / every, std::int64_t{0});
    if (plan_.at_end && steps > 0 && (every == 0 || run_.steps % every != 0)) ++count;
    if (plan_.best && run_.eval_every_steps > 0)
      count += run_.steps / run_.eval_every_steps - before / run_.eval_every_steps;
    if (plan_.every_minutes <= 0) return {.most = count};
    if (needs_.step_s) {
      const double minutes = static_cast<double>(steps) * *needs_.step_s / kSecondsAMinute;
      count += static_cast<std::int64_t>(std::min(minutes / plan_.every_minutes, 1e9));
    } else {
      count += kAssumedCheckpoints;
    }
    return {.most = std::min(count, steps), .known = needs_.step_s || count >= steps};
  }

  // How many more checkpoints than now are on the disk at once. The newest `keep_last`, and the
  // best, stay while the next one is written.
  Count new_checkpoints(std::int64_t keep_last) const {
    const Count count = writes();
    if (keep_last == 0) return count;
    return {.most = std::min(
                count.most,
                std::max<std::int64_t>(keep_last + 1 + best() - needs_.complete_checkpoints, 1))};
  }
  std::int64_t best() const { return plan_.best ? 1 : 0; }

  std::uint64_t room() const {
    const std::uint64_t free =
        needs_.free_bytes.value_or(std::numeric_limits<std::uint64_t>::max());
    return free - std::min(free, needs_.other_bytes);
  }
  bool fits(const Count& checkpoints) const {
    if (!needs_.free_bytes) return true;
    return static_cast<std::uint64_t>(checkpoints.most) <=
           room() / std::max<std::uint64_t>(needs_.checkpoint_bytes, 1);
  }

  // Called only for the default.
  void leave_out_time() {
    const std::string why = does_not_fit();
    const std::string what = remedy();
    plan_.every_minutes = 0;
    const bool rest_fits = fits(new_checkpoints(run_.keep_last_checkpoints));
    plan_.warning = why + "So the run does not save by time" +
                    (rest_fits ? ". " : ", and its other saves fail once the disk is full. ") +
                    what + "; run.checkpoint_minutes=" + significant(kDefaultCheckpointMinutes) +
                    " saves by time nevertheless";
  }

  std::string does_not_fit() const {
    const Count count = new_checkpoints(run_.keep_last_checkpoints);
    const std::string each = format_bytes(needs_.checkpoint_bytes);
    std::string text;
    if (!count.known) {
      text = "run.keep_last 0 keeps every checkpoint of " + each +
             ", and their number is not known when saving by time: they";
    } else if (count.most == 1) {
      text = "a checkpoint of " + each;
    } else {
      text = std::to_string(count.most) + " more checkpoints of " + each + " each (run.keep_last " +
             (run_.keep_last_checkpoints > 0
                  ? std::to_string(run_.keep_last_checkpoints) +
                        (plan_.best ? ", the best, and the one being written)"
                                    : ", and the one being written)")
                  : std::string("0 keeps all)"));
    }
    text += " may not fit on the disk of " + needs_.folder + ", where " +
            format_bytes(*needs_.free_bytes) + " are free";
    if (needs_.other_bytes > 0)
      text += ", less " + format_bytes(needs_.other_bytes) + " for the run's other files";
    return text + ". ";
  }

  // The largest keep_last that would fit; 0: none.
  std::int64_t keep_last_that_fits() const {
    const auto most =
        static_cast<std::int64_t>(room() / std::max<std::uint64_t>(needs_.checkpoint_bytes, 1));
    const std::int64_t keep = most + needs_.complete_checkpoints - 1 - best();
    if (keep < 1 || !fits(new_checkpoints(keep))) return 0;
    const std::int64_t now = run_.keep_last_checkpoints;
    return now == 0 || keep < now ? keep : 0;
  }

  std::string remedy() const {
    const std::int64_t keep = keep_last_that_fits();
    return "Choose an --out on a disk with more space, free some space there" +
           (keep > 0 ? ", or set run.keep_last=" + std::to_string(keep) : std::string());
  }

  std::string schedule() const {
    if (!plan_.saves())
      return "no checkpoints are saved: run.checkpoint_every and run.checkpoint_minutes are 0 or "
             "unset, and run.checkpoint_at_end is false";
    std::string text = "saves ";
    if (plan_.every_steps > 0)
      text += "every " +
              (plan_.every_steps == 1 ? "step" : std::to_string(plan_.every_steps) + " steps") +
              ", ";
    if (plan_.every_minutes > 0) text += "every " + significant(plan_.every_minutes) + " minutes, ";
    if (plan_.best) text += "after each evaluation with the lowest validation loss so far, ";
    if (plan_.at_end) text += "at the end, ";
    text +=
        "and on interruption, to " + needs_.folder + "/checkpoints (" +
        (needs_.in_place ? "the optimizer state stays on NVMe, and " +
                               format_bytes(needs_.checkpoint_bytes) + " of files are written for "
                         : format_bytes(needs_.checkpoint_bytes) + " ") +
        "each, ";
    if (run_.keep_last_checkpoints == 0) return text + "all are kept)";
    const std::string newest = run_.keep_last_checkpoints == 1
                                   ? "the newest"
                                   : "the newest " + std::to_string(run_.keep_last_checkpoints);
    if (plan_.best) return text + newest + " and the best are kept)";
    return text + newest + (run_.keep_last_checkpoints == 1 ? " is kept)" : " are kept)");
  }

  const config::Run& run_;
  const SaveNeeds& needs_;
  SavePlan plan_;
};

}  // namespace

double StopNeeds::seconds() const {
  return step_s.value_or(0) +
         static_cast<double>(checkpoint_bytes) / save_bytes_per_s.value_or(kAssumedSaveBytesPerS);
}

std::string stop_sentence(const StopNeeds& needs) {
  const double save_s = needs.seconds() - needs.step_s.value_or(0);
  const std::string parts =
      "a step" + (needs.step_s ? " (" + whole_seconds(*needs.step_s) + ")" : "") + " and a save (" +
      whole_seconds(save_s) + (needs.save_bytes_per_s ? ")" : " at an assumed 1 GB/s)");
  if (needs.seconds() <= kUsualGraceS)
    return "SIGTERM or SIGUSR1 ends the run after " + parts +
           (needs.step_s ? ": within the usual grace period of 30 s (Kubernetes, Slurm)"
                         : "; the usual grace period is 30 s (Kubernetes, Slurm)");
  return "SIGTERM or SIGUSR1 ends the run after " + parts +
         ": longer than the usual grace period of 30 s, after which it is killed without a save. "
         "Allow more (Kubernetes: terminationGracePeriodSeconds; Slurm: --signal=USR1@" +
         significant(std::ceil(2 * std::min(needs.seconds(), 1e15))) + ")";
}

SavePlan plan_saves(const config::Run& run, const SaveNeeds& needs) {
  return Planner(run, needs).plan();
}

bool SaveClock::is_due(std::int64_t step, std::int64_t now_ns) const {
  if (plan_.every_steps > 0 && step % plan_.every_steps == 0) return true;
  if (plan_.at_end && step == last_step_) return true;
  return plan_.every_minutes > 0 && !goes_on_ &&
         static_cast<double>(now_ns - last_save_ns_) >= plan_.every_minutes * kNsAMinute;
}

}  // namespace sluice::engine
