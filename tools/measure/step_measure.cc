#include "tools/measure/step_measure.h"

#include "aio/clock.h"
#include "aio/machine_info.h"
#include "engine/device/gpu.h"
#include "engine/observe/process_memory.h"
#include "engine/step/cuda_step.h"

namespace sluice::tools {
namespace {

using Traffic = engine::TrainingRun::Traffic;

Traffic difference(const Traffic& after, const Traffic& before) {
  return {.nvme_read_bytes = after.nvme_read_bytes - before.nvme_read_bytes,
          .nvme_write_bytes = after.nvme_write_bytes - before.nvme_write_bytes,
          .h2d_bytes = after.h2d_bytes - before.h2d_bytes,
          .d2h_bytes = after.d2h_bytes - before.d2h_bytes};
}

double seconds_since(std::int64_t begin_ns) {
  return static_cast<double>(SteadyClock().now_ns() - begin_ns) * 1e-9;
}

MeasuredStep take_step(engine::TrainingRun& run) {
  const std::int64_t begin_ns = SteadyClock().now_ns();
  const engine::StepOutcome outcome = run.step();
  return {.seconds = seconds_since(begin_ns),
          .loss = outcome.loss,
          .skipped = outcome.skipped,
          .times = outcome.times};
}

}  // namespace

MemoryUse memory_use(bool cuda) {
  MemoryUse use;
  if (const auto gpu = cuda ? engine::cuda_memory() : std::nullopt)
    use.gpu_used_bytes = gpu->total_bytes - gpu->free_bytes;
  if (const auto memory = engine::process_memory(); memory.ok()) {
    use.resident_bytes = memory->resident_bytes;
    use.peak_resident_bytes = memory->peak_resident_bytes;
    use.pinned_bytes = memory->pinned_bytes;
  }
  use.available_bytes = aio::available_ram_bytes();
  return use;
}

StepMeasurement measure_steps(engine::TrainingRun& run, const StepPlan& plan,
                              const Interrupt& interrupt, const OnStep& on_step) {
  StepMeasurement result;
  for (int step = 1; step < plan.warmup && !interrupt.requested(); ++step) {
    result.warmup_seconds.push_back(take_step(run).seconds);
    on_step("warm-up", step, plan.warmup, result.warmup_seconds.back());
  }
  run.trainer().drain();
  const Traffic before = run.traffic();
  if (!interrupt.requested()) {
    result.warmup_seconds.push_back(take_step(run).seconds);
    ++result.moved_steps;
    on_step("warm-up", plan.warmup, plan.warmup, result.warmup_seconds.back());
  }
  const std::int64_t begin_ns = SteadyClock().now_ns();
  for (int step = 1; step <= plan.steps && !interrupt.requested(); ++step) {
    if (plan.seconds > 0 && step > 1 && seconds_since(begin_ns) >= plan.seconds) break;
    result.steps.push_back(take_step(run));
    ++result.moved_steps;
    on_step("step", step, plan.steps, result.steps.back().seconds);
  }
  result.interrupted = interrupt.requested();
  const std::int64_t drain_begin_ns = SteadyClock().now_ns();
  run.trainer().drain();
  result.drain_seconds = seconds_since(drain_begin_ns);
  result.moved = difference(run.traffic(), before);
  result.memory = memory_use(run.plan().cuda);
  result.gpu_peak_bytes = run.plan().cuda ? engine::cuda_peak_bytes() : 0;
  result.gpu_pinned_bytes = run.plan().cuda ? engine::cuda_pinned_bytes() : 0;
  return result;
}

}  // namespace sluice::tools
