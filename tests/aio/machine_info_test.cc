#include "aio/machine_info.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

#include <filesystem>
#include <fstream>

#include "aio/cgroup_limits.h"
#include "aio/memory_files.h"
#include "aio/missing_folder.h"
#include "aio/mount_table.h"
#include "aio/storage_info.h"
#include "tests/aio/backends_under_test.h"

namespace sluice::aio {
namespace {

constexpr const char* kMountInfo =
    "27 1 254:0 / / rw - ext4 /dev/vda rw\n"
    "30 27 0:25 / /dev/shm rw shared:3 master:1 - tmpfs tmpfs rw\n"
    "31 27 259:1 / /data\\040disk rw - xfs /dev/nvme0n1 rw\n"
    "32 27 0:40 /sub /home rw - btrfs /dev/sdb1 rw\n";

TEST(FindMount, GoesByTheDeviceNumber) {
  EXPECT_EQ(find_mount(kMountInfo, "254:0", "/home/x").device, "/dev/vda");
  EXPECT_EQ(find_mount(kMountInfo, "0:25", "/dev/shm/a").file_system, "tmpfs");
}

TEST(FindMount, ReadsNamesWithBlanks) {
  EXPECT_EQ(find_mount(kMountInfo, "259:1", "/data disk/x").mount_point, "/data disk");
}

TEST(FindMount, FallsBackOnTheLongestMountPoint) {
  EXPECT_EQ(find_mount(kMountInfo, "0:99", "/home/me").file_system, "btrfs");
  EXPECT_EQ(find_mount(kMountInfo, "0:99", "/homework").file_system, "ext4");
  EXPECT_EQ(find_mount("", "0:99", "/x").file_system, "unknown");
}

TEST(MountInfo, HasTheNumberOfTheDeviceThatAFolderIsOn) {
  const TemporaryFolder folder;
  struct stat status {};
  ASSERT_EQ(::stat(folder.path().c_str(), &status), 0);
  const MountInfo mount = mount_info(folder.path());
  EXPECT_EQ(mount.device_number,
            std::to_string(major(status.st_dev)) + ":" + std::to_string(minor(status.st_dev)));
  EXPECT_EQ(folder.path().find(mount.mount_point), 0U);
  EXPECT_TRUE(mount_info(folder.file("absent")).device_number.empty());
}

TEST(MountTable, ReadsTheOptionsOfAnOverlay) {
  const auto mounts = parse_mount_table(
      "30 27 0:25 / / rw shared:1 - overlay overlay rw,lowerdir=/l1:/l2,upperdir=/run/my\\040up,"
      "workdir=/w,metacopy\n"
      "31 30 0:26 / /x rw - tmpfs tmpfs rw\n");
  ASSERT_EQ(mounts.size(), 2U);
  EXPECT_EQ(super_option(mounts[0], "upperdir"), "/run/my up");
  EXPECT_EQ(super_option(mounts[0], "metacopy"), "");
  EXPECT_EQ(super_option(mounts[0], "upper"), std::nullopt);
  EXPECT_EQ(super_option(mounts[1], "upperdir"), std::nullopt);
}

TEST(MountTable, KnowsADriveOfFstabThatIsNotMounted) {
  const auto mounts = parse_mount_table(
      "27 1 254:0 / / rw - ext4 /dev/vda rw\n31 27 259:1 / /mnt/a rw - xfs /dev/nvme0n1 rw\n"
      "32 27 259:2 / /srv/nvme rw - xfs /dev/nvme2n1 rw\n");
  const std::string fstab =
      "# /dev/sdz /mnt/c ext4\nUUID=1 / ext4 defaults 0 1\n\n/dev/x none swap sw\n"
      "/dev/vdx /srv ext4\n/dev/nvme0n1 /mnt/a/ xfs noatime\n/dev/nvme1n1 /mnt/my\\040drive xfs\n";
  const auto point_for = [&](const std::string& path) {
    return unmounted_point(fstab, mounts, path, [](const std::string&) { return true; });
  };
  EXPECT_EQ(point_for("/mnt/my drive/state"), "/mnt/my drive");
  EXPECT_EQ(point_for("/mnt/my drive"), "/mnt/my drive");
  for (const char* path :
       {"/mnt/a", "/mnt/a/state", "/srv/nvme/state", "/mnt", "/mnt/c", "/", "/mnt/my drives"})
    EXPECT_EQ(point_for(path), "") << path;
}

// Entries left from another machine, or from a container's image, are no drives to wait for.
TEST(MountTable, LeavesOutLinesOfFstabThatNothingWaitsFor) {
  const auto point_for = [](const std::string& line) {
    return unmounted_point(line, {}, "/data/state", [](const std::string& device) {
      return device == "/dev/sdb1" || device == "/dev/disk/by-uuid/12-ab" ||
             device == "/dev/disk/by-label/my\\x20drive";
    });
  };
  for (const char* line :
       {"/dev/sdb1 /data xfs", "/dev/sdb1 /data xfs noatime,nofail 0 2", "UUID=12-ab /data xfs",
        "UUID=\"12-ab\" /data xfs", "LABEL=my\\040drive /data xfs", "server:/export /data nfs hard",
        "//server/share /data cifs user=a"})
    EXPECT_EQ(point_for(line), "/data") << line;
  for (const char* line :
       {"/dev/sdb1 /data xfs noauto", "/dev/sdb1 /data xfs rw,noauto,nofail 0 2",
        "server:/export /data nfs noauto", "/dev/sdc1 /data xfs", "UUID=99 /data xfs",
        "LABEL=cloudimg-rootfs /data ext4", "tmpfs /data tmpfs size=1g", "C: /data drvfs defaults",
        "share /data virtiofs", "/srv/data /data none bind", "overlay /data overlay rw"})
    EXPECT_EQ(point_for(line), "") << line;
}

TEST(RequireMounted, SaysHowAFolderIsAcceptedWhoseDriveIsNotMounted) {
  const TemporaryFolder folder;
  const std::string state = folder.file("state");
  ASSERT_TRUE(std::filesystem::create_directory(state));
  const auto with = [&](const std::string& line) {
    return require_mounted("budget.nvme_paths", state, line);
  };
  const Status refused = with("server:/export " + folder.path() + " nfs\n");
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code(), ErrorCode::kNotFound);
  const std::string& message = refused.error().message();
  for (const std::string& part :
       {"budget.nvme_paths: " + state, "Run: mount " + folder.path(),
        std::string("mark that line noauto"), "not below " + folder.path()})
    EXPECT_NE(message.find(part), std::string::npos) << message;
  EXPECT_TRUE(with("server:/export " + folder.path() + " nfs noauto\n").ok());
  EXPECT_TRUE(with("/dev/sluice-none " + folder.path() + " ext4\n").ok());
  EXPECT_TRUE(with("/dev/null " + folder.path() + " ext4\n").ok()) << "it is no drive";
  EXPECT_TRUE(with("").ok());
}

TEST(StorageInfo, KnowsWhatIsMemory) {
  const StorageInfo memory = storage_info("/dev/shm");
  if (memory.file_system != "tmpfs") GTEST_SKIP() << "/dev/shm is no tmpfs here";
  EXPECT_TRUE(memory.in_memory);
  EXPECT_TRUE(memory.locks_reach_all);
  EXPECT_TRUE(folder_is_memory("/dev/shm"));
  EXPECT_FALSE(storage_info("/proc").in_memory);
  EXPECT_FALSE(storage_info("/nowhere").locks_reach_all);
}

// ---- control groups ---------------------------------------------------------------------------

// A machine's files, in a folder of the test.
class CgroupLimits : public testing::Test {
 protected:
  void write(const std::string& path, const std::string& text) const {
    const std::string file = folder_.path() + path;
    std::filesystem::create_directories(std::filesystem::path(file).parent_path());
    std::ofstream(file) << text;
  }
  void group2(const std::string& name, const std::string& max, const std::string& current,
              const std::string& stat) const {
    const std::string folder = "/sys/fs/cgroup" + name;
    write(folder + "/memory.max", max + "\n");
    write(folder + "/memory.high", "max\n");
    write(folder + "/memory.current", current + "\n");
    write(folder + "/memory.stat", stat);
  }
  void group1(const std::string& name, const std::string& limit, const std::string& usage,
              const std::string& stat) const {
    const std::string folder = "/sys/fs/cgroup/memory" + name;
    write(folder + "/memory.limit_in_bytes", limit + "\n");
    write(folder + "/memory.usage_in_bytes", usage + "\n");
    write(folder + "/memory.stat", stat);
  }
  std::optional<CgroupMemory> found() const { return cgroup_memory(folder_.path()); }
  std::optional<double> cores() const { return cgroup_cores(folder_.path()); }
  const TemporaryFolder folder_;
};

constexpr const char* kMount2 = "29 22 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n";
constexpr const char* kMount1 =
    "31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw\n"
    "34 31 0:31 / /sys/fs/cgroup/cpuset rw - cgroup cgroup rw,cpuset\n"
    "35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
    "41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n";
constexpr const char* kNoLimit1 = "9223372036854771712";

TEST_F(CgroupLimits, CountsPageCacheAsFreeInVersion2) {
  write("/proc/self/mountinfo", kMount2);
  write("/proc/self/cgroup", "0::/job\n");
  group2("/job", "4000", "3900",
         "anon 200\nfile 3000\ninactive_file 2500\nactive_file 500\n"
         "slab_reclaimable 100\nshmem 50\n");
  ASSERT_TRUE(found());
  EXPECT_EQ(found()->limit_bytes, 4000U);
  EXPECT_EQ(found()->used_bytes, 800U);
  EXPECT_EQ(found()->room_bytes(), 3200U);
}

TEST_F(CgroupLimits, TakesTheGroupThatLeavesLeastOnTheWayToTheRoot) {
  write("/proc/self/mountinfo", kMount2);
  write("/proc/self/cgroup", "0::/slice/pod/box\n");
  group2("/slice", "9000", "8500", "");
  group2("/slice/pod", "2000", "300", "");
  group2("/slice/pod/box", "max", "100", "");
  EXPECT_EQ(found()->room_bytes(), 500U) << "of /slice, whose other pods are large";
  group2("/slice", "9000", "400", "");
  EXPECT_EQ(found()->room_bytes(), 1700U);
  write("/sys/fs/cgroup/slice/pod/box/memory.high", "1000\n");
  EXPECT_EQ(found()->room_bytes(), 900U);
  group2("/slice/pod", "200", "300", "");
  EXPECT_EQ(found()->room_bytes(), 0U) << "over its limit";
}

TEST_F(CgroupLimits, FindsNothingWithoutALimit) {
  EXPECT_EQ(found().has_value(), false) << "no cgroups at all";
  write("/proc/self/mountinfo", kMount2);
  write("/proc/self/cgroup", "0::/\n");
  EXPECT_FALSE(found()) << "the root group has no files";
  group2("", "max", "100", "");
  EXPECT_FALSE(found());
  write("/proc/self/mountinfo", kMount1);
  write("/proc/self/cgroup", "4:memory:/a\n0::/\n");
  group1("/a", kNoLimit1, "100", std::string("hierarchical_memory_limit ") + kNoLimit1 + "\n");
  EXPECT_FALSE(found());
}

TEST_F(CgroupLimits, ReadsVersion1BesideAnEmptyVersion2) {
  write("/proc/self/mountinfo", kMount1);
  write("/proc/self/cgroup", "9:cpuset:/other\n4:cpuacct,memory:/a/b\n0::/a/b\n");
  group1("/a/b", kNoLimit1, "700",
         "cache 90\ninactive_file 1\nactive_file 1\ntotal_inactive_file 100\n"
         "total_active_file 200\n");
  group1("/a", "5000", "1000", "total_inactive_file 100\ntotal_active_file 200\n");
  ASSERT_TRUE(found());
  EXPECT_EQ(found()->limit_bytes, 5000U);
  EXPECT_EQ(found()->room_bytes(), 4300U);
  write("/sys/fs/cgroup/memory/a/memory.use_hierarchy", "0\n");
  EXPECT_FALSE(found()) << "/a does not count what /a/b takes";
  write("/sys/fs/cgroup/memory/a/memory.use_hierarchy", "1\n");
  EXPECT_TRUE(found());
}

TEST_F(CgroupLimits, SeesALimitAboveAContainerOfVersion1) {
  // The mount shows only the container's group, under the host's name for it.
  write("/proc/self/mountinfo",
        "35 31 0:32 /docker/4711 /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n");
  write("/proc/self/cgroup", "4:memory:/docker/4711\n");
  group1("", kNoLimit1, "700", "hierarchical_memory_limit 2000\ntotal_active_file 300\n");
  ASSERT_TRUE(found());
  EXPECT_EQ(found()->room_bytes(), 1600U);
  group1("", "1500", "700", "total_active_file 300\n");
  EXPECT_EQ(found()->room_bytes(), 1100U);
}

TEST_F(CgroupLimits, LooksAtTheMountWhereTheNameLeadsOutOfIt) {
  write("/proc/self/mountinfo", "29 22 0:26 /.. /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n");
  write("/proc/self/cgroup", "0::/../../elsewhere\n");
  group2("", "1000", "100", "inactive_file 5000\n");
  EXPECT_EQ(found()->used_bytes, 0U);
  EXPECT_EQ(found()->room_bytes(), 1000U);
}

TEST_F(CgroupLimits, HaveTheLeastQuotaOfProcessorTimeOnTheWayToTheRoot) {
  EXPECT_FALSE(cores()) << "no cgroups at all";
  write("/proc/self/mountinfo", kMount2);
  write("/proc/self/cgroup", "0::/pod/box\n");
  write("/sys/fs/cgroup/pod/box/cpu.max", "max 100000\n");
  EXPECT_FALSE(cores());
  write("/sys/fs/cgroup/pod/cpu.max", "400000 100000\n");
  EXPECT_EQ(cores(), 4.0);
  write("/sys/fs/cgroup/pod/box/cpu.max", "75000 50000\n");
  EXPECT_EQ(cores(), 1.5);
}

TEST_F(CgroupLimits, HaveTheQuotaOfVersion1) {
  write("/proc/self/mountinfo",
        "34 31 0:31 / /sys/fs/cgroup/cpuset rw - cgroup cgroup rw,cpuset\n"
        "35 31 0:32 /docker/4711 /sys/fs/cgroup/cpu,cpuacct ro - cgroup cgroup rw,cpu,cpuacct\n");
  write("/proc/self/cgroup", "9:cpuset:/other\n4:cpu,cpuacct:/docker/4711\n");
  write("/sys/fs/cgroup/cpuset/cpu.cfs_quota_us", "100000\n");
  write("/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "-1\n");
  write("/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", "100000\n");
  EXPECT_FALSE(cores());
  write("/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "50000\n");
  EXPECT_EQ(cores(), 0.5);
}

TEST(MachineInfo, KnowsCoresMemoryAndCaches) {
  const MachineInfo info = machine_info();
  EXPECT_GT(info.cores, 0);
  EXPECT_GT(usable_cores(), 0);
  EXPECT_LE(usable_cores(), info.cores);
  EXPECT_GT(info.ram_bytes, available_ram_bytes());
  EXPECT_LT(last_level_cache_bytes(), info.ram_bytes);
}

}  // namespace
}  // namespace sluice::aio
