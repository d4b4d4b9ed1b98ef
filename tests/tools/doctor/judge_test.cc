#include "tools/doctor/judge.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cerrno>
#include <string>
#include <vector>

#include "aio/units.h"

namespace sluice::doctor {
namespace {

using testing::AllOf;
using testing::ContainsRegex;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

MachineFacts good_machine() {
  MachineFacts facts;
  facts.build = {.torch_version = "2.11.0+cu130",
                 .cuda_version = "13.0.88",
                 .architectures = {75, 80, 86, 89, 90}};
  facts.engine = {.path = "/opt/bin/sluice-engine",
                  .exists = true,
                  .starts = true,
                  .torch_folder = "/opt/torch",
                  .torch_version = "2.11.0+cu130"};
  facts.driver.pci_gpus = 1;
  facts.driver.has_library = true;
  facts.driver.version = "580.95.05";
  facts.driver.cuda_version = 13000;
  facts.driver.gpus = {{.name = "H100",
                        .bus_id = "0000:01:00.0",
                        .compute_capability = 90,
                        .total_bytes = 80 * kGiB,
                        .free_bytes = 79 * kGiB}};
  facts.nccl = {.library = "/opt/nccl/libnccl.so.2", .version = "2.28.9"};
  facts.cpu = {.model = "Some CPU", .cores = 16, .allowed_cores = 16};
  facts.memory = {.total_bytes = 64 * kGiB, .available_bytes = 60 * kGiB};
  facts.limits.open_files = 1048576;
  facts.system = {.kernel = "6.1.0",
                  .distribution = "Debian 12",
                  .huge_pages = "madvise",
                  .shared_memory_bytes = 32 * kGiB};
  PathFacts path;
  path.path = "/nvme";
  path.file_system = "xfs";
  path.device = "nvme0n1";
  path.kind = DriveKind::kNvme;
  path.direct = true;
  path.free_bytes = 900 * kGiB;
  path.read_bytes_per_s = 6e9;
  path.write_bytes_per_s = 3e9;
  facts.paths = {path};
  return facts;
}

class Judge : public testing::Test {
 protected:
  // The finding of that key, of facts that the test has changed.
  Finding finding(const std::string& key) const {
    const auto all = judge(facts_);
    const auto it =
        std::find_if(all.begin(), all.end(), [&](const Finding& one) { return one.key == key; });
    EXPECT_NE(it, all.end()) << key;
    return it == all.end() ? Finding() : *it;
  }
  bool trains() const { return can_train(judge(facts_)); }
  void expect(const std::string& key, State state, bool trains_then, const std::string& cost,
              const std::string& change = "") const {
    const Finding it = finding(key);
    EXPECT_EQ(it.state, state) << it.found;
    EXPECT_THAT(it.cost, HasSubstr(cost));
    EXPECT_THAT(it.change, HasSubstr(change));
    EXPECT_EQ(trains(), trains_then);
  }

