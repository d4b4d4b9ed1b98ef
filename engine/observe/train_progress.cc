#include "engine/observe/train_progress.h"

#include <algorithm>
#include <array>

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
      text += ", of these recompute " + decimals(recompute_ms_, 1) + ", waiting for parameters " +
              decimals(await_params_ms_, 1) + " and inputs " + decimals(await_inputs_ms_, 1);
  }
  if (skipped_ > 0) text += "  skipped " + std::to_string(skipped_);
  return text;
}

}  // namespace sluice::engine
