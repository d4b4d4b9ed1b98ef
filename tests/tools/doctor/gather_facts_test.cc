#include "tools/doctor/gather_facts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>

#include "tests/aio/backends_under_test.h"
#include "tools/doctor/patience.h"

namespace sluice::doctor {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;
using testing::HasSubstr;

// A folder with /proc, /sys and others as a test wants them.
class Gather : public testing::Test {
 protected:
  ~Gather() override { ::unsetenv("FAKE_DRIVER"); }

  void write(const std::string& name, const std::string& text) const {
    fs::create_directories(fs::path(root() + name).parent_path());
    std::ofstream(root() + name) << text;
  }
  void link(const std::string& name, const std::string& to) const {
    fs::create_directories(fs::path(root() + name).parent_path());
    fs::create_directory_symlink(root() + to, root() + name);
  }
  const std::string& root() const { return folder_.path(); }

  DriverFacts driver(const std::string& settings,
                     const std::string& library = SLUICE_FAKE_DRIVER) const {
    ::setenv("FAKE_DRIVER", settings.c_str(), 1);
    return driver_facts({.cuda_library = library, .nvml_library = library, .root = root()});
  }

  aio::TemporaryFolder folder_;
};

// ---- drives ----------------------------------------------------------------------------------

TEST_F(Gather, FindsTheDriveOfAPartition) {
  write("/sys/devices/nvme/nvme0n1/queue/rotational", "0\n");
  write("/sys/devices/nvme/nvme0n1/nvme0n1p2/partition", "2\n");
  link("/sys/dev/block/259:2", "/sys/devices/nvme/nvme0n1/nvme0n1p2");
  const BlockDevice device = block_device("259:2", root());
  EXPECT_EQ(device.name, "nvme0n1");
  EXPECT_EQ(device.kind, DriveKind::kNvme);
  EXPECT_EQ(block_device("8:1", root()).kind, DriveKind::kUnknown);
}

TEST_F(Gather, FindsTheDriveBelowAVolume) {
  write("/sys/devices/ata/sda/dev", "8:0\n");
  write("/sys/devices/ata/sda/queue/rotational", "1\n");
  link("/sys/dev/block/8:0", "/sys/devices/ata/sda");
  link("/sys/devices/virtual/dm-0/slaves/sda", "/sys/devices/ata/sda");
  link("/sys/dev/block/253:0", "/sys/devices/virtual/dm-0");
  const BlockDevice device = block_device("253:0", root());
  EXPECT_EQ(device.name, "dm-0 on sda");
  EXPECT_EQ(device.kind, DriveKind::kRotational);
}

TEST_F(Gather, TellsKindsOfDrivesApart) {
  write("/sys/devices/ata/sdb/queue/rotational", "0\n");
  write("/sys/devices/virtio/vda/queue/rotational", "1\n");  // virtio says this of every drive
  write("/sys/devices/scsi/sdc/queue/rotational", "1\n");
  write("/sys/devices/scsi/sdc/device/vendor", "QEMU    \n");
  link("/sys/dev/block/8:16", "/sys/devices/ata/sdb");
  link("/sys/dev/block/254:0", "/sys/devices/virtio/vda");
  link("/sys/dev/block/8:32", "/sys/devices/scsi/sdc");
  EXPECT_EQ(block_device("8:16", root()).kind, DriveKind::kSsd);
  EXPECT_EQ(block_device("254:0", root()).kind, DriveKind::kVirtual);
  EXPECT_EQ(block_device("8:32", root()).kind, DriveKind::kVirtual);
}

TEST_F(Gather, LooksAtEachFileSystemOnceAndLeavesNothing) {
  const auto facts = path_facts({.paths = {root(), root()}, .paths_are_named = true});
  ASSERT_EQ(facts.size(), 2U);
  EXPECT_TRUE(facts[0].answers && facts[0].is_named);
  EXPECT_EQ(facts[0].problem, "");
  const auto free = static_cast<double>(fs::space(root()).available);  // other programs write too
  EXPECT_NEAR(static_cast<double>(facts[0].free_bytes), free, 4.0 * kGiB);
  EXPECT_EQ(facts[0].same_as, "");
  EXPECT_EQ(facts[1].same_as, root());
  EXPECT_FALSE(facts[1].read_bytes_per_s);
  EXPECT_TRUE(fs::is_empty(root()));
}

TEST_F(Gather, MeasuresADriveUnlessItIsToBeQuick) {
  EXPECT_FALSE(path_facts({.paths = {root()}, .quick = true})[0].read_bytes_per_s);
  constexpr int kMostTries = 50;  // a busy drive may end no block in so short a time
  for (int i = 0; i < kMostTries; ++i) {
    const PathFacts facts = path_facts({.paths = {root()}})[0];
    if (facts.kind == DriveKind::kMemory) GTEST_SKIP() << "the build folder is in memory";
    if (!facts.read_bytes_per_s) continue;
    EXPECT_GT(*facts.read_bytes_per_s, 0);
    EXPECT_GT(facts.write_bytes_per_s.value_or(0), 0);
    return;
  }
  FAIL() << "no measurement succeeded";
}

TEST_F(Gather, GivesUpWhatHangs) {
  const auto release = std::make_shared<std::atomic<bool>>(false);
  const auto begin = std::chrono::steady_clock::now();
  const auto found = within(std::chrono::milliseconds(50), [release] {
    while (!*release) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    return 1;
  });
  EXPECT_FALSE(found);
  EXPECT_GE(std::chrono::steady_clock::now() - begin, std::chrono::milliseconds(50));
  *release = true;
  EXPECT_EQ(within(std::chrono::minutes(1), [] { return 2; }), 2);
}

// ---- the system ------------------------------------------------------------------------------

TEST_F(Gather, RecognisesWslAndContainers) {
  EXPECT_EQ(system_facts(root()).wsl, 0);
  EXPECT_EQ(system_facts(root()).container, "");
  write("/proc/version", "Linux version 5.15.153.1-microsoft-standard-WSL2 (root@f)");
  EXPECT_EQ(system_facts(root()).wsl, 2);
  write("/proc/version", "Linux version 4.4.0-19041-Microsoft (Microsoft@Microsoft.com)");
  EXPECT_EQ(system_facts(root()).wsl, 1);
  write("/proc/1/cgroup", "0::/kubepods/besteffort/pod1\n");
  EXPECT_EQ(system_facts(root()).container, "kubernetes");
  write("/run/.containerenv", "");
  EXPECT_EQ(system_facts(root()).container, "podman");
  write("/.dockerenv", "");
  EXPECT_EQ(system_facts(root()).container, "docker");
}

TEST_F(Gather, ReadsWhatTheSystemIs) {
  write("/etc/os-release", "ID=debian\nPRETTY_NAME=\"Debian GNU/Linux 12 (bookworm)\"\n");
  write("/sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never\n");
  const SystemFacts facts = system_facts(root());
  EXPECT_EQ(facts.distribution, "Debian GNU/Linux 12 (bookworm)");
  EXPECT_EQ(facts.huge_pages, "madvise");
  EXPECT_FALSE(facts.shared_memory_bytes);
  EXPECT_TRUE(system_facts("").shared_memory_bytes);
}

TEST_F(Gather, CountsNodesThatHaveMemory) {
  write("/sys/devices/system/node/node0/meminfo", "Node 0 MemTotal:       1000 kB\n");
  write("/sys/devices/system/node/node1/meminfo", "Node 1 MemTotal:       1000 kB\n");
  write("/sys/devices/system/node/node2/meminfo", "Node 2 MemTotal:          0 kB\n");
  write("/sys/devices/system/node/has_cpu", "0-1\n");
  EXPECT_EQ(cpu_facts(root()).numa_nodes, 2);
  EXPECT_GE(cpu_facts("").cores, cpu_facts("").allowed_cores);
}

// ---- the engine ------------------------------------------------------------------------------

class GatherEngine : public Gather {
 protected:
  GatherEngine() { write("/bin/sluice-engine", ""); }

