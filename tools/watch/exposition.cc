#include "tools/watch/exposition.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <string_view>
#include <utility>

#include "aio/text.h"
#include "engine/observe/metric_keys.h"
#include "tools/watch/frame.h"

namespace sluice::watch {
namespace {

using Runs = std::span<const RunFollower* const>;

// UTF-8 in any locale, with backslash and quotation mark escaped.
std::string label_text(std::string_view text) {
  std::string safe;
  for (const char c : without_controls(text)) {
    if (c == '\\' || c == '"') safe += '\\';
    safe += c;
  }
  return safe;
}

std::string sample_text(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "+Inf" : "-Inf";
  return significant(value, kAllDigits);
}

struct Sample {
  std::string more_labels;  // ",tier=\"gpu\""
  double value = 0;
};

class Text {
 public:
  explicit Text(Runs runs) : runs_(runs) {}

  // Each run has any number of samples; a family without samples is left out.
  void family(const std::string& name, const char* type, const std::string& help,
              const std::function<std::vector<Sample>(const RunFollower&)>& samples) {
    std::string lines;
    for (const RunFollower* const run : runs_)
      for (const Sample& sample : samples(*run))
        lines += name + "{run=\"" + label_text(run->record().name) + "\"" + sample.more_labels +
                 "} " + sample_text(sample.value) + "\n";
    if (lines.empty()) return;
    out_ += "# HELP " + name + " " + help + "\n# TYPE " + name + " " + type + "\n" + lines;
  }
  void gauge(const std::string& name, const std::string& help,
             const std::function<std::optional<double>(const RunView&)>& value) {
    family(name, "gauge", help, one(value));
  }
  void counter(const std::string& name, const std::string& help,
               const std::function<std::optional<double>(const RunView&)>& value) {
    family(name, "counter", help, one(value));
  }
  std::string take() { return std::move(out_); }

 private:
  static std::function<std::vector<Sample>(const RunFollower&)> one(
      const std::function<std::optional<double>(const RunView&)>& value) {
    return [value](const RunFollower& run) {
      const auto found = value(run.view());
      return found ? std::vector<Sample>{{.more_labels = {}, .value = *found}}
                   : std::vector<Sample>{};
    };
  }

