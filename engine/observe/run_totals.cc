#include "engine/observe/run_totals.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <limits>
#include <sstream>
#include <vector>

#include "aio/units.h"
#include "engine/observe/text_table.h"

namespace sluice::engine {
namespace {

constexpr std::int64_t kMeanSteps = 20;  // window of the moving mean: a new step has weight 1/20
constexpr double kMsInSecond = 1000;

std::string scientific(double value) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.2e", value);
  return text.data();
}

}  // namespace

TrainProgress::TrainProgress(const Options& options) : options_(options), line_(options.out) {}

void TrainProgress::average(double& mean, double value) const {
  mean += (value - mean) / static_cast<double>(std::min(steps_, kMeanSteps));
}

void TrainProgress::update(const StepMetrics& metrics) {
  last_ = metrics;
  ++steps_;
  skipped_ += metrics.skipped ? 1 : 0;
  average(step_ms_, metrics.step_ms);
  average(tokens_per_s_, metrics.tokens_per_s);
  average(nvme_read_, static_cast<double>(metrics.nvme_read_bytes));
  average(nvme_write_, static_cast<double>(metrics.nvme_write_bytes));
  average(h2d_, static_cast<double>(metrics.h2d_bytes));
  average(d2h_, static_cast<double>(metrics.d2h_bytes));
  average(forward_ms_, metrics.forward_ms);
  average(backward_ms_, metrics.backward_ms);
  average(update_exposed_ms_, metrics.update_exposed_ms);
  average(recompute_ms_, metrics.recompute_ms.value_or(0));
  average(await_params_ms_, metrics.await_params_ms.value_or(0));
  average(await_inputs_ms_, metrics.await_inputs_ms.value_or(0));
  if (options_.silent) return;
  const bool stays = steps_ == 1 || metrics.step == options_.total_steps ||
                     metrics.step % std::max<std::int64_t>(options_.plain_every_steps, 1) == 0;
  if (!stays) {
    if (line_.due()) line_.show(text());
    return;
  }
  line_.clear();
  std::fprintf(options_.out, "%s\n", text().c_str());
  std::fflush(options_.out);
}

std::string TrainProgress::text() const {
  const auto left =
      static_cast<double>(std::max<std::int64_t>(options_.total_steps - last_.step, 0));
  std::string text = "step " + std::to_string(last_.step) + "/" +
                     std::to_string(options_.total_steps) + "  loss " + decimals(last_.loss, 4);
  text += "  lr " + scientific(last_.lr) + "  norm " + decimals(last_.grad_norm, 2) + "  " +
          compact(tokens_per_s_) + " tok/s  ETA " + duration(left * step_ms_ / kMsInSecond);
  const auto tier = [&](const char* name, double in_bytes, double out_bytes) {
    if (in_bytes + out_bytes <= 0 || step_ms_ <= 0) return;
    const double gb_per_s = 1 / (step_ms_ / kMsInSecond) / 1e9;
    text += std::string("  ") + name + " " + decimals(in_bytes * gb_per_s, 2) + " + " +
            decimals(out_bytes * gb_per_s, 2) + " GB/s";
  };
  tier("NVMe", nvme_read_, nvme_write_);
  tier("bus", h2d_, d2h_);
  if (options_.breakdown) {
    text += "  forward " + decimals(forward_ms_, 1) + " + backward " + decimals(backward_ms_, 1) +
            " + wait for updates " + decimals(update_exposed_ms_, 1) + " of " +
            decimals(step_ms_, 1) + " ms";
    if (last_.recompute_ms)
      text += ", including recompute " + decimals(recompute_ms_, 1) + ", waiting for parameters " +
              decimals(await_params_ms_, 1) + " and inputs " + decimals(await_inputs_ms_, 1);
  }
  if (skipped_ > 0) text += "  skipped " + std::to_string(skipped_);
  return text;
}

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

std::string RunTotals::result_table() const {
  const double seconds = sum_.step_ms / kMsPerSecond;
  std::vector<TextRow> result = {
      {"steps", std::to_string(steps_) +
                    (skipped_ > 0 ? ", " + std::to_string(skipped_) + " skipped" : "")}};
  if (!std::isnan(first_.loss) || !std::isnan(last_.loss))
    result.push_back({"loss", decimals(first_.loss, 4) + " -> " + decimals(last_.loss, 4)});
  if (at_norm_0_ >= kStepsAtNorm0)
    result.push_back({"gradient norm 0", std::to_string(at_norm_0_) + " of " +
                                             std::to_string(steps_) +
                                             " steps: nothing was learnt"});
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
                                   "% of large matrix products)"
                             : "")});
  }
  if (gpu_known_ms_ > 0)
    result.push_back({"GPU busy", decimals(100 * gpu_busy_ms_ / gpu_known_ms_, 0) + "%"});
  if (const auto ratio = step_over_plan()) {
    result.push_back({"step, planned", milliseconds(planned_step_ms_)});
    result.push_back({"step, median", milliseconds(median_step_ms()) + " (" +
                                          decimals(*ratio, *ratio < 0.1 ? 4 : 2) +
                                          " of the plan)"});
  }
  return aligned(result);
}

