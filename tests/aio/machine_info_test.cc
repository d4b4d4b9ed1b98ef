#include "aio/machine_info.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

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

TEST(MachineInfo, KnowsCoresMemoryAndCaches) {
  const MachineInfo info = machine_info();
  EXPECT_GT(info.cores, 0);
  EXPECT_GT(info.ram_bytes, available_ram_bytes());
  EXPECT_LT(last_level_cache_bytes(), info.ram_bytes);
}

}  // namespace
}  // namespace sluice::aio
