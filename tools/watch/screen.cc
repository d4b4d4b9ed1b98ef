#include "tools/watch/screen.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "tools/watch/frame.h"
#include "tools/watch/numbers.h"
#include "tools/watch/screen_charts.h"
#include "tools/watch/sentences.h"

namespace sluice::watch {
namespace {

constexpr int kLabel = 12;  // width of labels of lines and bars
constexpr std::array<const char*, kPanels> kPanelNames = {"overview", "learning", "speed",
                                                          "memory and drives", "events"};

Style style_of(RunPhase phase) {
  switch (phase) {
    case RunPhase::kFailed:
    case RunPhase::kCrashed:
      return Style::kBad;
    case RunPhase::kInterrupted:
    case RunPhase::kStopped:
    case RunPhase::kSilent:
      return Style::kWarn;
    case RunPhase::kWaiting:
    case RunPhase::kStarting:
      return Style::kQuiet;
    default:
      return Style::kGood;
  }
}

std::string value_text(const RunView& view, const char* column) {
  return number_text(view.last ? view.last->value(column) : std::nullopt);
}

class Painter {
 public:
  Painter(const RunView& view, const report::StepSeries& series, const ScreenOptions& options,
          Frame& frame)
      : view_(view), options_(options), frame_(frame), charts_(view, series, options, frame) {}

  void paint() {
    const int rows = frame_.rows();
    header();
    if (rows < 4) return;
    footer(rows - 1);
    const Area body{.row = 2, .column = 0, .rows = rows - 3, .columns = frame_.columns()};
    if (options_.help) {
      help(body);
    } else if (options_.panel == Panel::kEvents) {
      events(body, options_.scroll);
    } else if (options_.panel == Panel::kLearning) {
      charts_.draw(body, {&charts::kLoss, &charts::kValidation, &charts::kNorm, &charts::kRate});
    } else if (options_.panel == Panel::kSpeed) {
      const int below = std::min(8, body.rows / 2);
      std::vector<const ChartSpec*> specs = {&charts::kSpeed, &charts::kTime};
      if (view_.gpu_utilization_percent) specs.push_back(&charts::kBusy);
      charts_.draw({body.row, 0, body.rows - below, body.columns}, specs);
      column_of(&Painter::resources, {body.row + body.rows - below, 0, below, body.columns});
    } else if (options_.panel == Panel::kMemory) {
      const int below = std::min(10, body.rows / 2);
      charts_.draw({body.row, 0, body.rows - below, body.columns},
                   {&charts::kGpu, &charts::kHost, &charts::kRead, &charts::kWrite});
      two_columns(&Painter::memory, &Painter::drives,
                  {body.row + body.rows - below, 0, below, body.columns});
    } else {
      overview(body);
    }
  }

 private:
  void header() {
    const int columns = frame_.columns();
    int at = frame_.put(0, 0, view_.name, Style::kTitle, std::max(8, columns / 3));
    at = frame_.put(0, at + 2, phase_word(view_.phase), style_of(view_.phase));
    if (options_.paused) at = frame_.put(0, at + 1, "[paused]", Style::kWarn);
    const std::string steps = steps_text(view_);
    if (!steps.empty()) frame_.put(0, at + 2, "step " + steps);
    if (view_.left_s)
      frame_.put_right(0, columns, "left " + duration_text(view_.left_s));
    else if (view_.last && is_over(view_.phase))
      frame_.put_right(0, columns,
                       "last step " + clock_text(view_.last->value("unix_s").value_or(0)),
                       Style::kQuiet);
    const std::string sentence = phase_sentence(view_);
    if (!sentence.empty())
      frame_.put(1, 0, sentence, style_of(view_.phase));
    else if (!view_.notices.empty())
      frame_.put(1, 0, view_.notices.front(), Style::kWarn);
    else
      frame_.put(1, 0, about(), Style::kQuiet);
  }

