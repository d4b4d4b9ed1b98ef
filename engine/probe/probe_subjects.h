// The subject of each measurement: everything its numbers depend on, as text. Two equal subjects
// stand for the same measurement.
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

// Which way blocks go to the drives.
struct DriveAccess {
  std::string backend;  // "io_uring", "posix"
  int threads = 1;
  bool single_submit = false;
};
// The folders of the options exist: their devices and mounts are looked up. A measurement of a
// different length is a different one: a short one does not count as a full one.
MeasuredOf drive_subject(const aio::MachineInfo& machine, const DriveProbeOptions& options,
                         const DriveAccess& access);

struct GpuIdentity {
  std::string name;
  std::string driver;
};
MeasuredOf gpu_subject(const aio::MachineInfo& machine, const GpuIdentity& gpu,
                       const std::string& torch_version, offload::StateForm form,
                       offload::GradType grad_type);

// Between whom: `gpu` is nothing where host memory is exchanged.
struct LinkSubject {
  offload::RankGroup ranks;
  std::optional<GpuIdentity> gpu;
};
MeasuredOf link_subject(const aio::MachineInfo& machine, const LinkSubject& link);

// What computes the units: a GPU, or some number of CPU threads.
struct UnitSubject {
  ModelShape shape;  // the number of layers does not matter
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
