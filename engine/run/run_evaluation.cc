// What TrainingRun reports beside its steps: the loss of the validation data, and what it has moved
// and holds.
#include <algorithm>
#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "aio/clock.h"
#include "aio/log.h"
#include "engine/device/gpu.h"
#include "engine/observe/process_memory.h"
#include "engine/run/training_run.h"
#include "engine/step/cuda_step.h"
#include "engine/step/train_error.h"

namespace sluice::engine {

double TrainingRun::evaluate() {
  if (!has_validation()) throw TrainError("there is no validation data to evaluate on");
  is_in_step_ = false;
  must(lead(Order::kEvaluate));
  const double loss = evaluate_all();
  is_in_step_ = true;
  return loss;
}

// All ranks pass as often, since all gather the parameters.
double TrainingRun::evaluate_all() {
  const SteadyClock clock;
  const TraceScope traced(trace_, clock, TraceTrack::kRun, "validation",
                          {"step", trainer_->state().global_step});
  const std::uint64_t of_a_pass =
      evaluation_group() * static_cast<std::uint64_t>(ranks_.part.world);
  LossSum loss;
  for (std::uint64_t first = 0; first < data_->validation_samples(); first += of_a_pass)
    loss = evaluate_pass(first, loss);
  return loss.mean();
}

// Samples of one rank that are evaluated together.
std::uint64_t TrainingRun::evaluation_group() const {
  return plan_.activations.evaluation_micro_batches *
         static_cast<std::uint64_t>(config_.batch.micro);
}

// Of the samples from `first` on, a group of each rank, those of the first rank first.
// Micro-batches are added in their order, whichever ranks they were with.
LossSum TrainingRun::evaluate_pass(std::uint64_t first, LossSum total) {
  const std::uint64_t end = data_->validation_samples();
  const std::uint64_t begin =
      std::min(first + evaluation_group() * static_cast<std::uint64_t>(ranks_.part.rank), end);
  std::vector<LossSum> sums = trainer_->evaluate(data_->validation_batch(
      begin, std::min(evaluation_group(), end - begin), compute_device(plan_)));
  if (!ranks_.is_alone()) {
    sums.resize(plan_.activations.evaluation_micro_batches);  // what there is not adds nothing
    std::vector<LossSum> all(sums.size() * static_cast<std::size_t>(ranks_.part.world));
    must(ranks_.link->all_gather(std::as_bytes(std::span(sums)),
                                 std::as_writable_bytes(std::span(all))));
    sums = std::move(all);
  }
  for (const LossSum& of_micro_batch : sums) total += of_micro_batch;
  return total;
}

std::uint64_t TrainingRun::gpu_pinned_bytes() const { return plan_.cuda ? cuda_pinned_bytes() : 0; }

std::uint64_t TrainingRun::gpu_peak_bytes() const { return plan_.cuda ? cuda_peak_bytes() : 0; }

TrainingRun::Memory TrainingRun::memory() const {
  return ranks_.is_alone() ? own_memory() : all_memory_;
}

// Where the kernel does not say, it is 0; and it does not count what a GPU's driver pins.
TrainingRun::Memory TrainingRun::own_memory() const {
  const auto asked = process_memory();
  const ProcessMemory memory = asked.ok() ? *asked : ProcessMemory();
  return {.gpu_peak_bytes = gpu_peak_bytes(),
          .pinned_bytes = std::max(memory.pinned_bytes, gpu_pinned_bytes()),
          .resident_bytes = memory.resident_bytes};
}

GpuUse TrainingRun::gpu_use() const { return ranks_.is_alone() ? own_gpu_use() : all_gpu_use_; }

GpuUse TrainingRun::own_gpu_use() const {
  if (!gpu_monitor_) return {};
  if (const std::string problem = gpu_monitor_->problem(); !problem.empty() && is_first_rank())
    log::info_once("no NVML", "metrics have no utilisation of the GPU: " + problem);
  return gpu_monitor_->use();
}

TrainingRun::Traffic TrainingRun::traffic() const {
  return ranks_.is_alone() ? own_traffic() : all_traffic_;
}

TrainingRun::Traffic TrainingRun::own_traffic() const {
  const offload::ParamStats params = parameters_->stats();
  const swap::SwapStats state = optimizer_->stats();
  const offload::ParamStats of_base = base() != nullptr ? base()->stats() : offload::ParamStats{};
  const auto inputs = spill_ != nullptr ? spill_->stats() : offload::InputSpill::Stats{};
  return {.nvme_read_bytes =
              params.bytes_read + state.bytes_read + of_base.bytes_read + inputs.bytes_read,
          .nvme_write_bytes = params.bytes_written + state.bytes_written + of_base.bytes_written +
                              inputs.bytes_written,
          .h2d_bytes = parameters_->units().copied_bytes() + gradients_->fetched_bytes() +
                       unit_inputs_->from_host_bytes(),
          .d2h_bytes = gradients_->copied_bytes() + unit_inputs_->to_host_bytes()};
}

}  // namespace sluice::engine
