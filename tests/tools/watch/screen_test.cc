// The layout for a terminal, tested without one.
#include "tools/watch/screen.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <clocale>
#include <cmath>
#include <limits>

#include "tools/report/metrics_file.h"
#include "tools/watch/frame.h"
#include "tools/watch/numbers.h"
#include "tools/watch/sentences.h"

namespace sluice::watch {
namespace {

using testing::HasSubstr;

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

class Screen : public testing::Test {
 protected:
  void SetUp() override { std::setlocale(LC_CTYPE, "C.UTF-8"); }
  void TearDown() override { std::setlocale(LC_CTYPE, "C"); }

  static report::StepSeries series(int steps) {
    report::StepSeries made(report::metric_columns().size(), 1200);
    std::vector<double> values(report::metric_columns().size(), kNaN);
    for (int i = 1; i <= steps; ++i) {
      values[report::metric_column("loss")] = 4.0 / i;
      values[report::metric_column("tokens_per_s")] = 1000 + i % 7;
      made.add(i, values);
    }
    return made;
  }
  static RunView view() {
    RunView view{.name = "demo", .path = "runs/demo", .phase = RunPhase::kTraining};
    view.facts.total_steps = 200;
    view.facts.bottleneck = "NVMe read";
    view.facts.events = {
        {.step = 50, .unix_s = 1e9, .kind = EventRow::Kind::kWarning, .text = "busy"}};
    view.last =
        StepLine{.step = 100, .values = std::vector<double>(report::metric_columns().size(), kNaN)};
    view.last->values[report::metric_column("loss")] = 0.04;
    view.step_ms = 100;
    view.parts = {0.3, 0.5, 0.15, 0.05};
    view.nvme_read_bytes = 1e8;
    view.nvme_write_bytes = 1e8;
    view.written_bytes = 1e10;
    view.left_s = 100;
    view.tiers = {{.name = "cpu", .planned_bytes = 1e9, .budget_bytes = 4e9, .used_bytes = 1e9}};
    return view;
  }
};

TEST_F(Screen, ShowsWhatMattersOnASmallTerminal) {
  const std::string text = draw_screen(view(), series(100), 24, 80, {}).text();
  for (const char* const words :
       {"demo  training  step 100/200 (50%)", "left 1 min 40 s", "loss 0.04", "tokens/s",
        "limited by  compute 80%, plan NVMe read", "update wait", "15%, 15 ms",
        "R 1.00 GB/s, W 1.00 GB/s", "954 MiB of 3.73 GiB", "step 50 busy", "q quit"})
    EXPECT_THAT(text, HasSubstr(words));
}

TEST_F(Screen, ShowsTheBusiestExpertOfAModelThatHasSome) {
  RunView experts = view();
  EXPECT_THAT(draw_screen(experts, series(100), 24, 80, {}).text(),
              testing::Not(HasSubstr("experts")));
  experts.last->values[report::metric_column("busiest_expert")] = 2.5;
  experts.last->values[report::metric_column("idle_experts")] = 3;
  EXPECT_THAT(draw_screen(experts, series(100), 24, 80, {}).text(),
              testing::ContainsRegex("experts .*busiest 2.5.* x even, 3 idle"));
}

TEST_F(Screen, ShowsHowBusyGpusAreWhereThatIsKnown) {
  RunView gpu = view();
  EXPECT_THAT(draw_screen(gpu, series(100), 24, 80, {}).text(),
              testing::Not(HasSubstr("GPU busy")));
  gpu.gpu_utilization_percent = 92.4;
  EXPECT_THAT(draw_screen(gpu, series(100), 24, 80, {}).text(),
              testing::ContainsRegex("GPU busy .* 92%"));
  gpu.gpu_power_watts = 640.2;
  gpu.gpu_throttled_percent = 25;
  for (const int columns : {80, 200})
    for (const Panel panel : {Panel::kOverview, Panel::kSpeed})
      EXPECT_THAT(draw_screen(gpu, series(100), 40, columns, {.panel = panel}).text(),
                  testing::ContainsRegex("GPU busy .* 92%, throttled 25%"))
          << columns;
  EXPECT_THAT(draw_screen(gpu, series(100), 40, 200, {}).text(),
              HasSubstr("92%, throttled 25%, 640 W"));
}

TEST_F(Screen, FitsIntoAnyTerminal) {
  RunView hostile = view();
  hostile.name =
      "a\x1b[2J\x9b"
      "31m\xff\r\n\xe2\x80\xae<script>" +
      std::string(500, 'x');
  hostile.notices = {"\x1b]0;title\x07"};
  hostile.facts.events.front().text = hostile.name;
  hostile.parts = {kNaN, 7, -3, std::numeric_limits<double>::infinity()};
  hostile.tiers.front().budget_bytes = 0;
  const report::StepSeries long_series = series(3000);
  for (const int rows : {0, 1, 2, 3, 4, 5, 7, 10, 24, 60})
    for (const int columns : {0, 1, 2, 9, 20, 40, 69, 80, 200})
      for (int panel = 0; panel < kPanels; ++panel)
        for (const bool help : {false, true}) {
          const Frame frame = draw_screen(hostile, long_series, rows, columns,
                                          {.panel = static_cast<Panel>(panel),
                                           .zoom = panel,
                                           .log = help,
                                           .help = help,
                                           .unicode = !help});
          ASSERT_EQ(frame.rows(), rows);
          for (int row = 0; row < rows; ++row)
            for (const Frame::Cell& cell : frame.row(row))
              ASSERT_TRUE(cell.character == 0 ||
                          (cell.character >= 0x20 && cell.character < 0x7f) ||
                          (cell.character >= 0x2580 && cell.character < 0x2900))
                  << static_cast<unsigned>(cell.character);
        }
}

TEST_F(Screen, PutsForeignTextOnOneLineWithoutWhatATerminalObeys) {
  EXPECT_EQ(printable("a\x1b[31mb\nc\td\x7f\xff"), "a?[31mb?c?d??");
  EXPECT_EQ(printable("\xe2\x80\xaetxt.exe"), "?txt.exe");  // it reverses the text after it
  EXPECT_EQ(printable("\xe8\xb7\x91 \xc3\xa9"), "\xe8\xb7\x91 \xc3\xa9");
  Frame frame(1, 4);
  frame.put(0, 0, "\xe8\xb7\x91\xe8\xb7\x91\xe8\xb7\x91");  // two columns each
  EXPECT_EQ(frame.text(), "\xe8\xb7\x91\xe8\xb7\x91\n");
  RunView named = view();
  named.name = "x\x1b[2J\n";
  EXPECT_THAT(plain_line(named),
              testing::StartsWith("x?[2J?: training, step 100 of 200, loss 0.04"));
}

TEST_F(Screen, DrawsARisingCurveFromTheLowerLeftToTheUpperRight) {
  for (const bool unicode : {false, true}) {
    const ChartOptions options{.rows = 5, .columns = 10, .unicode = unicode};
    std::vector<double> values(chart_samples(options));
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = 10 + static_cast<double>(i);
    const ChartPicture picture = draw_chart({values}, options);
    EXPECT_EQ(picture.rows[4][0].curve, 0);
    EXPECT_EQ(picture.rows[0][9].curve, 0);
    EXPECT_EQ(picture.rows[0][0].curve, -1);
    EXPECT_EQ(picture.rows[4][9].curve, -1);
    EXPECT_EQ(picture.least, 10);
    EXPECT_EQ(picture.most, values.back());
    // Without gaps: each column has a part of the curve.
    for (std::size_t column = 0; column < 10; ++column)
      EXPECT_TRUE(std::any_of(picture.rows.begin(), picture.rows.end(),
                              [&](const auto& row) { return row[column].curve == 0; }));
  }
}

TEST_F(Screen, DrawsWhateverNumbersThereAre) {
  constexpr double kMost = std::numeric_limits<double>::max();
  const ChartOptions options{.rows = 3, .columns = 4, .unicode = false};
  EXPECT_FALSE(draw_chart({{kNaN, kNaN, kNaN, kNaN}}, options).most);
  EXPECT_EQ(draw_chart({{5, 5, 5, 5}}, options).most, 5);
  const ChartPicture wide =
      draw_chart({{-kMost, kMost, kNaN, std::numeric_limits<double>::infinity()}}, options);
  EXPECT_EQ(wide.rows[2][0].curve, 0);
  EXPECT_EQ(wide.rows[0][1].curve, 0);
  const ChartPicture log =
      draw_chart({{1, 10, 100, -5}}, {.rows = 3, .columns = 4, .unicode = false, .log = true});
  EXPECT_EQ(log.least, 1);
  EXPECT_EQ(log.rows[1][1].curve, 0);  // 10 is halfway
}

TEST_F(Screen, WritesNumbersAsPeopleReadThem) {
  EXPECT_EQ(count_text(12345), "12.3k");
  EXPECT_EQ(count_text(999'960), "1.00M");
  EXPECT_EQ(bytes_text(1.5 * 1024 * 1024), "1.50 MiB");
  EXPECT_EQ(traffic_text(2e9), "2.00 GB");
  EXPECT_EQ(duration_text(59.96), "60 s");
  EXPECT_EQ(duration_text(3 * 3600 + 120), "3 h 2 min");
  EXPECT_EQ(duration_text(90'000), "1 d 1 h");
  EXPECT_EQ(number_text(0.0001), "1.00e-04");
  for (const double value : {kNaN, std::numeric_limits<double>::infinity()}) {
    EXPECT_EQ(number_text(value), "-");
    EXPECT_EQ(duration_text(value), "-");
    EXPECT_EQ(bytes_text(value), "-");
  }
  EXPECT_EQ(clock_text(1e300), "--:--:--");
}

}  // namespace
}  // namespace sluice::watch