  EngineFacts engine(const std::string& list, const ProgramEnd& end) {
    return engine_facts({.torch_version = "2.11.0"}, root() + "/bin/sluice-engine",
                        [&](const std::vector<std::string>& words) {
                          if (words.back() == "--version") return end;
                          EXPECT_EQ(words[1], "LD_TRACE_LOADED_OBJECTS=1");
                          return ProgramEnd{.started = true, .ended_well = true, .output = list};
                        });
  }
};

TEST_F(GatherEngine, ReadsWhichTorchTheLoaderFinds) {
  write("/torch/version.py", "debug = False\n__version__ = '2.10.0+cu128'\ncuda = '12.8'\n");
  const auto list = "\tlinux-vdso.so.1 (0x7ffc)\n\tlibtorch_cpu.so => " + root() +
                    "/x/../torch/lib/libtorch_cpu.so (0x7f12)\n\tlibc10.so => not found\n";
  const EngineFacts facts =
      engine(list, {.started = true, .ended_well = true, .output = "sluice 0.1\nLibTorch: 2.11\n"});
  EXPECT_TRUE(facts.starts);
  EXPECT_EQ(facts.torch_folder, root() + "/torch");
  EXPECT_EQ(facts.torch_version, "2.10.0+cu128");
  EXPECT_THAT(facts.missing_libraries, ElementsAre("libc10.so"));
  EXPECT_EQ(facts.warning, "");
}

TEST_F(GatherEngine, KeepsTheLoadersWords) {
  const EngineFacts facts = engine(
      "\tlibtorch_cpu.so => not found\n",
      {.started = true, .ending = "it ended with exit code 127", .output = "a\nlibtorch: no\n"});
  EXPECT_FALSE(facts.starts);
  EXPECT_EQ(facts.problem, "libtorch: no");
  EXPECT_EQ(facts.torch_folder, "");
  EXPECT_EQ(engine("", {.started = true, .ending = "it ended by signal 4"}).problem,
            "it ended by signal 4");
  EXPECT_EQ(
      engine("", {.started = true,
                  .ended_well = true,
                  .output = "sluice: no GPU can be used; sluice doctor says more\nsluice 0.1.0\n"})
          .warning,
      "no GPU can be used");
}

TEST_F(GatherEngine, IsNotStartedWithATorchThatAWheelRefused) {
  ASSERT_EQ(setenv("SLUICE_TORCH_PROBLEM", "torch 2.12.0 is installed here", 1), 0);
  const EngineFacts facts = engine("", {.started = true, .ended_well = true});
  unsetenv("SLUICE_TORCH_PROBLEM");
  EXPECT_FALSE(facts.starts);
  EXPECT_EQ(facts.problem, "torch 2.12.0 is installed here");
}

TEST_F(GatherEngine, IsNotStartedWhereThereIsNone) {
  const RunProgram never = [](const std::vector<std::string>& /*words*/) {
    ADD_FAILURE();
    return ProgramEnd();
  };
  EXPECT_FALSE(engine_facts({.torch_version = "2.11.0"}, root() + "/absent", never).exists);
  EXPECT_FALSE(engine_facts({}, root() + "/bin/sluice-engine", never).exists);
}

// ---- the driver ------------------------------------------------------------------------------

TEST_F(Gather, AsksTheDriver) {
  const DriverFacts facts = driver("gpus=2,capability=86,total=24,free=20");
  EXPECT_TRUE(facts.answers && facts.has_library);
  EXPECT_EQ(facts.version, "580.95.05");
  EXPECT_EQ(facts.cuda_version, 13000);
  EXPECT_EQ(facts.error_code, 0);
  ASSERT_EQ(facts.gpus.size(), 2U);
  EXPECT_EQ(facts.gpus[1].name, "Fake H100");
  EXPECT_EQ(facts.gpus[1].bus_id, "0000:01:00.0");
  EXPECT_EQ(facts.gpus[1].compute_capability, 86);
  EXPECT_EQ(facts.gpus[1].total_bytes, 24 * kGiB);
  EXPECT_EQ(facts.gpus[1].free_bytes, 20 * kGiB);
  EXPECT_TRUE(facts.not_peers.empty());
  EXPECT_THAT(driver("gpus=3,peers=0").not_peers,
              ElementsAre(std::pair(0, 1), std::pair(0, 2), std::pair(1, 2)));
}

TEST_F(Gather, KeepsTheDriversError) {
  const DriverFacts facts = driver("init=100,cuda=12040,driver=550");
  EXPECT_EQ(facts.error_code, 100);
  EXPECT_EQ(facts.error, "no CUDA-capable device is detected");
  EXPECT_EQ(facts.version, "550.95.05");
  EXPECT_EQ(facts.cuda_version, 12040);
  EXPECT_TRUE(facts.gpus.empty());
}

TEST_F(Gather, LeavesOutFreeMemoryOfTheWholeCardForAPartOfIt) {
  EXPECT_FALSE(driver("total=10,nvml_total=80,free=79").gpus.at(0).free_bytes);
}

TEST_F(Gather, CountsGpusOnTheBusWithoutADriver) {
  const auto device = [&](const std::string& name, const std::string& vendor,
                          const std::string& kind) {
    write("/sys/bus/pci/devices/" + name + "/vendor", vendor + "\n");
    write("/sys/bus/pci/devices/" + name + "/class", kind + "\n");
  };
  device("0000:01:00.0", "0x10de", "0x030200");
  device("0000:01:00.1", "0x10de", "0x040300");  // its sound
  device("0000:02:00.0", "0x8086", "0x030000");
  write("/proc/driver/nvidia/version",
        "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.183.01  Sun May 12\nGCC version:  gcc "
        "12.2.0\n");
  const DriverFacts facts = driver("", "libabsent.so.1");
  EXPECT_FALSE(facts.has_library);
  EXPECT_THAT(facts.error, HasSubstr("libabsent.so.1"));
  EXPECT_EQ(facts.pci_gpus, 1);
  EXPECT_EQ(facts.version, "535.183.01");
}

}  // namespace
}  // namespace sluice::doctor
