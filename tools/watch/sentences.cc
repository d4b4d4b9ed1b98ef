#include "tools/watch/sentences.h"

#include "tools/watch/frame.h"
#include "tools/watch/numbers.h"

namespace sluice::watch {

std::string phase_sentence(const RunView& view) {
  switch (view.phase) {
    case RunPhase::kWaiting:
      return "there is no run here yet: " + view.path;
    case RunPhase::kCrashed:
      return "crashed: no end was recorded, and no process is training here";
    case RunPhase::kStopped:
      return "no process is training here, and no end was recorded";
    case RunPhase::kSilent:
      return "nothing new for " + duration_text(view.since_last_s) +
             ", and whether it still runs is not known on this machine";
    case RunPhase::kFailed:
    case RunPhase::kInterrupted:
      return view.facts.end_reason;
    default:
      return {};
  }
}

std::string steps_text(const RunView& view) {
  if (!view.last)
    return view.facts.total_steps ? "0/" + std::to_string(*view.facts.total_steps) : "";
  std::string text = std::to_string(view.last->step);
  if (!view.facts.total_steps || *view.facts.total_steps <= 0) return text;
  const double share =
      static_cast<double>(view.last->step) / static_cast<double>(*view.facts.total_steps);
  return text + "/" + std::to_string(*view.facts.total_steps) + " (" + share_text(share) + ")";
}

std::string holds_the_step(const RunView& view) {
  if (!view.step_ms) return {};
  const double compute = view.parts[0] + view.parts[1];
  const std::string& planned = view.facts.bottleneck;
  std::string text;
  if (view.parts[2] > compute && view.parts[2] > view.parts[3])
    text = "updates " + share_text(view.parts[2]);
  else if (view.parts[3] > compute)
    text = "other " + share_text(view.parts[3]);
  else
    text = "compute " + share_text(compute);
  return text + (planned.empty() ? "" : ", plan " + planned);
}

std::string gpu_text(const RunView& view) {
  std::string text;
  const auto add = [&text](const std::string& more) { text += (text.empty() ? "" : ", ") + more; };
  if (view.gpu_utilization_percent) add(percent_text(view.gpu_utilization_percent));
  if (view.gpu_throttled_percent.value_or(0) > 0)
    add("throttled " + percent_text(view.gpu_throttled_percent));
  if (view.gpu_power_watts) add(number_text(view.gpu_power_watts, 3) + " W");
  return text;
}

std::string plain_line(const RunView& view) {
  std::string text = printable(view.name) + ": " + phase_word(view.phase);
  const auto add = [&](const std::string& more) { text += ", " + more; };
  if (view.last) {
    add("step " + std::to_string(view.last->step) +
        (view.facts.total_steps ? " of " + std::to_string(*view.facts.total_steps) : ""));
    add("loss " + number_text(view.last->value("loss")));
    if (view.val_loss) add("validation " + number_text(view.val_loss));
    add(count_text(view.tokens_per_s) + " tokens/s");
    if (view.left_s) add(duration_text(view.left_s) + " left");
  }
  const std::string sentence = phase_sentence(view);
  if (!sentence.empty()) text += ": " + printable(sentence);
  return text;
}

}  // namespace sluice::watch
