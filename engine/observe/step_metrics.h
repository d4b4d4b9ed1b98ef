// StepMetrics: what one training step cost and achieved; a line of metrics.jsonl. With several
// ranks, times are the slowest rank's, bytes moved and host memory are sums, and GPU memory is the
// fullest GPU's. metric_keys.h documents each key.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace sluice::engine {

// XXH3-64 of a unit after a step, for comparing runs (run.hash_units).
struct UnitHashes {
  std::string unit;
  std::uint64_t gradient = 0;    // as given to the optimizer
  std::uint64_t parameters = 0;  // as the next forward uses them

  friend bool operator==(const UnitHashes&, const UnitHashes&) = default;
};

// The schema of the lines that this version writes. It increases when a key is added, removed or
// gets another meaning. 1: lines without "schema", "unix_s" and "tokens_seen". 2: without
// "tflops_per_s" and the keys of wall_clock_breakdown. 3: without NVML's GPU values. 4: without
// those of experts.
inline constexpr std::int64_t kMetricsSchema = 5;

struct StepMetrics {
  std::int64_t step = 0;                     // the first is 1
  std::optional<std::uint64_t> tokens_seen;  // missing here and in the next: schema 1
  std::optional<double> unix_s;
  double loss = 0;  // may be non-finite
  // With experts: their balance loss without its coefficient, if it is trained. By layer, the
  // tokens of the busiest expert, divided by an even share, and the number of experts without any.
  std::optional<double> balance_loss;
  std::vector<double> busiest_expert;
  std::vector<std::int64_t> idle_experts;
  double lr = 0;
  double grad_norm = 0;  // before clipping
  double loss_scale = 1;
  bool skipped = false;  // the gradients overflowed: nothing was updated
  double tokens_per_s = 0;
  std::optional<double> tflops_per_s;  // missing: an older schema, or a Python module
  double step_ms = 0;
  double forward_ms = 0;
  double backward_ms = 0;
  double update_ms = 0;          // in the background or not
  double update_exposed_ms = 0;  // the part that compute waited for
  // With wall_clock_breakdown: recomputation within backward, and waits of compute in both passes.
  std::optional<double> recompute_ms;
  std::optional<double> await_params_ms;
  std::optional<double> await_inputs_ms;
  std::uint64_t nvme_read_bytes = 0;
  std::uint64_t nvme_write_bytes = 0;
  std::uint64_t h2d_bytes = 0;
  std::uint64_t d2h_bytes = 0;
  std::uint64_t gpu_peak_bytes = 0;
  // The GPUs' mean, their sum, and the most throttled GPU's value: see GpuUse.
  std::optional<double> gpu_utilization_percent;
  std::optional<double> gpu_power_watts;
  std::optional<double> gpu_throttled_percent;
  std::uint64_t host_pinned_bytes = 0;
  std::uint64_t host_rss_bytes = 0;
  std::optional<double> val_loss;       // after steps that are followed by an evaluation
  std::vector<UnitHashes> unit_hashes;  // of an applied step, in unit order; else empty

  friend bool operator==(const StepMetrics&, const StepMetrics&) = default;
};

// Calls visit(name, member) for each, in the order of the file; "schema" precedes all of them.
template <typename Metrics, typename Visit>
void for_each_metric(Metrics& metrics, Visit visit) {
  visit("step", metrics.step);
  visit("tokens_seen", metrics.tokens_seen);
  visit("unix_s", metrics.unix_s);
  visit("loss", metrics.loss);
  visit("balance_loss", metrics.balance_loss);
  visit("busiest_expert", metrics.busiest_expert);
  visit("idle_experts", metrics.idle_experts);
  visit("lr", metrics.lr);
  visit("grad_norm", metrics.grad_norm);
  visit("loss_scale", metrics.loss_scale);
  visit("skipped", metrics.skipped);
  visit("tokens_per_s", metrics.tokens_per_s);
  visit("tflops_per_s", metrics.tflops_per_s);
  visit("step_ms", metrics.step_ms);
  visit("forward_ms", metrics.forward_ms);
  visit("backward_ms", metrics.backward_ms);
  visit("update_ms", metrics.update_ms);
  visit("update_exposed_ms", metrics.update_exposed_ms);
  visit("recompute_ms", metrics.recompute_ms);
  visit("await_params_ms", metrics.await_params_ms);
  visit("await_inputs_ms", metrics.await_inputs_ms);
  visit("nvme_read_bytes", metrics.nvme_read_bytes);
  visit("nvme_write_bytes", metrics.nvme_write_bytes);
  visit("h2d_bytes", metrics.h2d_bytes);
  visit("d2h_bytes", metrics.d2h_bytes);
  visit("gpu_peak_bytes", metrics.gpu_peak_bytes);
  visit("gpu_utilization_percent", metrics.gpu_utilization_percent);
  visit("gpu_power_watts", metrics.gpu_power_watts);
  visit("gpu_throttled_percent", metrics.gpu_throttled_percent);
  visit("host_pinned_bytes", metrics.host_pinned_bytes);
  visit("host_rss_bytes", metrics.host_rss_bytes);
  visit("val_loss", metrics.val_loss);
  visit("unit_hashes", metrics.unit_hashes);
}

}  // namespace sluice::engine