  std::string about() const {
    std::string text = view_.facts.model;
    const auto add = [&](const std::string& more) {
      if (!more.empty()) text += (text.empty() ? "" : " | ") + more;
    };
    if (view_.facts.ranks.value_or(1) > 1) add(std::to_string(*view_.facts.ranks) + " ranks");
    add(view_.facts.gpu.empty() ? view_.facts.cpu : view_.facts.gpu);
    return text;
  }

  void footer(int row) {
    int at = 0;
    const auto key = [&](const char* name, const char* what) {
      if (at + text_columns(name) + 1 + text_columns(what) > frame_.columns()) return;
      at = frame_.put(row, at, name, Style::kTitle);
      at = frame_.put(row, at + 1, what, Style::kQuiet) + 2;
    };
    key("q", "quit");
    key("?", "help");
    key("p", options_.paused ? "continue" : "pause");
    key("Tab", kPanelNames[static_cast<std::size_t>(options_.panel)]);
    key("+/-", options_.zoom == 0 ? "whole run"
                                  : ("last 1/" + std::to_string(1 << options_.zoom)).c_str());
    key("l", options_.log ? "log" : "linear");
    if (options_.runs > 1)
      key("n", ("run " + std::to_string(options_.run + 1) + "/" + std::to_string(options_.runs))
                   .c_str());
  }

  void help(const Area& area) {
    constexpr std::array<std::array<const char*, 2>, 11> kKeys = {{
        {"q, Ctrl-C", "quit; the run is not affected"},
        {"p, Space", "pause or continue the display"},
        {"Tab, 1 to 5", "overview, learning, speed, memory and drives, events"},
        {"+, -, 0", "zoom: the last half of the steps, twice as many, all"},
        {"l", "losses on a logarithmic scale, and back"},
        {"n, N", "next and previous run"},
        {"Up, Down", "older and newer events"},
        {"?, h", "this help, and back"},
        {"", ""},
        {"", "update wait: the time that compute waited for optimizer updates"},
        {"", "per day: the bytes written in 24 hours at the speed of the last steps"},
    }};
    for (int i = 0; i < static_cast<int>(kKeys.size()) && i < area.rows; ++i) {
      frame_.put(area.row + i, 1, kKeys[static_cast<std::size_t>(i)][0], Style::kTitle);
      frame_.put(area.row + i, 15, kKeys[static_cast<std::size_t>(i)][1]);
    }
  }

  using Column = int (Painter::*)(const Area&);
  void column_of(Column column, const Area& area) { (this->*column)(area); }
  void two_columns(Column left, Column right, const Area& area) {
    if (area.columns < 70) {
      const int used = (this->*left)(area);
      (this->*right)({area.row + used, 0, area.rows - used, area.columns});
      return;
    }
    const int half = area.columns / 2;
    (this->*left)({area.row, 0, area.rows, half - 1});
    (this->*right)({area.row, half, area.rows, area.columns - half});
  }

  // Draws a quiet label and a text as one line of a column. Returns whether there was room.
  bool line(const Area& area, int& used, std::string_view label, std::string_view text,
            Style style = Style::kPlain) {
    if (used >= area.rows) return false;
    frame_.put(area.row + used, area.column, label, Style::kQuiet, kLabel - 1);
    frame_.put(area.row + used, area.column + kLabel, text, style, area.columns - kLabel);
    ++used;
    return true;
  }

  void bar(const Area& area, int& used, std::string_view label, double share, std::string_view text,
           Style style) {
    if (!line(area, used, label, "")) return;
    const int columns = std::clamp(area.columns - kLabel - 21, 4, 40);
    const int full = static_cast<int>(std::lround(std::clamp(share, 0.0, 1.0) * columns));
    for (int i = 0; i < columns; ++i)
      frame_.set(
          area.row + used - 1, area.column + kLabel + i,
          i < full ? (options_.unicode ? U'\u2588' : U'#') : (options_.unicode ? U'\u2591' : U'.'),
          i < full ? style : Style::kQuiet);
    frame_.put(area.row + used - 1, area.column + kLabel + columns + 1, text, Style::kPlain,
               area.columns - kLabel - columns - 1);
  }

