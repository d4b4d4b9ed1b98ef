// The subject of each measurement: everything that its numbers depend on, as text. Equal subjects
// mean the same measurement.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "aio/machine_info.h"
#include "engine/model/model_shape.h"
#include "engine/model/unit_costs.h"
#include "engine/probe/drive_probe.h"
#include "engine/probe/host_probe.h"
#include "engine/probe/measurement.h"
#include "offload/planner/link_speeds.h"

namespace sluice::engine {

MeasuredOf host_subject(const aio::MachineInfo& machine, int threads,
                        const HostProbeOptions& options);

// How blocks are sent to the drives.
struct DriveAccess {
  std::string backend;  // "io_uring", "posix"
  int threads = 1;
  bool single_submit = false;
};
// The folders in the options must exist: their devices and mounts are looked up. Measurements of
// different lengths have different subjects, so that a short one does not count as a full one.
MeasuredOf drive_subject(const aio::MachineInfo& machine, const DriveProbeOptions& options,
                         const DriveAccess& access);

struct GpuIdentity {
  std::string name;
  std::string driver;
};
MeasuredOf gpu_subject(const aio::MachineInfo& machine, const GpuIdentity& gpu,
                       const std::string& torch_version, offload::StateForm form,
                       offload::GradType grad_type);

// The ranks of a link; `gpu` is nullopt if host memory is exchanged.
struct LinkSubject {
  offload::Topology ranks;
  std::optional<GpuIdentity> gpu;
};
MeasuredOf link_subject(const aio::MachineInfo& machine, const LinkSubject& link);

// The device that computes the units: a GPU, or a number of CPU threads.
struct UnitSubject {
  ModelShape shape;  // the number of layers is ignored
  LoraRecipe lora;
  std::int64_t padded_vocab = 0;
  PassShape pass;
  std::string dtype;
  std::string device;
  std::string torch_version;
  bool deterministic = false;
};
MeasuredOf unit_subject(const UnitSubject& units);

}  // namespace sluice::engine