  Runs runs_;
  std::string out_;
};

double sum_of(const RunFollower& run, std::size_t column) {
  double sum = 0;
  for (const auto& bucket : run.record().metrics.series.buckets())
    if (bucket.cells[column].count > 0) sum += bucket.cells[column].sum;
  return sum;
}

// Adds a line's keys. Bytes per step are summed over the run; other values are the last line's.
void add_keys(Text& text) {
  for (const engine::MetricKey& key : engine::metric_keys()) {
    const std::size_t column = report::metric_column(key.name);
    if (column >= report::metric_columns().size()) continue;
    std::string name = "sluice_" + std::string(key.name);
    std::string help(key.meaning);
    std::replace(help.begin(), help.end(), '\n', ' ');
    std::replace(help.begin(), help.end(), '\\', '/');
    const bool is_traffic =
        key.unit == "bytes" && (key.meaning.find("during the step") != key.meaning.npos ||
                                key.meaning.starts_with("copied"));
    if (is_traffic) {
      text.family(
          name + "_total", "counter", help + ", summed over the run", [=](const RunFollower& run) {
            return run.view().lines > 0
                       ? std::vector<Sample>{{.more_labels = {}, .value = sum_of(run, column)}}
                       : std::vector<Sample>{};
          });
      continue;
    }
    double factor = 1;
    if (key.unit == "ms") {
      name = name.substr(0, name.size() - 3) + "_seconds";
      factor = 1e-3;
    } else if (key.name == "unix_s") {
      name = "sluice_last_step_timestamp_seconds";
    } else if (key.name == "tokens_per_s") {
      name = "sluice_tokens_per_second";
    } else if (key.unit == "TFLOP/s") {
      name = "sluice_flops_per_second";
      factor = 1e12;
    } else if (key.unit == "%") {
      name = name.substr(0, name.rfind("_percent")) + "_ratio";
      factor = 1e-2;
    } else if (key.unit == "nats a token") {
      name += "_nats";
    }
    const bool is_counter = key.name == "tokens_seen";
    if (is_counter) name += "_total";
    const bool is_val = key.name == "val_loss";
    text.family(name, is_counter ? "counter" : "gauge", help, [=](const RunFollower& run) {
      std::optional<double> value;
      if (is_val)
        value = run.view().val_loss;
      else if (run.view().last)
        value = run.view().last->value(key.name);
      // If the last step's loss is not finite, report NaN rather than the previous loss.
      if (!value && key.name == "loss" && run.view().last) value = std::nan("");
      return value ? std::vector<Sample>{{.more_labels = {}, .value = *value * factor}}
                   : std::vector<Sample>{};
    });
  }
}

void add_tiers(Text& text) {
  const auto of = [](std::optional<double> TierView::*member) {
    return [member](const RunFollower& run) {
      std::vector<Sample> samples;
      for (const TierView& tier : run.view().tiers)
        if (tier.*member)
          samples.push_back(
              {.more_labels = ",tier=\"" + tier.name + "\"", .value = *(tier.*member)});
      return samples;
    };
  };
  text.family("sluice_tier_planned_bytes", "gauge", "what was planned for each tier",
              of(&TierView::planned_bytes));
  text.family("sluice_tier_budget_bytes", "gauge", "the budget of each tier, where it has one",
              of(&TierView::budget_bytes));
}

}  // namespace

std::string exposition(Runs runs) {
  Text text(runs);
  text.gauge("sluice_step", "the last step done", [](const RunView& view) -> std::optional<double> {
    return view.last ? static_cast<double>(view.last->step) : 0;
  });
  text.gauge("sluice_steps", "of the whole run, as it is configured",
             [](const RunView& view) -> std::optional<double> {
               if (!view.facts.total_steps) return std::nullopt;
               return static_cast<double>(*view.facts.total_steps);
             });
  text.family(
      "sluice_state", "gauge", "1 for what the run is doing, 0 for all else",
      [](const RunFollower& run) {
        std::vector<Sample> samples;
        for (int i = 0; i <= static_cast<int>(RunPhase::kStopped); ++i) {
          const auto phase = static_cast<RunPhase>(i);
          samples.push_back({.more_labels = std::string(",state=\"") + phase_word(phase) + "\"",
                             .value = run.view().phase == phase ? 1.0 : 0.0});
        }
        return samples;
      });
  text.gauge("sluice_left_seconds", "until the last step, at the speed of the last steps",
             [](const RunView& view) { return view.left_s; });
  add_keys(text);
  add_tiers(text);
  const auto count = [](std::int64_t RunView::*member) {
    return [member](const RunView& view) -> std::optional<double> {
      return static_cast<double>(view.*member);
    };
  };
  const auto event_count = [](std::int64_t RunFacts::*member) {
    return [member](const RunView& view) -> std::optional<double> {
      return static_cast<double>(view.facts.*member);
    };
  };
  text.counter("sluice_steps_skipped_total", "steps whose gradients overflowed",
               count(&RunView::skipped));
  text.counter("sluice_steps_not_finite_total", "steps whose loss was not finite",
               count(&RunView::not_finite));
  text.counter("sluice_checkpoints_total", "checkpoints saved",
               event_count(&RunFacts::checkpoints));
  text.counter("sluice_checkpoints_failed_total", "checkpoints that could not be saved",
               event_count(&RunFacts::failed_checkpoints));
  text.counter("sluice_warnings_total", "warnings", event_count(&RunFacts::warnings));
  text.counter("sluice_starts_total", "how often the run was begun or continued",
               event_count(&RunFacts::begins));
  text.gauge("sluice_last_checkpoint_timestamp_seconds", "when the last checkpoint was on the disk",
             [](const RunView& view) -> std::optional<double> {
               if (view.facts.last_checkpoint_unix_s <= 0) return std::nullopt;
               return view.facts.last_checkpoint_unix_s;
             });
  return text.take();
}

}  // namespace sluice::watch
