#include "engine/observe/run_totals.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "aio/units.h"
#include "engine/observe/text_table.h"

namespace sluice::engine {
namespace {

constexpr double kMsPerSecond = 1000;

std::string milliseconds(double ms) { return decimals(ms, 1) + " ms"; }

}  // namespace

void RunTotals::add(const StepMetrics& metrics) {
  if (steps_ == 0)
    first_ = metrics;
  else
    later_step_ms_.push_back(metrics.step_ms);
  last_ = metrics;
  ++steps_;
  skipped_ += metrics.skipped ? 1 : 0;
  // A simulated step has no loss and no gradient.
  if (!metrics.skipped && !std::isnan(metrics.loss)) {
    const bool is_at_0 = metrics.grad_norm == 0;
    at_norm_0_ += is_at_0 ? 1 : 0;
    last_at_norm_0_ = is_at_0 ? last_at_norm_0_ + 1 : 0;
  }
  tokens_ += metrics.tokens_per_s * metrics.step_ms / kMsPerSecond;
  teraflops_ += metrics.tflops_per_s.value_or(0) * metrics.step_ms / kMsPerSecond;
  if (metrics.gpu_utilization_percent) {
    gpu_busy_ms_ += 0.01 * *metrics.gpu_utilization_percent * metrics.step_ms;
    gpu_known_ms_ += metrics.step_ms;
  }
  if (metrics.val_loss) val_loss_ = metrics.val_loss;
  sum_.step_ms += metrics.step_ms;
  sum_.forward_ms += metrics.forward_ms;
  sum_.backward_ms += metrics.backward_ms;
  sum_.update_ms += metrics.update_ms;
  sum_.update_exposed_ms += metrics.update_exposed_ms;
  sum_.nvme_read_bytes += metrics.nvme_read_bytes;
  sum_.nvme_write_bytes += metrics.nvme_write_bytes;
  sum_.h2d_bytes += metrics.h2d_bytes;
  sum_.d2h_bytes += metrics.d2h_bytes;
  sum_.gpu_peak_bytes = std::max(sum_.gpu_peak_bytes, metrics.gpu_peak_bytes);
  sum_.host_pinned_bytes = std::max(sum_.host_pinned_bytes, metrics.host_pinned_bytes);
  sum_.host_rss_bytes = std::max(sum_.host_rss_bytes, metrics.host_rss_bytes);
}

double RunTotals::median_step_ms() const {
  std::vector<double> steps = later_step_ms_;
  const auto middle = steps.begin() + static_cast<std::ptrdiff_t>(steps.size() / 2);
  std::nth_element(steps.begin(), middle, steps.end());
  return *middle;
}

std::optional<double> RunTotals::step_over_plan() const {
  if (planned_step_ms_ <= 0 || later_step_ms_.size() < kLeastCompared) return std::nullopt;
  return median_step_ms() / planned_step_ms_;
}

bool RunTotals::far_from_plan() const {
  const auto ratio = step_over_plan();
  return ratio && (*ratio < kLeastOfPlan || *ratio > kMostOfPlan);
}

std::string RunTotals::closing_table() const {
  if (steps_ == 0) return "";
  const auto steps = static_cast<double>(steps_);
  const double seconds = sum_.step_ms / kMsPerSecond;

  std::vector<TextRow> result = {
      {"steps", std::to_string(steps_) +
                    (skipped_ > 0 ? ", " + std::to_string(skipped_) + " skipped" : "")}};
  if (!std::isnan(first_.loss) || !std::isnan(last_.loss))
    result.push_back({"loss", decimals(first_.loss, 4) + " -> " + decimals(last_.loss, 4)});
  if (at_norm_0_ >= kStepsAtNorm0)
    result.push_back({"gradient norm 0", std::to_string(at_norm_0_) + " of " +
                                             std::to_string(steps_) + " steps: nothing learnt"});
  if (val_loss_) result.push_back({"validation loss", decimals(*val_loss_, 4)});
  result.push_back({"tokens/s", compact(seconds > 0 ? tokens_ / seconds : 0)});
  if (teraflops_ > 0 && seconds > 0) {
    const double tflops_per_s = teraflops_ / seconds;
    result.push_back(
        {"TFLOP/s", decimals(tflops_per_s, tflops_per_s < 0.01 ? 6
                                           : tflops_per_s < 10 ? 3
                                                               : 1) +
                        (limit_tflops_per_s_ > 0
                             ? " (" + decimals(100 * tflops_per_s / limit_tflops_per_s_, 0) +
                                   "% of large products)"
                             : "")});
  }
  if (gpu_known_ms_ > 0)
    result.push_back({"GPU busy", decimals(100 * gpu_busy_ms_ / gpu_known_ms_, 0) + "%"});
  if (const auto ratio = step_over_plan()) {
    result.push_back({"step as planned", milliseconds(planned_step_ms_)});
    result.push_back({"step, median", milliseconds(median_step_ms()) + " (" +
                                          decimals(*ratio, *ratio < 0.1 ? 4 : 2) +
                                          " of the plan)"});
  }

  std::vector<TextRow> times = {{"time", "total", "share", "per step"}};
  const auto time = [&](const char* name, double ms) {
    const double share = sum_.step_ms > 0 ? 100 * ms / sum_.step_ms : 0;
    times.push_back(
        {name, duration(ms / kMsPerSecond), decimals(share, 1) + "%", milliseconds(ms / steps)});
  };
  time("forward", sum_.forward_ms);
  time("backward", sum_.backward_ms);
  time("update, waited for", sum_.update_exposed_ms);
  time("other",
       std::max(0.0, sum_.step_ms - sum_.forward_ms - sum_.backward_ms - sum_.update_exposed_ms));
  time("all", sum_.step_ms);
  time("update, behind compute", std::max(0.0, sum_.update_ms - sum_.update_exposed_ms));

  std::vector<TextRow> traffic = {{"traffic", "total", "per step", "rate"}};
  const auto moved = [&](const char* name, std::uint64_t bytes) {
    if (bytes == 0) return;
    traffic.push_back(
        {name, format_bytes(bytes), format_bytes(bytes / static_cast<std::uint64_t>(steps_)),
         decimals(seconds > 0 ? static_cast<double>(bytes) / 1e9 / seconds : 0, 2) + " GB/s"});
  };
  moved("NVMe read", sum_.nvme_read_bytes);
  moved("NVMe write", sum_.nvme_write_bytes);
  moved("host to device", sum_.h2d_bytes);
  moved("device to host", sum_.d2h_bytes);

  std::vector<TextRow> memory = {{"memory", "peak"}};
  const auto peak = [&](const char* name, std::uint64_t bytes) {
    if (bytes > 0) memory.push_back({name, format_bytes(bytes)});
  };
  peak("GPU", sum_.gpu_peak_bytes);
  peak("host, pinned", sum_.host_pinned_bytes);
  peak("host, resident", sum_.host_rss_bytes);

  std::string text = aligned(result) + "\n" + aligned(times);
  if (traffic.size() > 1) text += "\n" + aligned(traffic);
  if (memory.size() > 1) text += "\n" + aligned(memory);
  return text;
}

}  // namespace sluice::engine