std::string RunTotals::closing_table() const {
  if (steps_ == 0) return "";
  const auto steps = static_cast<double>(steps_);
  const double seconds = sum_.step_ms / kMsPerSecond;

  std::vector<TextRow> times = {{"time", "total", "share", "per step"}};
  const auto time = [&](const char* name, double ms) {
    const double share = sum_.step_ms > 0 ? 100 * ms / sum_.step_ms : 0;
    times.push_back(
        {name, duration(ms / kMsPerSecond), decimals(share, 1) + "%", milliseconds(ms / steps)});
  };
  time("forward", sum_.forward_ms);
  time("backward", sum_.backward_ms);
  time("update, exposed", sum_.update_exposed_ms);
  time("other",
       std::max(0.0, sum_.step_ms - sum_.forward_ms - sum_.backward_ms - sum_.update_exposed_ms));
  time("all", sum_.step_ms);
  time("update, overlapped with compute", std::max(0.0, sum_.update_ms - sum_.update_exposed_ms));

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

  std::string text = result_table() + "\n" + aligned(times);
  if (traffic.size() > 1) text += "\n" + aligned(traffic);
  if (memory.size() > 1) text += "\n" + aligned(memory);
  return text;
}

namespace {

class StepComparison {
 public:
  StepComparison(const StepMetrics& a, const StepMetrics& b) : difference_{.step = a.step} {
    number("loss", a.loss, b.loss);
    if (a.balance_loss && b.balance_loss) number("balance_loss", *a.balance_loss, *b.balance_loss);
    number("lr", a.lr, b.lr);
    number("grad_norm", a.grad_norm, b.grad_norm);
    number("loss_scale", a.loss_scale, b.loss_scale);
    if (a.skipped != b.skipped)
      difference_.metrics.emplace_back(a.skipped ? "skipped only in the first"
                                                 : "skipped only in the second");
    if (a.val_loss && b.val_loss) number("val_loss", *a.val_loss, *b.val_loss);
    units(a.unit_hashes, b.unit_hashes);
  }

  bool hashed() const { return hashed_; }
  std::optional<RunDifference> difference() const {
    const bool equal = difference_.metrics.empty() && difference_.gradients.empty() &&
                       difference_.parameters.empty();
    return equal ? std::nullopt : std::optional(difference_);
  }

 private:
  // Compares bits, so that a NaN loss on both sides counts as equal.
  void number(const char* name, double a, double b) {
    if (std::bit_cast<std::uint64_t>(a) == std::bit_cast<std::uint64_t>(b)) return;
    std::ostringstream text;
    text.precision(std::numeric_limits<double>::max_digits10);
    text << name << " " << a << " and " << b;
    difference_.metrics.push_back(text.str());
  }

  void units(const std::vector<UnitHashes>& a, const std::vector<UnitHashes>& b) {
    hashed_ = !a.empty() && !b.empty();
    if (!hashed_) return;
    if (a.size() != b.size()) {
      difference_.metrics.push_back(std::to_string(a.size()) + " and " + std::to_string(b.size()) +
                                    " units");
      return;
    }
    for (std::size_t i = 0; i < a.size(); ++i) {
      if (a[i].unit != b[i].unit) {
        difference_.metrics.push_back("unit " + a[i].unit + " and unit " + b[i].unit);
        return;
      }
      if (a[i].gradient != b[i].gradient) difference_.gradients.push_back(a[i].unit);
      if (a[i].parameters != b[i].parameters) difference_.parameters.push_back(a[i].unit);
    }
  }

  RunDifference difference_;
  bool hashed_ = false;
};

}  // namespace

RunComparison compare_runs(std::span<const StepMetrics> a, std::span<const StepMetrics> b) {
  RunComparison result;
  std::size_t i = 0;
  std::size_t k = 0;
  while (i < a.size() && k < b.size() && !result.difference) {
    if (a[i].step != b[k].step) {
      ++(a[i].step < b[k].step ? result.only_in_a : result.only_in_b);
      ++(a[i].step < b[k].step ? i : k);
      continue;
    }
    const StepComparison step(a[i++], b[k++]);
    result.difference = step.difference();
    if (result.difference) break;
    ++result.equal_steps;
    if (step.hashed()) ++result.hashed_steps;
  }
  if (!result.difference) {
    result.only_in_a += static_cast<std::int64_t>(a.size() - i);
    result.only_in_b += static_cast<std::int64_t>(b.size() - k);
  }
  return result;
}

}  // namespace sluice::engine
