#include "aio/nvme_health.h"

#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <filesystem>
#include <fstream>

#include "tests/aio/backends_under_test.h"

namespace sluice::aio {
namespace {

namespace fs = std::filesystem;

using Names = std::set<std::string>;

NvmeHealth health(int used_percent, std::uint64_t units_written) {
  std::array<std::byte, kNvmeHealthBytes> page{};
  page.fill(std::byte{0xab});
  page[5] = static_cast<std::byte>(used_percent);
  for (std::size_t i = 0; i < 16; ++i)
    page[48 + i] = static_cast<std::byte>(i < 8 ? units_written >> (8 * i) & 0xffU : 0);
  return parse_nvme_health(page);
}

TEST(NvmeHealth, TellsTheRatedEnduranceFromWhatIsUsed) {
  const NvmeHealth used = health(12, 664'062'500);  // 340 TB in units of 512,000 bytes
  EXPECT_EQ(used.used_percent, 12);
  EXPECT_DOUBLE_EQ(used.written_tb, 340);
  EXPECT_DOUBLE_EQ(used.rated_tb.value_or(0), 340 / 0.12);
  EXPECT_DOUBLE_EQ(health(255, 1U << 31).rated_tb.value_or(0),
                   static_cast<double>(1U << 31) * 512e-9 / 2.55);
}

TEST(NvmeHealth, DoesNotTellItFromAFewPercent) {
  EXPECT_FALSE(health(0, 1'000'000).rated_tb);
  EXPECT_FALSE(health(4, 100'000'000).rated_tb);
  EXPECT_TRUE(health(5, 100'000'000).rated_tb);
  EXPECT_FALSE(health(30, 0).rated_tb);
}

TEST(NvmeHealth, OfSeveralDrivesIsThatOfTheMostUsed) {
  const NvmeHealth both = together(health(10, 1'000'000'000), health(50, 2'000'000'000));
  EXPECT_EQ(both.used_percent, 50);
  EXPECT_DOUBLE_EQ(both.written_tb, 1536);
  EXPECT_DOUBLE_EQ(both.rated_tb.value_or(0), 5120 + 2048);
  EXPECT_FALSE(together(health(10, 1'000'000'000), health(1, 1'000'000)).rated_tb);
}

class NvmeControllers : public testing::Test {
 protected:
  void write(const std::string& name, const std::string& text) const {
    fs::create_directories(fs::path(root() + name).parent_path());
    std::ofstream(root() + name) << text;
  }
  void link(const std::string& name, const std::string& to) const {
    fs::create_directories(root() + to);
    fs::create_directories(fs::path(root() + name).parent_path());
    fs::create_directory_symlink(root() + to, root() + name);
  }
  // A drive of the controller nvme<number>, with the device number 259:<number>.
  void add_drive(const std::string& number) const {
    const std::string drive = "/sys/devices/pci/nvme" + number + "/nvme" + number + "n1";
    write(drive + "/dev", "259:" + number + "\n");
    link(drive + "/device", "/sys/devices/pci/nvme" + number);
    link("/sys/dev/block/259:" + number, drive);
  }
  const std::string& root() const { return folder_.path(); }

  TemporaryFolder folder_;
};

TEST_F(NvmeControllers, AreFoundBelowPartitionsAndVolumes) {
  add_drive("0");
  add_drive("11");
  write("/sys/devices/pci/nvme0/nvme0n1/nvme0n1p2/partition", "2\n");
  write("/sys/devices/pci/nvme0/nvme0n1/nvme0n1p2/dev", "259:5\n");
  link("/sys/dev/block/259:5", "/sys/devices/pci/nvme0/nvme0n1/nvme0n1p2");
  link("/sys/devices/virtual/md0/slaves/nvme0n1p2", "/sys/devices/pci/nvme0/nvme0n1/nvme0n1p2");
  link("/sys/devices/virtual/md0/slaves/nvme11n1", "/sys/devices/pci/nvme11/nvme11n1");
  link("/sys/dev/block/9:0", "/sys/devices/virtual/md0");
  EXPECT_EQ(nvme_controllers("259:0", root()), Names{"nvme0"});
  EXPECT_EQ(nvme_controllers("259:5", root()), Names{"nvme0"});
  EXPECT_EQ(nvme_controllers("9:0", root()), (Names{"nvme0", "nvme11"}));
}

TEST_F(NvmeControllers, AreThoseOfTheSubsystemWithMultipath) {
  const std::string subsystem = "/sys/devices/virtual/nvme-subsys3";
  write(subsystem + "/nvme3n1/dev", "259:3\n");
  link(subsystem + "/nvme3n1/device", subsystem);
  link(subsystem + "/nvme7", "/sys/devices/pci/nvme7");
  link("/sys/dev/block/259:3", subsystem + "/nvme3n1");
  EXPECT_EQ(nvme_controllers("259:3", root()), Names{"nvme7"});
}

TEST_F(NvmeControllers, AreNoneWhereOneDriveIsOfAnotherKind) {
  add_drive("0");
  write("/sys/devices/ata/sda/dev", "8:0\n");
  link("/sys/devices/ata/sda/device", "/sys/devices/ata/target0");
  link("/sys/dev/block/8:0", "/sys/devices/ata/sda");
  link("/sys/devices/virtual/md1/slaves/nvme0n1", "/sys/devices/pci/nvme0/nvme0n1");
  link("/sys/devices/virtual/md1/slaves/sda", "/sys/devices/ata/sda");
  link("/sys/dev/block/9:1", "/sys/devices/virtual/md1");
  EXPECT_EQ(nvme_controllers("8:0", root()), Names{});
  EXPECT_EQ(nvme_controllers("9:1", root()), Names{});
  EXPECT_EQ(nvme_controllers("259:77", root()), Names{});
}

}  // namespace
}  // namespace sluice::aio
