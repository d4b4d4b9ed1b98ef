#include "tools/session/flops_report.h"

#include <ostream>
#include <utility>

#include "aio/small_file.h"

namespace sluice::tools {

engine::FlopsProfile flops_profile_of(engine::TrainingRun& run, int ranks,
                                      engine::PassTotals passes, double limit_flops_per_s) {
  const config::Config& config = run.config();
  return {.micro_batch = config.batch.micro,
          .micro_batches = config.batch.accumulation,
          .sequence_tokens = config.data.sequence_tokens,
          .ranks = ranks,
          .units = engine::unit_flops(run.model(), config.data.sequence_tokens),
          .keeps = run.plan().activations.kept,
          .passes = std::move(passes),
          .limit_flops_per_s = limit_flops_per_s};
}

Status write_flops_profile(const config::FlopsProfiler& wanted, const engine::FlopsProfile& profile,
                           aio::IoQueue& queue, std::ostream& results) {
  const std::string text =
      engine::format_flops_profile(profile, {.module_depth = wanted.module_depth,
                                             .top_modules = wanted.top_modules,
                                             .detailed = wanted.detailed});
  if (!wanted.output_file.empty()) return aio::write_small_file(queue, wanted.output_file, text);
  results << text << std::flush;
  return {};
}

}  // namespace sluice::tools
