// The charts of a screen: a run's metrics over its steps.
//
// Threads: one.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "tools/report/metrics_file.h"
#include "tools/watch/frame.h"
#include "tools/watch/screen.h"

namespace sluice::watch {

struct Area {
  int row = 0;
  int column = 0;
  int rows = 0;
  int columns = 0;
};

struct ChartSpec {
  const char* title;
  const char* column;
  std::string (*text)(std::optional<double>);
  bool from_zero = false;
  bool is_loss = false;
  const char* also = nullptr;  // another column in the same chart
};

namespace charts {
extern const ChartSpec kLoss, kValidation, kNorm, kRate, kSpeed, kTime, kBusy, kGpu, kHost, kRead,
    kWrite;
}

class ScreenCharts {
 public:
  // All must outlive it.
  ScreenCharts(const RunView& view, const report::StepSeries& series, const ScreenOptions& options,
               Frame& frame);

  // In one or two columns, depending on the area's width.
  void draw(const Area& area, const std::vector<const ChartSpec*>& specs);

 private:
  void chart(const Area& area, const ChartSpec& spec);

  const RunView& view_;
  const report::StepSeries& series_;
  const ScreenOptions& options_;
  Frame& frame_;
  StepRange range_;
};

}  // namespace sluice::watch
