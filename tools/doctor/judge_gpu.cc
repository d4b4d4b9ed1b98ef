// The engine with its LibTorch and CUDA, the driver, and the GPUs.
#include <algorithm>
#include <cstdlib>
#include <string>
#include <vector>

#include "aio/text.h"
#include "aio/units.h"
#include "tools/doctor/driver_api.h"
#include "tools/doctor/judge.h"

namespace sluice::doctor {
namespace {

constexpr int kLeastComputeCapability = 75;  // CUDA 13 supports nothing older
constexpr int kFirstWithBf16 = 80;
constexpr int kFirstWithFp8 = 89;

// "2.11.0" of "2.11.0+cu130".
std::string release_of(const std::string& version) { return version.substr(0, version.find('+')); }

// "2.11" of "2.11.1+cu130": LibTorch's functions are the same within a minor release.
std::string interface_of(const std::string& version) {
  const std::string release = release_of(version);
  return release.substr(0, release.rfind('.'));
}

// 13000 of "13.0.88" and of "2.11.0+cu130"; 0 for torch without CUDA.
int cuda_of_toolkit(const std::string& version) {
  const std::size_t dot = version.find('.');
  if (dot == std::string::npos) return 0;
  return 1000 * std::atoi(version.c_str()) + 10 * std::atoi(version.c_str() + dot + 1);
}
int cuda_of_torch(const std::string& version) {
  const std::size_t at = version.find("+cu");
  if (at == std::string::npos) return 0;
  const int number = std::atoi(version.c_str() + at + 3);  // 130, or 118
  return number / 10 * 1000 + number % 10 * 10;
}

std::string cuda_text(int version) {
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}
std::string capability_text(int capability) {
  return std::to_string(capability / 10) + "." + std::to_string(capability % 10);
}

// The CUDA that a run needs of the driver: that of LibTorch, or else of our kernels.
int needed_cuda(const MachineFacts& facts) {
  const int torch = cuda_of_torch(facts.engine.torch_version.empty() ? facts.build.torch_version
                                                                     : facts.engine.torch_version);
  return std::max(torch, cuda_of_toolkit(facts.build.cuda_version));
}

// "580", the first driver for that CUDA, from the release notes of CUDA; every minor version of
// CUDA works with it.
std::string driver_for(int cuda) {
  switch (cuda / 1000) {
    case 11:
      return "450.80";
    case 12:
      return "525.60";
    case 13:
      return "580";
    default:
      return "";
  }
}

bool machine_has_gpu(const MachineFacts& facts) {
  return facts.driver.pci_gpus > 0 || !facts.driver.gpus.empty();
}

void judge_torch(const MachineFacts& facts, std::vector<Finding>& findings) {
  const EngineFacts& engine = facts.engine;
  const std::string& built = facts.build.torch_version;
  if (built.empty() || !engine.exists) return;
  Finding it{.key = "torch", .subject = "LibTorch"};
  it.values = {
      {"version", engine.torch_version}, {"folder", engine.torch_folder}, {"built_for", built}};
  const std::string install = "Install it (pip install torch==" + release_of(built) +
                              ") where Sluice looks for it, or build Sluice again (tools/setup).";
  if (engine.torch_folder.empty()) {
    it.found = "not found; Sluice was built for " + built;
    add_problem(it, State::kNotPossible, "No model can be trained without it.", install);
    it.is_needed = !engine.starts;
  } else if (engine.torch_version.empty()) {
    it.found = "in " + engine.torch_folder +
               ", which does not say its version; Sluice was built "
               "for " +
               built;
  } else {
    it.found = engine.torch_version + ", in " + engine.torch_folder;
    if (interface_of(engine.torch_version) != interface_of(built)) {
      it.is_needed = !engine.starts;
      add_problem(it, engine.starts ? State::kLimited : State::kNotPossible,
                  "Sluice was built for " + built +
                      ", and LibTorch's functions differ between versions: a run may crash.",
                  install);
    }
  }
  findings.push_back(it);
}

void judge_cuda(const MachineFacts& facts, std::vector<Finding>& findings) {
  if (facts.build.torch_version.empty()) return;
  const std::string& torch =
      facts.engine.torch_version.empty() ? facts.build.torch_version : facts.engine.torch_version;
  const int ours = cuda_of_toolkit(facts.build.cuda_version);
  const int theirs = cuda_of_torch(torch);
  Finding it{.key = "cuda", .subject = "CUDA"};
  it.found = (ours == 0 ? "left out of Sluice" : facts.build.cuda_version + " in Sluice") + ", " +
             (theirs == 0 ? "left out of LibTorch" : cuda_text(theirs) + " in LibTorch");
  it.values = {{"built_with", facts.build.cuda_version},
               {"torch", theirs == 0 ? std::string() : cuda_text(theirs)}};
  if (ours == 0 || theirs == 0) {
    const bool has_gpu = machine_has_gpu(facts);
    it.is_needed = has_gpu;
    add_problem(it, has_gpu ? State::kNotPossible : State::kLimited,
                has_gpu ? "The GPU of this machine cannot be used."
                        : "A GPU could not be used; this machine has none.",
                ours == 0 ? "Install CUDA's nvcc and build again (tools/setup --cuda=on)."
                          : "Install PyPI's torch, which has CUDA, and build again (tools/setup).");
  } else if (ours / 1000 != theirs / 1000) {
    add_problem(it, State::kLimited,
                "Two major versions of CUDA's run time are in one process, which is not tested.",
                "Build Sluice with the toolkit of CUDA " + std::to_string(theirs / 1000) + ".");
  }
  findings.push_back(it);
}

// Why cuInit failed, or found no GPU.
void judge_driver_error(const MachineFacts& facts, Finding& it) {
  const DriverFacts& driver = facts.driver;
  const bool hides = driver.has_visible_devices;
  const bool in_container = !facts.system.container.empty();
  it.found +=
      (it.found.empty() ? "" : "; ") + driver.error +
      (driver.error_code == 0 ? "" : " (CUDA error " + std::to_string(driver.error_code) + ")");
  std::string change;
  switch (driver.error_code) {
    case cuda::kNoDevice:
      change = hides ? "CUDA_VISIBLE_DEVICES=" + driver.visible_devices +
                           " hides the GPUs: unset it, or name one."
               : in_container
                   ? "Give the container the GPU: docker run --gpus all, or nvidia.com/gpu in "
                     "Kubernetes."
                   : "nvidia-smi should list the GPU. Check that /dev/nvidia0 exists and that you "
                     "may open it.";
      break;
    case cuda::kSystemNotReady:
      change = "Start NVIDIA's fabric manager (systemctl start nvidia-fabricmanager).";
      break;
    case cuda::kDriverMismatch:
      change = "The driver was updated while its old module runs: reboot, or load the new module.";
      break;
    case cuda::kStubLibrary:
      change =
          "The toolkit's stub of libcuda.so.1 was found instead of the driver's: take it out "
          "of LD_LIBRARY_PATH.";
      break;
    default:
      change = "Check nvidia-smi; a reboot resets a GPU that does not respond.";
  }
  // No GPU at all is the usual case of a machine that trains on its CPU.
  const bool is_broken = driver.error_code != cuda::kNoDevice || driver.pci_gpus > 0;
  it.is_needed = is_broken && !(hides && driver.error_code == cuda::kNoDevice);
  add_problem(it, is_broken ? State::kNotPossible : State::kLimited,
              "No GPU can be used: runs compute on the CPU.", change);
}

void judge_driver(const MachineFacts& facts, std::vector<Finding>& findings) {
  const DriverFacts& driver = facts.driver;
  Finding it{.key = "driver", .subject = "NVIDIA driver"};
  const int needed = needed_cuda(facts);
  const std::string least = driver_for(needed);
  const std::string wanted =
      least.empty() ? "a driver for CUDA " + cuda_text(needed) : "driver " + least + " or newer";
  it.values = {{"version", driver.version}, {"cuda", cuda_text(driver.cuda_version)}};
  if (!driver.version.empty()) it.found = driver.version;
  if (driver.cuda_version > 0)
    it.found += (it.found.empty() ? "for CUDA up to " : ", for CUDA up to ") +
                cuda_text(driver.cuda_version);
  if (!driver.answers) {
    it.found = "does not answer within 30 s";
    it.is_needed = true;
    add_problem(it, State::kNotPossible, "No GPU can be used, and runs may hang when they begin.",
                "Check dmesg for errors of the GPU (NVRM, Xid); a reboot resets it.");
  } else if (!driver.has_library && driver.pci_gpus == 0) {
    it.found = "none, and no NVIDIA GPU on the bus";
    add_problem(it, State::kLimited,
                "Runs compute on the CPU, which takes many times as long as a GPU.",
                facts.system.wsl != 0
                    ? "If Windows has an NVIDIA GPU, install its driver in Windows, not in WSL."
                    : "");
  } else if (!driver.has_library) {
    it.found = (it.found.empty() ? "none" : it.found) + ", and " +
               counted(driver.pci_gpus, "NVIDIA GPU") + " on the bus (" + driver.error + ")";
    it.is_needed = true;
    add_problem(it, State::kNotPossible, "No GPU can be used: runs compute on the CPU.",
                facts.system.container.empty()
                    ? "Install NVIDIA's " + wanted + "."
                    : "Give the container the GPU and its driver: docker run --gpus all (NVIDIA's "
                      "container toolkit), or nvidia.com/gpu in Kubernetes.");
  } else if (driver.cuda_version > 0 && needed > 0 && driver.cuda_version / 1000 < needed / 1000) {
    it.is_needed = machine_has_gpu(facts);
    add_problem(it, State::kNotPossible,
                "No GPU can be used: CUDA " + cuda_text(needed) + " needs " + wanted + ".",
                facts.system.wsl != 0 ? "Update NVIDIA's driver in Windows, not in WSL."
                                      : "Update NVIDIA's driver, then reboot.");
  } else if (driver.error_code != 0 || driver.gpus.empty()) {
    judge_driver_error(facts, it);
  }
  findings.push_back(it);
}

enum class Kernels : std::uint8_t { kCompiled, kFromPtx, kNone };

// Machine code runs on the same major version with the same minor one or a later one; PTX on all
// that are newer.
Kernels kernels_for(int capability, const std::vector<int>& architectures) {
  Kernels found = Kernels::kNone;
  for (const int architecture : architectures) {
    if (architecture > capability) continue;
    if (architecture / 10 == capability / 10) return Kernels::kCompiled;
    found = Kernels::kFromPtx;
  }
  return found;
}

Finding judge_gpu(const MachineFacts& facts, std::size_t number) {
  const GpuFacts& gpu = facts.driver.gpus[number];
  const int capability = gpu.compute_capability;
  Finding it{.key = "gpu." + std::to_string(number), .subject = "GPU " + std::to_string(number)};
  it.found = gpu.name + ", compute capability " + capability_text(capability) + ", " +
             format_bytes(gpu.total_bytes) +
             (gpu.free_bytes ? " (" + format_bytes(*gpu.free_bytes) + " free)" : "") + "; fp16" +
             (capability >= kFirstWithBf16 ? ", bf16" : ", no bf16") +
             (capability >= kFirstWithFp8 ? ", fp8" : ", no fp8");
  it.values = {{"name", gpu.name},
               {"compute_capability", capability_text(capability)},
               {"total_bytes", static_cast<std::int64_t>(gpu.total_bytes)},
               {"bf16", capability >= kFirstWithBf16},
               {"fp8", capability >= kFirstWithFp8}};
  if (gpu.free_bytes)
    it.values.emplace_back("free_bytes", static_cast<std::int64_t>(*gpu.free_bytes));
  if (capability < kLeastComputeCapability) {
    add_problem(it, State::kNotPossible,
                "This GPU is too old: Sluice and CUDA 13 need compute capability 7.5 (RTX 20, T4) "
                "or newer.",
                "");
    return it;
  }
  const Kernels kernels = kernels_for(capability, facts.build.architectures);
  if (kernels == Kernels::kNone && !facts.build.cuda_version.empty()) {
    add_problem(it, State::kNotPossible, "This build has no kernels for this GPU.",
                "Build again on this machine (tools/setup), or for all GPUs.");
    return it;
  }
  if (kernels == Kernels::kFromPtx)
    it.found += "; kernels are compiled when a program first starts";
  if (capability < kFirstWithBf16)
    add_problem(it, State::kLimited, "bf16 is not possible; fp16 needs a loss scale.",
                "Set fp16.enabled instead of bf16.enabled.");
  if (gpu.free_bytes && *gpu.free_bytes < gpu.total_bytes / 2)
    add_problem(it, State::kLimited,
                "More than half of its memory is in use, and a run gets the rest.",
                "End what uses it (nvidia-smi lists processes), or choose another GPU with "
                "CUDA_VISIBLE_DEVICES.");
  return it;
}

void judge_several(const MachineFacts& facts, std::vector<Finding>& findings) {
  const DriverFacts& driver = facts.driver;
  if (driver.gpus.size() < 2) return;
  Finding it{.key = "p2p", .subject = "peer access"};
  it.values = {{"pairs_without", static_cast<std::int64_t>(driver.not_peers.size())}};
  if (driver.not_peers.empty()) {
    it.found = "between all " + std::to_string(driver.gpus.size()) + " GPUs";
  } else {
    constexpr std::size_t kMostNamed = 4;
    const auto& [one, other] = driver.not_peers.front();
    it.found = "not between GPU " + std::to_string(one) + " and GPU " + std::to_string(other);
    for (std::size_t i = 1; i < std::min(driver.not_peers.size(), kMostNamed); ++i)
      it.found += ", " + std::to_string(driver.not_peers[i].first) + " and " +
                  std::to_string(driver.not_peers[i].second);
    if (driver.not_peers.size() > kMostNamed)
      it.found += ", and " + std::to_string(driver.not_peers.size() - kMostNamed) + " more pairs";
    add_problem(it, State::kLimited,
                "What these GPUs exchange passes through host memory, which is slower.",
                "GeForce cards have no peer access. Others lose it in a virtual machine, or by an "
                "IOMMU.");
  }
  findings.push_back(it);
}

void judge_nccl(const MachineFacts& facts, std::vector<Finding>& findings) {
  if (facts.build.torch_version.empty()) return;
  const NcclFacts& nccl = facts.nccl;
  Finding it{.key = "nccl", .subject = "NCCL"};
  it.values = {{"version", nccl.version}, {"library", nccl.library}};
  if (!nccl.version.empty()) {
    it.found = nccl.version + ", " + nccl.library;
  } else if (facts.driver.gpus.size() < 2) {
    it.found = "not usable; only runs on several GPUs need it";
  } else {
    it.found = nccl.problem;
    add_problem(it, State::kLimited, "Several GPUs cannot train together; one can.",
                "Install PyPI's torch, which brings NCCL.");
  }
  findings.push_back(it);
}

}  // namespace

void judge_engine(const MachineFacts& facts, std::vector<Finding>& findings) {
  const EngineFacts& engine = facts.engine;
  Finding it{.key = "engine", .subject = "sluice-engine", .found = "starts"};
  it.values = {{"path", engine.path}, {"starts", engine.starts}};
  const auto refuse = [&](const std::string& found, const std::string& change) {
    it.found = found;
    it.is_needed = true;
    add_problem(it, State::kNotPossible, "No model can be trained.", change);
  };
  if (facts.build.torch_version.empty()) {
    refuse("left out of this build", "Build with LibTorch: tools/setup without --no-torch.");
  } else if (!engine.exists) {
    refuse(engine.path + " is missing", "Build it (tools/setup), or install Sluice again.");
  } else if (!engine.starts) {
    std::string missing;
    for (const std::string& library : engine.missing_libraries)
      missing += (missing.empty() ? "" : ", ") + library;
    refuse("does not start: " + engine.problem,
           !missing.empty() ? "The loader does not find " + missing +
                                  ". Install what brings it, or build again (tools/setup)."
           : !engine.torch_version.empty() &&
                   interface_of(engine.torch_version) != interface_of(facts.build.torch_version)
               ? "Install the LibTorch that it was built for: see the next line."
           : engine.problem.find("signal 9 ") != std::string::npos
               ? "The kernel ended it, most likely because memory is short."
           : engine.problem.find("signal 4 ") != std::string::npos
               ? "This processor lacks an instruction that it was built with (x86-64-v2)."
               : "Build it again (tools/setup), or install Sluice again.");
  } else if (!engine.warning.empty()) {
    it.found = "starts, with a warning: " + engine.warning;
    const bool has_gpu = machine_has_gpu(facts);
    it.is_needed = has_gpu;
    add_problem(it, has_gpu ? State::kNotPossible : State::kLimited,
                "No GPU can be used: runs compute on the CPU.",
                "Install the libraries that the warning names, or build again (tools/setup).");
  }
  findings.push_back(it);
  judge_torch(facts, findings);
  judge_cuda(facts, findings);
}

void judge_gpus(const MachineFacts& facts, std::vector<Finding>& findings) {
  judge_driver(facts, findings);
  const std::size_t first = findings.size();
  for (std::size_t i = 0; i < facts.driver.gpus.size(); ++i)
    findings.push_back(judge_gpu(facts, i));
  // One usable GPU is enough.
  const auto begin = findings.begin() + static_cast<std::ptrdiff_t>(first);
  if (std::all_of(begin, findings.end(),
                  [](const Finding& it) { return it.state == State::kNotPossible; }))
    std::for_each(begin, findings.end(), [](Finding& it) { it.is_needed = true; });
  judge_several(facts, findings);
  judge_nccl(facts, findings);
}

}  // namespace sluice::doctor
