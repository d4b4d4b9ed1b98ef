#include "engine/preflight/memory_remedies.h"

#include <algorithm>

#include "aio/units.h"

namespace sluice::engine {
namespace {

// A part of a run's memory, and the setting that reduces it.
struct Consumer {
  std::string name;
  std::uint64_t bytes = 0;
  std::string remedy;  // empty: no setting reduces it
};

class Remedies {
 public:
  Remedies(const config::Config& config, const MemoryPlan& plan) : config_(config), plan_(plan) {}

  // The consumers, the largest first.
  std::vector<Consumer> consumers(const std::vector<MemoryLine>& lines) const {
    Consumer activations{.name = "activations", .remedy = activation_remedy()};
    Consumer state{.name = "optimizer state", .remedy = state_remedy()};
    Consumer parameters{.name = "parameters", .remedy = parameter_remedy()};
    Consumer copy{
        .name = "the copy of the state for checkpoints",
        .remedy =
            "pause training while checkpoints are written (run.checkpoint_background: \"off\")"};
    Consumer in_memory{.name = "NVMe paths in memory",
                       .remedy = "give budget.nvme_paths folders on drives"};
    activations.bytes =
        bytes_of(lines, MemoryUse::kActivations) + bytes_of(lines, MemoryUse::kUnitInputs);
    state.bytes = bytes_of(lines, MemoryUse::kState);
    parameters.bytes = bytes_of(lines, MemoryUse::kParameters);
    copy.bytes = bytes_of(lines, MemoryUse::kCheckpointCopy);
    in_memory.bytes = bytes_of(lines, MemoryUse::kFilesInMemory);
    std::vector<Consumer> all = {activations, state, parameters, copy};
    if (in_memory.bytes > 0) all.push_back(in_memory);
    std::erase_if(all, [](const Consumer& it) { return it.remedy.empty(); });
    std::stable_sort(all.begin(), all.end(),
                     [](const Consumer& a, const Consumer& b) { return a.bytes > b.bytes; });
    return all;
  }

 private:
  bool trains() const { return plan_.purpose == RunPurpose::kTraining; }

  // Empty: all state is already on NVMe, or there is none.
  std::string state_remedy() const {
    using config::OffloadDevice;
    const OffloadDevice device = config_.zero.offload_optimizer.device;
    if (!trains() || device == OffloadDevice::kNvme) return "";
    if (plan_.cuda && device == OffloadDevice::kNone)
      return "keep it in RAM (zero_optimization.offload_optimizer.device: \"cpu\"), or on NVMe";
    return "put it on NVMe (zero_optimization.offload_optimizer.device: \"nvme\", "
           "budget.nvme_paths), or keep less of it in memory";
  }

  std::string parameter_remedy() const {
    using config::OffloadDevice;
    const OffloadDevice device = config_.zero.offload_param.device;
    if (device == OffloadDevice::kNvme) return "";
    if (plan_.cuda && device == OffloadDevice::kNone)
      return "keep them in RAM (zero_optimization.offload_param.device: \"cpu\"), or on NVMe";
    return "put them on NVMe (zero_optimization.offload_param.device: \"nvme\", "
           "budget.nvme_paths)";
  }

  std::uint64_t activation_bytes() const {
    return bytes_of(plan_.cuda ? plan_.gpu : plan_.host, MemoryUse::kActivations);
  }

  // The unit inputs that a wave keeps between forward and backward.
  std::uint64_t unit_input_bytes() const {
    if (!trains() || plan_.activations.unit_inputs) return 0;
    const std::int64_t numbers = (config_.model.layers + 2) * config_.model.hidden *
                                 config_.data.sequence_tokens * config_.batch.micro *
                                 plan_.waves.of_a_wave;
    return static_cast<std::uint64_t>(numbers) *
           (plan_.types.form == offload::ParamForm::kFp32 ? 4U : 2U);
  }

  std::string activation_remedy() const {
    const auto& keeps = plan_.activations.kept;
    const std::string micro = std::to_string(config_.batch.micro);
    const std::string accumulation = std::to_string(config_.batch.accumulation);
    if (trains() && std::find(keeps.begin(), keeps.end(), true) != keeps.end())
      return "recompute them (placement.recompute: \"on\")";
    const bool between_passes =
        activation_bytes() > 0 && 2 * unit_input_bytes() > activation_bytes();
    if (between_passes && plan_.cuda)
      return "keep the inputs of units in RAM (placement.unit_inputs_to_cpu: \"on\")";
    const std::string shorter = "use shorter sequences (data.sequence_length, now " +
                                std::to_string(config_.data.sequence_tokens) + ")";
    if (between_passes && plan_.waves.of_a_wave > 1) {
      return "run fewer of a step's micro-batches through the model together "
             "(placement.wave_micro_batches, now " +
             std::to_string(plan_.waves.of_a_wave) + "), with the same results";
    }
    if (config_.batch.micro > 1) {
      return "use smaller micro-batches (train_micro_batch_size_per_gpu, now " + micro + ")" +
             (trains() ? " and proportionally more of them (gradient_accumulation_steps, now " +
                             accumulation + "), with the same results"
                       : "");
    }
    return shorter + " or a smaller model";
  }

  const config::Config& config_;
  const MemoryPlan& plan_;
};

}  // namespace

std::uint64_t bytes_of(const std::vector<MemoryLine>& lines, MemoryUse use) {
  std::uint64_t bytes = 0;
  for (const MemoryLine& line : lines) bytes += line.use == use ? line.bytes : 0;
  return bytes;
}

std::string memory_remedy(const config::Config& config, const MemoryPlan& plan,
                          const std::vector<MemoryLine>& lines, std::uint64_t missing) {
  const std::vector<Consumer> all = Remedies(config, plan).consumers(lines);
  const Consumer& largest = all.front();
  std::string text = largest.bytes > 0 ? format_bytes(largest.bytes) + " of it are " +
                                             largest.name + ": " + largest.remedy
                                       : "To need less, " + largest.remedy;
  if (largest.bytes < missing && all.size() > 1 && all[1].bytes > 0)
    text += "; and " + format_bytes(all[1].bytes) + " are " + all[1].name + ": " + all[1].remedy;
  return text;
}

}  // namespace sluice::engine
