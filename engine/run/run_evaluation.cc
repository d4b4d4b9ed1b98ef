// The validation loss of a TrainingRun, and its memory and traffic.
#include <algorithm>
#include <array>
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
  throw_if_error(lead(Order::kEvaluate));
  const double loss = evaluate_all();
  is_in_step_ = true;
  return loss;
}

// All ranks must make the same number of passes, since all of them gather the parameters.
double TrainingRun::evaluate_all() {
  const SteadyClock clock;
  const TraceScope traced(trace(), clock, TraceTrack::kRun, "validation",
                          {"step", trainer_->state().global_step});
  const std::uint64_t of_a_pass =
      evaluation_group() * static_cast<std::uint64_t>(ranks().part.world);
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

// Evaluates the samples from `first` on, one group on each rank, the first rank's group first.
// Losses are added in micro-batch order, whichever rank computed them.
LossSum TrainingRun::evaluate_pass(std::uint64_t first, LossSum total) {
  const std::uint64_t end = data_->validation_samples();
  const std::uint64_t begin =
      std::min(first + evaluation_group() * static_cast<std::uint64_t>(ranks().part.rank), end);
  std::vector<LossSum> sums = trainer_->evaluate(data_->validation_batch(
      begin, std::min(evaluation_group(), end - begin), compute_device(plan_)));
  sums.resize(plan_.activations.evaluation_micro_batches);  // missing micro-batches add nothing
  std::vector<LossSum> all(sums.size() * static_cast<std::size_t>(ranks().part.world));
  throw_if_error(ranks().link->all_gather(std::as_bytes(std::span(sums)),
                                          std::as_writable_bytes(std::span(all))));
  for (const LossSum& of_micro_batch : all) total += of_micro_batch;
  return total;
}

std::vector<float> TrainingRun::next_logits(std::span<const std::int64_t> tokens, bool begins) {
  if (feed_ == nullptr)
    throw TrainError("the run keeps no keys and values: samples.prompts is not set");
  is_in_step_ = false;
  throw_if_error(lead(Order::kFeed));
  std::vector<float> logits = feed_all({tokens.begin(), tokens.end()}, begins);
  is_in_step_ = true;
  return logits;
}

// The first rank's tokens; the others give none.
std::vector<float> TrainingRun::feed_all(std::vector<std::int64_t> tokens, bool begins) {
  trainer_->drain();
  std::array<std::uint64_t, 2> told = {tokens.size(), begins ? 1U : 0U};
  throw_if_error(ranks().link->broadcast(std::as_writable_bytes(std::span(told)), /*root=*/0));
  tokens.resize(told[0]);
  begins = told[1] != 0;
  throw_if_error(ranks().link->broadcast(std::as_writable_bytes(std::span(tokens)), /*root=*/0));
  if (begins) feed_->restart();
  return feed_->feed(tokens);
}

TrainingRun::Memory TrainingRun::memory() const { return all_ ? all_->memory : parts_->memory(); }

GpuUse TrainingRun::gpu_use() const { return all_ ? all_->gpu_use : own_gpu_use(); }

GpuUse TrainingRun::own_gpu_use() const {
  GpuMonitor* const monitor = parts_->gpu_monitor();
  if (monitor == nullptr) return {};
  if (const std::string problem = monitor->problem(); !problem.empty() && is_first_rank())
    log::info_once("no NVML", "GPU utilisation is not in the metrics: " + problem);
  return monitor->use();
}

TrainingRun::Traffic TrainingRun::traffic() const {
  return all_ ? all_->traffic : parts_->traffic();
}

}  // namespace sluice::engine
