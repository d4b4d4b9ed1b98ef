#include <array>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "aio/mount_table.h"
#include "engine/comm/nccl_api.h"
#include "tools/doctor/driver_api.h"
#include "tools/doctor/gather_facts.h"
#include "tools/doctor/patience.h"

namespace sluice::doctor {
namespace {

namespace fs = std::filesystem;

constexpr std::chrono::seconds kDriverPatience{30};  // with many GPUs, cuInit takes seconds

// Display and 3D controllers of NVIDIA. WSL has none on its bus.
int nvidia_gpus_on_bus(const std::string& root) {
  int found = 0;
  std::error_code error;
  for (fs::directory_iterator it(root + "/sys/bus/pci/devices", error), end; !error && it != end;
       it.increment(error)) {
    const std::string folder = it->path().string();
    if (aio::read_text(folder + "/vendor").starts_with("0x10de") &&
        aio::read_text(folder + "/class").starts_with("0x03"))
      ++found;
  }
  return found;
}

// "580.95.05" of "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.95.05  Tue ...".
std::string loaded_version(const std::string& root) {
  std::istringstream words(aio::read_text(root + "/proc/driver/nvidia/version"));
  for (std::string word; words >> word && word != "GCC";)
    if (word.find_first_not_of("0123456789.") == std::string::npos &&
        word.find('.') != std::string::npos)
      return word;
  return "";
}

// Adds what NVML alone reports: the driver's version, and free memory without a context.
void add_nvml(const std::string& library, DriverFacts& facts) {
  const auto opened = nvml::open_nvml(library);
  if (!opened.ok() || opened->init() != nvml::kSuccess) return;
  std::array<char, 96> version{};
  if (opened->driver_version(version.data(), version.size() - 1) == nvml::kSuccess)
    facts.version = version.data();
  for (GpuFacts& gpu : facts.gpus) {
    nvml::Device* device = nullptr;
    nvml::Memory memory{};
    if (opened->handle_by_bus_id(gpu.bus_id.c_str(), &device) != nvml::kSuccess ||
        opened->memory(device, &memory) != nvml::kSuccess)
      continue;
    // A MIG instance has a part of the card's memory, of which NVML's device is the whole.
    constexpr std::uint64_t kMostRatio = 2;
    if (memory.total < kMostRatio * gpu.total_bytes) gpu.free_bytes = memory.free;
  }
  opened->shutdown();
}

void add_gpus(const cuda::Api& api, DriverFacts& facts) {
  const auto failed = [&](cuda::Code code) {
    if (code == cuda::kSuccess) return false;
    const char* words = nullptr;
    api.error_string(code, &words);
    facts.error_code = code;
    facts.error = words != nullptr ? words : "error " + std::to_string(code);
    return true;
  };
  int count = 0;
  if (failed(api.init(0)) || failed(api.device_count(&count))) return;
  for (int i = 0; i < count; ++i) {
    cuda::Device device = 0;
    std::array<char, 256> name{};
    std::array<char, 32> bus_id{};
    std::size_t bytes = 0;
    int major = 0;
    int minor = 0;
    if (failed(api.device(&device, i)) || failed(api.name(name.data(), name.size() - 1, device)) ||
        failed(api.total_memory(&bytes, device)) ||
        failed(api.attribute(&major, cuda::kComputeCapabilityMajor, device)) ||
        failed(api.attribute(&minor, cuda::kComputeCapabilityMinor, device)) ||
        failed(api.bus_id(bus_id.data(), bus_id.size() - 1, device)))
      return;
    facts.gpus.push_back({.name = name.data(),
                          .bus_id = bus_id.data(),
                          .compute_capability = 10 * major + minor,
                          .total_bytes = bytes,
                          .free_bytes = {}});
  }
  for (int one = 0; one < count; ++one) {
    for (int other = one + 1; other < count; ++other) {
      int there = 0;
      int back = 0;
      if (api.can_access_peer(&there, one, other) != cuda::kSuccess ||
          api.can_access_peer(&back, other, one) != cuda::kSuccess || there == 0 || back == 0)
        facts.not_peers.emplace_back(one, other);
    }
  }
}

DriverFacts ask_driver(const GatherOptions& options) {
  DriverFacts facts;
  const auto opened = cuda::open_cuda(options.cuda_library);
  facts.has_library = opened.ok();
  if (opened.ok()) {
    opened->driver_version(&facts.cuda_version);
    add_gpus(*opened, facts);
  } else {
    facts.error = opened.error().message();
  }
  add_nvml(options.nvml_library, facts);
  return facts;
}

}  // namespace

DriverFacts driver_facts(const GatherOptions& options) {
  auto asked = within(kDriverPatience, [options] { return ask_driver(options); });
  DriverFacts facts = asked ? std::move(*asked) : DriverFacts();
  facts.answers = asked.has_value();
  facts.pci_gpus = nvidia_gpus_on_bus(options.root);
  if (facts.version.empty()) facts.version = loaded_version(options.root);
  facts.has_visible_devices = options.visible_devices.has_value();
  facts.visible_devices = options.visible_devices.value_or("");
  return facts;
}

NcclFacts nccl_facts(const std::string& torch_folder) {
  std::vector<std::string> libraries;
  if (!torch_folder.empty()) {
    const fs::path torch(torch_folder);
    libraries = {torch.parent_path() / "nvidia/nccl/lib/libnccl.so.2", torch / "lib/libnccl.so.2"};
    std::error_code error;
    std::erase_if(libraries, [&](const std::string& path) { return !fs::exists(path, error); });
  }
  libraries.emplace_back("libnccl.so.2");
  NcclFacts facts{.library = libraries.front()};
  const auto opened = engine::nccl::open_nccl(facts.library);
  int version = 0;
  if (opened.ok() && opened->get_version(&version) == engine::nccl::kSuccess) {
    facts.version = std::to_string(version / 10000) + "." + std::to_string(version / 100 % 100) +
                    "." + std::to_string(version % 100);
  } else {
    facts.problem = opened.ok() ? "ncclGetVersion failed" : opened.error().message();
  }
  return facts;
}

}  // namespace sluice::doctor