  int learning(const Area& area) {
    int used = 0;
    if (view_.val_loss)
      line(area, used, "validation",
           number_text(view_.val_loss) + ", least " + number_text(view_.least_val_loss));
    line(area, used, "rate, norm", value_text(view_, "lr") + ", " + value_text(view_, "grad_norm"));
    if (view_.last && view_.last->value("busiest_expert"))
      line(area, used, "experts",
           "busiest " + value_text(view_, "busiest_expert") + " x even, " +
               value_text(view_, "idle_experts") + " idle");
    if (view_.skipped > 0 || view_.not_finite > 0)
      line(area, used, "skipped",
           std::to_string(view_.skipped) + " steps; loss not finite in " +
               std::to_string(view_.not_finite),
           Style::kWarn);
    line(area, used, "tokens/s",
         count_text(view_.tokens_per_s) + planned(view_.facts.planned_tokens_per_s, count_text));
    line(area, used, "step",
         milliseconds_text(view_.step_ms) +
             (view_.facts.planned_step_s
                  ? planned(*view_.facts.planned_step_s * 1e3, milliseconds_text)
                  : ""));
    return used + parts({area.row + used, area.column, area.rows - used, area.columns});
  }
  static std::string planned(std::optional<double> value,
                             std::string (*text)(std::optional<double>)) {
    return value ? ", planned " + text(value) : "";
  }

  int parts(const Area& area) {
    int used = 0;
    if (!view_.step_ms) return used;
    line(area, used, "limited by", holds_the_step(view_));
    constexpr std::array<Style, 4> kStyles = {Style::kCurve, Style::kCurve, Style::kWarn,
                                              Style::kQuiet};
    for (std::size_t i = 0; i < kPartNames.size(); ++i)
      bar(area, used, kPartNames[i], view_.parts[i],
          share_text(view_.parts[i]) + ", " + milliseconds_text(view_.parts[i] * *view_.step_ms),
          kStyles[i]);
    return used;
  }

  int resources(const Area& area) {
    int used = parts(area);
    used += gpu({area.row + used, area.column, area.rows - used, area.columns});
    for (const auto& [name, share] : view_.facts.busy)
      line(area, used, "planned", name + " busy " + share_text(share) + " of the step",
           Style::kQuiet);
    return used;
  }

  int tiers(const Area& area) {
    int used = 0;
    for (const TierView& tier : view_.tiers) {
      const auto is = tier.used_bytes ? tier.used_bytes : tier.planned_bytes;
      if (!is || (*is <= 0 && tier.budget_bytes.value_or(0) <= 0)) continue;
      const std::string label =
          std::string(tier.name == "cpu" ? "host" : tier.name) + (tier.used_bytes ? "" : ", plan");
      const double share =
          tier.budget_bytes.value_or(0) > 0 ? *is / *tier.budget_bytes : std::nan("");
      if (std::isfinite(share))
        bar(area, used, label, share, bytes_text(is) + " of " + bytes_text(tier.budget_bytes),
            share > 1      ? Style::kBad
            : share > 0.95 ? Style::kWarn
                           : Style::kGood);
      else
        line(area, used, label, bytes_text(is) + planned(tier.planned_bytes, bytes_text));
    }
    return used;
  }

  int memory(const Area& area) {
    int used = tiers(area);
    if (view_.last && view_.last->value("host_pinned_bytes").value_or(0) > 0)
      line(area, used, "pinned", bytes_text(view_.last->value("host_pinned_bytes")));
    return used;
  }

  int gpu(const Area& area) {
    int used = 0;
    const bool is_throttled = view_.gpu_throttled_percent.value_or(0) > 0;
    const std::string text = gpu_text(view_);
    if (view_.gpu_utilization_percent)
      bar(area, used, "GPU busy", *view_.gpu_utilization_percent / 100, text,
          is_throttled ? Style::kWarn : Style::kGood);
    else if (!text.empty())
      line(area, used, "GPU", text, is_throttled ? Style::kWarn : Style::kPlain);
    return used;
  }

  std::string rate_text(const std::optional<double>& bytes_a_step) const {
    if (!bytes_a_step || view_.step_ms.value_or(0) <= 0) return "-";
    return traffic_text(*bytes_a_step / *view_.step_ms * 1e3) + "/s";
  }

