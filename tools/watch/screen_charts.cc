#include "tools/watch/screen_charts.h"

#include <algorithm>
#include <bit>

#include "tools/watch/numbers.h"
#include "tools/watch/sentences.h"

namespace sluice::watch {
namespace {

constexpr int kGutter = 9;  // for a chart's labels

std::string plain_number(std::optional<double> value) { return number_text(value); }

}  // namespace

namespace charts {
const ChartSpec kLoss{"loss", "loss", plain_number, false, true, "val_loss"};
const ChartSpec kValidation{"validation loss", "val_loss", plain_number, false, true};
const ChartSpec kNorm{"gradient norm", "grad_norm", plain_number, true};
const ChartSpec kRate{"learning rate", "lr", plain_number, true};
const ChartSpec kSpeed{"tokens/s", "tokens_per_s", count_text, true};
const ChartSpec kTime{"step time", "step_ms", milliseconds_text, true};
const ChartSpec kBusy{"GPU busy", "gpu_utilization_percent", percent_text, true};
const ChartSpec kGpu{"GPU memory, peak", "gpu_peak_bytes", bytes_text, true};
const ChartSpec kHost{"host memory", "host_rss_bytes", bytes_text, true};
const ChartSpec kRead{"read from drives per step", "nvme_read_bytes", traffic_text, true};
const ChartSpec kWrite{"written to drives per step", "nvme_write_bytes", traffic_text, true};
}  // namespace charts

ScreenCharts::ScreenCharts(const RunView& view, const report::StepSeries& series,
                           const ScreenOptions& options, Frame& frame)
    : view_(view), series_(series), options_(options), frame_(frame) {
  const auto& buckets = series.buckets();
  if (buckets.empty()) return;
  range_ = {.first = buckets.front().first_step, .last = buckets.back().last_step};
  // Reserve some room while steps arrive: a curve that does not move is not sent again.
  if (!is_over(view.phase)) {
    const auto span = static_cast<std::uint64_t>(range_.last - range_.first);
    const auto unit =
        static_cast<std::int64_t>(std::max(std::bit_ceil(span) / 16, std::uint64_t{1}));
    const std::int64_t end = (range_.last / unit + 1) * unit;
    range_.last = view.facts.total_steps && *view.facts.total_steps > range_.last
                      ? std::min(end, *view.facts.total_steps)
                      : end;
  }
  range_.first = range_.last - ((range_.last - range_.first) >> options.zoom);
}

void ScreenCharts::draw(const Area& area, const std::vector<const ChartSpec*>& specs) {
  const int count = static_cast<int>(specs.size());
  const int across = area.columns >= 70 && count > 1 ? 2 : 1;
  const int down = std::max(1, std::min((count + across - 1) / across, area.rows / 4));
  const int rows = area.rows / down;
  const int columns = area.columns / across;
  for (int i = 0; i < std::min(count, across * down); ++i)
    chart({area.row + i / across * rows, i % across * columns, rows,
           columns - (i % across + 1 < across ? 2 : 0)},
          *specs[static_cast<std::size_t>(i)]);
}

void ScreenCharts::chart(const Area& area, const ChartSpec& spec) {
  if (area.rows < 3 || area.columns < kGutter + 6) return;
  const std::string last = spec.text(view_.last ? view_.last->value(spec.column) : std::nullopt);
  int at = frame_.put(area.row, area.column, spec.title, Style::kTitle, area.columns);
  if (last != "-") at = frame_.put(area.row, at + 1, last, Style::kCurve);
  if (spec.is_loss && view_.val_loss)
    frame_.put(area.row, at + 2, "validation " + number_text(view_.val_loss), Style::kOther,
               area.column + area.columns - at - 2);
  ChartOptions options{.rows = area.rows - 2,
                       .columns = area.columns - kGutter,
                       .unicode = options_.unicode,
                       .log = spec.is_loss && options_.log,
                       .from_zero = spec.from_zero};
  std::vector<std::vector<double>> curves = {
      sampled(series_, report::metric_column(spec.column), range_, chart_samples(options))};
  if (spec.also != nullptr)
    curves.push_back(
        sampled(series_, report::metric_column(spec.also), range_, chart_samples(options)));
  const ChartPicture picture = draw_chart(curves, options);
  if (!picture.most) {
    frame_.put(area.row + 1, area.column, "nothing yet", Style::kQuiet, area.columns);
    return;
  }
  const int left = area.column + kGutter - 1;
  frame_.put_right(area.row + 1, left, spec.text(picture.most), Style::kQuiet);
  if (options.rows > 1)
    frame_.put_right(area.row + options.rows, left, spec.text(picture.least), Style::kQuiet);
  for (int row = 0; row < options.rows; ++row)
    for (int column = 0; column < options.columns; ++column) {
      const ChartCell& cell =
          picture.rows[static_cast<std::size_t>(row)][static_cast<std::size_t>(column)];
      if (cell.curve >= 0)
        frame_.set(area.row + 1 + row, area.column + kGutter + column, cell.character,
                   cell.curve == 0 ? Style::kCurve : Style::kOther);
    }
  const int below = area.row + options.rows + 1;
  const std::string first = std::to_string(range_.first);
  frame_.put(below, area.column + kGutter, first, Style::kQuiet);
  frame_.put_right(below, area.column + area.columns, "step " + std::to_string(range_.last),
                   Style::kQuiet);
}

}  // namespace sluice::watch