  MachineFacts facts_ = good_machine();
};

TEST_F(Judge, FindsNothingToMendOnAGoodMachine) {
  const auto all = judge(facts_);
  std::vector<std::string> keys;
  for (const Finding& it : all) {
    EXPECT_EQ(it.state, State::kGood) << it.key << ": " << it.cost;
    EXPECT_THAT(it.found, Not(IsEmpty())) << it.key;
    EXPECT_THAT(it.cost + it.change, IsEmpty()) << it.key;
    keys.push_back(it.key);
  }
  EXPECT_THAT(keys,
              testing::ElementsAre("engine", "torch", "cuda", "driver", "gpu.0", "nccl", "cpu",
                                   "instructions", "numa", "memory", "memlock", "open_files",
                                   "io_uring", "huge_pages", "shared_memory", "system", "path.0"));
  EXPECT_TRUE(can_train(all));
  EXPECT_THAT(finding("gpu.0").found, AllOf(HasSubstr("9.0"), HasSubstr("80G"), HasSubstr("bf16"),
                                            HasSubstr("fp8"), Not(HasSubstr("no "))));
}

// ---- engine ----------------------------------------------------------------------------------

TEST_F(Judge, NeedsAnEngineThatStarts) {
  facts_.engine.starts = false;
  facts_.engine.problem = "libtorch_cpu.so: cannot open shared object file";
  facts_.engine.missing_libraries = {"libtorch_cpu.so", "libc10.so"};
  facts_.engine.torch_folder = facts_.engine.torch_version = "";
  expect("engine", State::kNotPossible, false, "No model can be trained",
         "does not find libtorch_cpu.so, libc10.so");
  EXPECT_THAT(finding("engine").found, HasSubstr("shared object file"));
  expect("torch", State::kNotPossible, false, "No model", "pip install torch==2.11.0");

  facts_.engine.missing_libraries.clear();
  expect("engine", State::kNotPossible, false, "No model", "Build it again");
  facts_.engine.problem = "it ended by signal 9 (Killed)";
  expect("engine", State::kNotPossible, false, "No model", "memory is short");
  facts_.engine.problem = "it ended by signal 4 (Illegal instruction)";
  expect("engine", State::kNotPossible, false, "No model", "processor");

  facts_.engine = {.path = "/opt/bin/sluice-engine"};
  expect("engine", State::kNotPossible, false, "No model", "tools/setup");
  EXPECT_THAT(finding("engine").found, HasSubstr("/opt/bin/sluice-engine is missing"));

  facts_.build = {};
  expect("engine", State::kNotPossible, false, "No model", "without --no-torch");
}

TEST_F(Judge, SaysWhichTorchDoesNotFit) {
  facts_.engine.torch_version = "2.10.0+cu130";
  expect("torch", State::kLimited, true, "built for 2.11.0+cu130", "pip install torch==2.11.0");
  facts_.engine.starts = false;
  expect("torch", State::kNotPossible, false, "built for 2.11.0+cu130");
  expect("engine", State::kNotPossible, false, "No model", "see the next line");
  facts_.engine.starts = true;
  facts_.engine.torch_version = "2.11.1+cu130";
  EXPECT_EQ(finding("torch").state, State::kGood);
  facts_.engine.torch_version = "2.11.0+cu128";  // CUDA has a line of its own
  EXPECT_EQ(finding("torch").state, State::kGood);
  facts_.engine.torch_version = "";
  EXPECT_EQ(finding("torch").state, State::kGood);
  EXPECT_THAT(finding("torch").found, HasSubstr("its version"));
}

TEST_F(Judge, SaysWhoseCudaDoesNotFit) {
  facts_.engine.torch_version = "2.11.0+cu128";
  expect("cuda", State::kLimited, true, "Two major versions", "CUDA 12");
  EXPECT_THAT(finding("cuda").found, ContainsRegex("13.0.88.*12.8"));
  facts_.engine.torch_version = "2.11.0+cu118";
  EXPECT_THAT(finding("cuda").found, HasSubstr("11.8 in LibTorch"));
  facts_.engine.torch_version = "2.11.0+cpu";
  expect("cuda", State::kNotPossible, false, "GPU of this machine cannot be used", "PyPI's torch");
  facts_.driver = {};
  expect("cuda", State::kLimited, true, "this machine has none");
  facts_.engine.torch_version = "2.11.0+cu130";
  facts_.build.cuda_version = "";
  expect("cuda", State::kLimited, true, "this machine has none", "--cuda=on");
}

TEST_F(Judge, PassesOnWhatTheEngineWarnsOf) {
  facts_.engine.warning = "no GPU can be used: libcudnn.so.9: cannot open";
  expect("engine", State::kNotPossible, false, "No GPU can be used");
  EXPECT_THAT(finding("engine").found, HasSubstr("libcudnn.so.9"));
  facts_.driver.gpus.clear();
  facts_.driver.pci_gpus = 0;
  EXPECT_EQ(finding("engine").state, State::kLimited);
}

// ---- driver and GPUs -------------------------------------------------------------------------

TEST_F(Judge, TrainsOnTheCpuOfAMachineWithoutAGpu) {
  facts_.driver = {};
  expect("driver", State::kLimited, true, "on the CPU");
  facts_.system.wsl = 2;
  expect("driver", State::kLimited, true, "on the CPU", "in Windows");
  facts_.system.wsl = 0;
  facts_.driver.has_library = true;  // a package of the distribution, say
  facts_.driver.error_code = 100;
  facts_.driver.error = "no CUDA-capable device is detected";
  expect("driver", State::kLimited, true, "on the CPU");
}

TEST_F(Judge, CallsAGpuWithoutADriverBroken) {
  facts_.driver = {};
  facts_.driver.pci_gpus = 2;
  facts_.driver.error = "libcuda.so.1: cannot open shared object file";
  expect("driver", State::kNotPossible, false, "No GPU", "driver 580 or newer");
  EXPECT_THAT(finding("driver").found,
              AllOf(HasSubstr("2 NVIDIA GPUs"), HasSubstr("libcuda.so.1")));
  facts_.system.container = "docker";
  expect("driver", State::kNotPossible, false, "No GPU", "--gpus all");
}

TEST_F(Judge, NamesTheDriverThatIsNeeded) {
  facts_.driver.version = "550.54.15";
  facts_.driver.cuda_version = 12040;
  expect("driver", State::kNotPossible, false, "CUDA 13.0 needs driver 580 or newer",
         "Update NVIDIA's driver");
  EXPECT_THAT(finding("driver").found, ContainsRegex("550.54.15.*12.4"));
  facts_.system.wsl = 2;
  expect("driver", State::kNotPossible, false, "580", "in Windows");
  facts_.engine.torch_version = "2.11.0+cu128";
  facts_.build.cuda_version = "12.8.1";
  EXPECT_EQ(finding("driver").state, State::kGood);  // any 12.x has the driver of 12.8
  facts_.engine.torch_version = "2.20.0+cu150";
  expect("driver", State::kNotPossible, false, "a driver for CUDA 15.0");
}

TEST_F(Judge, ExplainsErrorsOfTheDriver) {
  facts_.driver.gpus.clear();
  const auto fails = [&](int code, const std::string& change) {
    facts_.driver.error_code = code;
    facts_.driver.error = "some error";
    expect("driver", State::kNotPossible, false, "No GPU", change);
    EXPECT_THAT(finding("driver").found, HasSubstr("CUDA error " + std::to_string(code)));
  };
  fails(100, "/dev/nvidia0");
  fails(802, "fabric manager");
  fails(803, "reboot");
  fails(34, "LD_LIBRARY_PATH");
  fails(999, "nvidia-smi");
  facts_.system.container = "podman";
  fails(100, "--gpus all");
  facts_.driver.has_visible_devices = true;
  fails(999, "reset");
  facts_.driver.error_code = 100;  // asked for: nothing is broken
  expect("driver", State::kNotPossible, true, "No GPU", "CUDA_VISIBLE_DEVICES");
}

TEST_F(Judge, NamesADriverThatDoesNotAnswer) {
  facts_.driver.answers = false;
  expect("driver", State::kNotPossible, false, "hang", "dmesg");
}

TEST_F(Judge, NeedsOneGpuThatIsNewEnough) {
  facts_.driver.gpus.front().compute_capability = 61;
  expect("gpu.0", State::kNotPossible, false, "too old");
  facts_.driver.gpus.push_back(good_machine().driver.gpus.front());
  expect("gpu.0", State::kNotPossible, true, "too old");
  EXPECT_EQ(finding("gpu.1").state, State::kGood);
}

TEST_F(Judge, SaysWhatAGpuLacks) {
  GpuFacts& gpu = facts_.driver.gpus.front();
  gpu.compute_capability = 75;
  expect("gpu.0", State::kLimited, true, "bf16 is not possible", "fp16.enabled");
  EXPECT_THAT(finding("gpu.0").found, AllOf(HasSubstr("no bf16"), HasSubstr("no fp8")));
  gpu.compute_capability = 86;
  EXPECT_THAT(finding("gpu.0").found, AllOf(HasSubstr(" bf16"), HasSubstr("no fp8")));
  EXPECT_EQ(finding("gpu.0").state, State::kGood);
  gpu.free_bytes = 10 * kGiB;
  expect("gpu.0", State::kLimited, true, "More than half", "nvidia-smi");
}

TEST_F(Judge, LooksForKernelsOfTheGpu) {
  GpuFacts& gpu = facts_.driver.gpus.front();
  gpu.compute_capability = 120;
  EXPECT_EQ(finding("gpu.0").state, State::kGood);
  EXPECT_THAT(finding("gpu.0").found, HasSubstr("program first starts"));
  facts_.build.architectures = {120};
  EXPECT_THAT(finding("gpu.0").found, Not(HasSubstr("first starts")));
  facts_.build.architectures = {89};  // tools/setup on a machine with an RTX 4090
  gpu.compute_capability = 86;
  expect("gpu.0", State::kNotPossible, false, "no kernels", "tools/setup");
  gpu.compute_capability = 89;
  EXPECT_EQ(finding("gpu.0").state, State::kGood);
}

TEST_F(Judge, LooksAtSeveralGpusTogether) {
  facts_.driver.gpus.resize(4, facts_.driver.gpus.front());
  EXPECT_EQ(finding("p2p").state, State::kGood);
  facts_.driver.not_peers = {{0, 1}, {2, 3}};
  expect("p2p", State::kLimited, true, "host memory");
  EXPECT_THAT(finding("p2p").found, HasSubstr("GPU 0 and GPU 1, 2 and 3"));
  facts_.nccl = {.library = "libnccl.so.2", .problem = "libnccl.so.2 is missing"};
  expect("nccl", State::kLimited, true, "cannot train together");
  facts_.system.shared_memory_bytes = 64 * kMiB;
  expect("shared_memory", State::kLimited, true, "NCCL may find no room");
  facts_.driver.gpus.resize(1);
  EXPECT_EQ(finding("nccl").state, State::kGood);
}

// ---- host ------------------------------------------------------------------------------------

TEST_F(Judge, CountsTheCoresThatMayBeUsed) {
  facts_.cpu.quota_cores = 1.5;
  expect("cpu", State::kLimited, true, "only these cores", "--cpus");
  EXPECT_THAT(finding("cpu").found, HasSubstr("may use 1.5"));
  facts_.cpu.allowed_cores = 1;
  expect("cpu", State::kLimited, true, "only these cores", "taskset");
  facts_.cpu.quota_cores = 32;
  facts_.cpu.allowed_cores = 16;
  EXPECT_EQ(finding("cpu").state, State::kGood);
}

TEST_F(Judge, SaysWhatNarrowInstructionsCost) {
  facts_.cpu.missing_for_avx512 = "AVX-512BW";
  expect("instructions", State::kLimited, true, "13% longer", "virtual machine");
  EXPECT_THAT(finding("instructions").found, HasSubstr("AVX-512BW"));
  facts_.cpu.missing_for_avx2 = facts_.cpu.missing_for_avx512 = "FMA";
  expect("instructions", State::kLimited, true, "17 times");
  EXPECT_THAT(finding("instructions").found, HasSubstr("no AVX2 (FMA"));
}

TEST_F(Judge, NamesNodesOfMemory) {
  facts_.cpu.numa_nodes = 2;
  expect("numa", State::kLimited, true, "another node", "numactl");
}

TEST_F(Judge, CountsTheMemoryThatALimitLeaves) {
  facts_.memory.cgroup_limit_bytes = 8 * kGiB;
  facts_.memory.cgroup_room_bytes = 6 * kGiB;
  expect("memory", State::kLimited, true, "no more than that", "--memory");
  EXPECT_THAT(finding("memory").found, ContainsRegex("6G available of 64G.*8G"));
  facts_.memory.cgroup_room_bytes = 200 * kMiB;
  expect("memory", State::kNotPossible, false, "half a GiB", "--memory");
  facts_.memory = {.total_bytes = 4 * kGiB, .available_bytes = 2 * kGiB};
  expect("memory", State::kLimited, true, "small models");
  facts_.memory.available_bytes = 100 * kMiB;
  expect("memory", State::kNotPossible, false, "half a GiB", "End other programs");
  facts_.memory = good_machine().memory;
  facts_.memory.cgroup_limit_bytes = facts_.memory.cgroup_room_bytes = 512 * kGiB;
  EXPECT_EQ(finding("memory").state, State::kGood);  // more than the machine has
}

TEST_F(Judge, SaysWhatLockedMemoryCosts) {
  facts_.limits.memlock_bytes = 0;
  expect("memlock", State::kLimited, true, "not registered", "limits.conf");
  EXPECT_THAT(finding("memlock").found, HasSubstr("0 (ulimit -l)"));
  facts_.system.container = "docker";
  expect("memlock", State::kLimited, true, "not registered", "--ulimit memlock=-1");
  facts_.limits.memlock_applies = false;
  EXPECT_EQ(finding("memlock").state, State::kGood);
  facts_.limits = {.memlock_bytes = 8 * kGiB};
  EXPECT_EQ(finding("memlock").state, State::kGood);
}

TEST_F(Judge, SaysWhoRefusesIoUring) {
  facts_.uring.refusal = "set-up of io_uring failed: Operation not permitted (EPERM): a guess";
  facts_.uring.error_number = EPERM;
  expect("io_uring", State::kLimited, true, "pool of threads");
  EXPECT_THAT(finding("io_uring").found, HasSubstr("(EPERM): a guess"));
  facts_.uring.has_seccomp_filter = true;
  expect("io_uring", State::kLimited, true, "pool of threads", "seccomp=FILE");
  EXPECT_THAT(finding("io_uring").found,
              AllOf(ContainsRegex("\\(EPERM\\).*seccomp"), Not(HasSubstr("a guess"))));
  facts_.uring.disabled = 2;
  expect("io_uring", State::kLimited, true, "pool of threads", "kernel.io_uring_disabled=0");
  EXPECT_THAT(finding("io_uring").found, HasSubstr("kernel.io_uring_disabled is 2"));
  facts_.uring.disabled = 0;
  facts_.uring.error_number = ENOSYS;
  EXPECT_THAT(finding("io_uring").change, HasSubstr("seccomp=FILE"));
  facts_.system.kernel = "4.18.0-553.el8";
  expect("io_uring", State::kLimited, true, "pool of threads", "Linux 5.11");
  EXPECT_THAT(finding("io_uring").found, HasSubstr("Linux 4.18.0-553.el8 has none"));
}

TEST_F(Judge, SaysWhatTheSystemCosts) {
  facts_.system.huge_pages = "never";
  expect("huge_pages", State::kLimited, true, "4 KiB", "echo madvise");
  facts_.system.huge_pages = "";
  expect("huge_pages", State::kLimited, true, "4 KiB");
  facts_.limits.open_files = 256;
  expect("open_files", State::kLimited, true, "may need more", "LimitNOFILE=");
  facts_.system.shared_memory_bytes = 64 * kMiB;
  expect("shared_memory", State::kLimited, true, "Several GPUs could", "/dev/shm");
  facts_.system.container = "kubernetes";
  expect("shared_memory", State::kLimited, true, "Several GPUs could", "--shm-size=1g");
  EXPECT_THAT(finding("system").found, HasSubstr("in a container (kubernetes)"));
  facts_.system.shared_memory_bytes.reset();
  expect("shared_memory", State::kLimited, true, "Several GPUs could");
  facts_.system.wsl = 2;
  expect("system", State::kLimited, true, "pinned memory", ".wslconfig");
  facts_.system.wsl = 1;
  expect("system", State::kLimited, true, "WSL 1", "--set-version");
}

// ---- drives ----------------------------------------------------------------------------------

TEST_F(Judge, SaysWhatAFolderIsGoodFor) {
  PathFacts& path = facts_.paths.front();
  const auto is = [&](DriveKind kind, const std::string& cost, const std::string& change) {
    path.kind = kind;
    expect("path.0", State::kLimited, true, cost, change);
  };
  is(DriveKind::kMemory, "take memory from the run", "on a drive");
  is(DriveKind::kNetwork, "through a network", "local drive");
  is(DriveKind::kRotational, "rotating", "NVMe");
  is(DriveKind::kOverlay, "container's own root", "docker run -v");
  path.kind = DriveKind::kVirtual;
  EXPECT_EQ(finding("path.0").state, State::kGood);
  path.direct = false;
  expect("path.0", State::kLimited, true, "O_DIRECT", "XFS");
  path.kind = DriveKind::kMemory;
  EXPECT_THAT(finding("path.0").cost, Not(HasSubstr("O_DIRECT")));
}

TEST_F(Judge, AddsUpWhatIsWrongWithAFolder) {
  PathFacts& path = facts_.paths.front();
  path.write_bytes_per_s = 0.2e9;
  path.overwrites_elsewhere = true;
  path.free_bytes = 3 * kGiB;
  const Finding it = finding("path.0");
  EXPECT_EQ(it.state, State::kLimited);
  EXPECT_THAT(it.cost, AllOf(HasSubstr("is slow"), HasSubstr("new blocks"), HasSubstr("12 bytes")));
  EXPECT_THAT(it.found, AllOf(HasSubstr("6.00 GB/s read, 0.20 written"), HasSubstr("3G free")));
}

TEST_F(Judge, SaysHowWornADriveIsOrWhyItIsNotKnown) {
  PathFacts& path = facts_.paths.front();
  path.health = aio::NvmeHealth{.used_percent = 12, .written_tb = 340.4};
  EXPECT_EQ(finding("path.0").state, State::kGood);
  EXPECT_THAT(finding("path.0").found, HasSubstr("; 12% of its endurance used, 340 TB written"));
  path.health.reset();
  path.health_problem = "open of /dev/nvme0 failed";
  EXPECT_EQ(finding("path.0").state, State::kGood);
  EXPECT_THAT(finding("path.0").found,
              HasSubstr("; its wear is not known: open of /dev/nvme0 failed"));
}

TEST_F(Judge, NeedsFoldersThatCanBeWritten) {
  PathFacts& path = facts_.paths.front();
  path.free_bytes = 4096;
  expect("path.0", State::kNotPossible, false, "full", "du -xh --max-depth=2 /nvme");
  path.free_bytes = kGiB;
  path.problem = "Permission denied (EACCES)";
  expect("path.0", State::kNotPossible, false, "No run can store");
  EXPECT_THAT(finding("path.0").found, HasSubstr("EACCES"));
  path.problem = "";
  path.answers = false;
  expect("path.0", State::kNotPossible, false, "hang");
  // One usable folder is enough if the user named none; each named one is needed.
  facts_.paths.push_back(good_machine().paths.front());
  EXPECT_TRUE(trains());
  facts_.paths.front().is_named = facts_.paths.back().is_named = true;
  EXPECT_FALSE(trains());
}

}  // namespace
}  // namespace sluice::doctor