  int drives(const Area& area) {
    int used = 0;
    if (view_.written_bytes > 0 || view_.read_bytes > 0) {
      line(area, used, "drives",
           "R " + rate_text(view_.nvme_read_bytes) + ", W " + rate_text(view_.nvme_write_bytes));
      line(area, used, "written",
           traffic_text(view_.written_bytes) + ", " + traffic_text(view_.written_a_day) +
               " per day");
    }
    if (view_.h2d_bytes.value_or(0) > 0 || view_.d2h_bytes.value_or(0) > 0)
      line(area, used, "bus",
           "up " + rate_text(view_.h2d_bytes) + ", down " + rate_text(view_.d2h_bytes));
    return used;
  }

  int machine(const Area& area) {
    int used = tiers(area);
    used += gpu({area.row + used, area.column, area.rows - used, area.columns});
    used += drives({area.row + used, area.column, area.rows - used, area.columns});
    if (view_.facts.last_checkpoint)
      line(area, used, "checkpoint",
           "step " + std::to_string(*view_.facts.last_checkpoint) + " at " +
               clock_text(view_.facts.last_checkpoint_unix_s));
    if (view_.facts.failed_checkpoints > 0)
      line(area, used, "not saved", std::to_string(view_.facts.failed_checkpoints) + " checkpoints",
           Style::kBad);
    if (view_.facts.warnings > 0)
      line(area, used, "warnings", std::to_string(view_.facts.warnings), Style::kWarn);
    return used;
  }

  // Newest first.
  void events(const Area& area, int scroll) {
    int used = 0;
    for (const std::string& notice : view_.notices)
      if (options_.panel == Panel::kEvents && used < area.rows)
        frame_.put(area.row + used++, area.column, notice, Style::kWarn, area.columns);
    const auto& all = view_.facts.events;
    if (all.empty() && used < area.rows && options_.panel == Panel::kEvents)
      frame_.put(area.row + used, area.column, "no events", Style::kQuiet);
    const int count = static_cast<int>(all.size());
    const int first = std::clamp(scroll, 0, std::max(0, count - 1));
    for (int i = first; i < count && used < area.rows; ++i) {
      const EventRow& one = all[static_cast<std::size_t>(count - 1 - i)];
      using Kind = EventRow::Kind;
      const Style style = one.kind == Kind::kBad       ? Style::kBad
                          : one.kind == Kind::kWarning ? Style::kWarn
                                                       : Style::kPlain;
      const int at = frame_.put(area.row + used, area.column,
                                clock_text(one.unix_s) + " step " + std::to_string(one.step) + " ",
                                Style::kQuiet, area.columns);
      frame_.put(area.row + used, at, one.text, style, area.column + area.columns - at);
      ++used;
    }
  }

  void overview(const Area& body) {
    const bool is_tall = body.rows >= 40;
    const int text = is_tall ? 12 : 9;
    const int noted = is_tall ? 8 : body.rows >= 20 ? 3 : 0;
    const int rows = std::max(body.rows - text - noted, std::min(body.rows, 5));
    std::vector<const ChartSpec*> specs = {&charts::kLoss, &charts::kSpeed};
    if (is_tall) specs.insert(specs.end(), {&charts::kNorm, &charts::kTime});
    charts_.draw({body.row, 0, rows, body.columns}, specs);
    const int below = body.row + rows;
    const int left = std::max(0, body.rows - rows - noted);
    two_columns(&Painter::learning, &Painter::machine, {below, 0, left, body.columns});
    events({below + left, 0, noted, body.columns}, 0);
  }

  const RunView& view_;
  const ScreenOptions& options_;
  Frame& frame_;
  ScreenCharts charts_;
};

}  // namespace

Frame draw_screen(const RunView& view, const report::StepSeries& series, int rows, int columns,
                  const ScreenOptions& options) {
  Frame frame(rows, columns);
  Painter(view, series, options, frame).paint();
  return frame;
}

}  // namespace sluice::watch
