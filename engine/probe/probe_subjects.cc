#include "engine/probe/probe_subjects.h"

#include "aio/text.h"
#include "aio/units.h"
#include "engine/observe/text_table.h"
#include "swap/stripe_weights.h"

namespace sluice::engine {
namespace {

constexpr int kSecondsDigits = 3;

std::string cpu_of(const aio::MachineInfo& machine) {
  return machine.cpu + ", " + std::to_string(machine.cores) + " cores";
}

std::string name_of(offload::ParamForm form) {
  switch (form) {
    case offload::ParamForm::kSplit:
      return "split bf16";
    case offload::ParamForm::kFp32:
      return "fp32";
    case offload::ParamForm::kFp32AndFp16:
      break;
  }
  return "fp32 and fp16";
}

std::string name_of(offload::GradType type) {
  switch (type) {
    case offload::GradType::kFp32:
      return "fp32";
    case offload::GradType::kBf16:
      return "bf16";
    case offload::GradType::kFp16:
      break;
  }
  return "fp16";
}

// Adds the types that an AdamW step's time depends on.
void add_types(offload::StateForm form, offload::GradType grad_type, MeasuredOf& of) {
  of["parameters"] = name_of(form.param);
  of["gradients"] = name_of(grad_type);
  // fp32 is omitted, so that cache entries from before other types existed stay valid.
  if (form.moments != offload::ElementType::kFp32) of["moments"] = name_of(form.moments);
}

}  // namespace

MeasuredOf host_subject(const aio::MachineInfo& machine, int threads,
                        const HostProbeOptions& options) {
  MeasuredOf of = {{"cpu", cpu_of(machine)},
                   {"threads", std::to_string(threads)},
                   {"instructions", std::string(to_string(options.isa))}};
  add_types(options.form, options.grad_type, of);
  return of;
}

MeasuredOf drive_subject(const aio::MachineInfo& machine, const DriveProbeOptions& options,
                         const DriveAccess& access) {
  std::string paths;
  for (const std::string& folder : options.folders) {
    const aio::MountInfo mount = aio::mount_info(folder);
    paths += (paths.empty() ? "" : " + ") + mount.file_system + " on " + mount.device + " at " +
             mount.mount_point + " (" + mount.device_number + ")";
  }
  MeasuredOf of = {{"cpu", cpu_of(machine)},
                   {"drives", paths},
                   {"backend", access.backend},
                   {"rings", std::to_string(access.threads)},
                   {"single submit", access.single_submit ? "yes" : "no"},
                   {"block", format_bytes(options.block_bytes)},
                   {"queue depth", std::to_string(options.queue_depth)}};
  const std::size_t count = options.folders.size();
  if (count > 1) {
    of["weights"] =
        swap::to_text(options.weights.empty() ? std::vector<int>(count, 1) : options.weights);
  }
  // The default time is omitted, so that cache entries from before other times existed stay valid.
  const DriveProbeOptions usual;
  if (options.fill_seconds != usual.fill_seconds || options.seconds != usual.seconds) {
    of["seconds"] = decimals(options.fill_seconds, kSecondsDigits) + " filling, " +
                    decimals(options.seconds, kSecondsDigits) + " each";
  }
  return of;
}

MeasuredOf gpu_subject(const aio::MachineInfo& machine, const GpuIdentity& gpu,
                       const std::string& torch_version, offload::StateForm form,
                       offload::GradType grad_type) {
  MeasuredOf of = {{"cpu", cpu_of(machine)},
                   {"gpu", gpu.name},
                   {"driver", gpu.driver},
                   {"libtorch", torch_version}};
  add_types(form, grad_type, of);
  return of;
}

MeasuredOf link_subject(const aio::MachineInfo& machine, const LinkSubject& link) {
  MeasuredOf of = {{"cpu", cpu_of(machine)},
                   {"ranks", std::to_string(link.ranks.world)},
                   {"ranks of a host", std::to_string(link.ranks.local_world)}};
  if (link.ranks.adds_by_host()) of["exchange"] = "by host";
  if (link.gpu) {
    of["gpu"] = link.gpu->name;
    of["driver"] = link.gpu->driver;
  }
  return of;
}

MeasuredOf unit_subject(const UnitSubject& units) {
  // Increase it when a unit's passes use different kernels, or the timer times different passes.
  // Times in the cache are then no longer valid.
  constexpr const char* kPassesRevision = "2";
  const ModelShape& shape = units.shape;
  MeasuredOf of = {{"passes", kPassesRevision},
                   {"device", units.device},
                   {"libtorch", units.torch_version},
                   {"hidden", std::to_string(shape.hidden)},
                   {"heads", std::to_string(shape.heads)},
                   {"feed-forward", std::to_string(shape.ffn())},
                   {"vocabulary", std::to_string(shape.vocab)},
                   {"padded vocabulary", std::to_string(units.padded_vocab)},
                   {"positions", std::to_string(shape.context_tokens)},
                   {"dropout", shape.dropout > 0 ? "yes" : "no"},
                   {"micro-batch", std::to_string(units.pass.micro_batch)},
                   {"tokens", std::to_string(units.pass.tokens)},
                   {"dtype", units.dtype},
                   {"deterministic", units.deterministic ? "yes" : "no"}};
  if (shape.family != kGpt2Family) of["family"] = shape.family;  // other families came later
  if (units.lora.exists()) {
    of["adapters' rank"] = std::to_string(units.lora.rank);
    for (const std::string& target : units.lora.targets) of["adapter of " + target] = "yes";
  }
  // A family chooses its own names, so they get a prefix to avoid collisions with the names above.
  for (const auto& [name, value] : shape.numbers)
    of["model." + name] = significant(value, kAllDigits);
  return of;
}

}  // namespace sluice::engine
