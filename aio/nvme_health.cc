#include "aio/nvme_health.h"

#include <fcntl.h>
#include <linux/nvme_ioctl.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>
#include <filesystem>
#include <string_view>
#include <utility>

#include "aio/machine_info.h"
#include "aio/mount_table.h"
#include "aio/regular_file.h"

namespace sluice::aio {
namespace {

namespace fs = std::filesystem;

// "nvme0" of nvme0n1. With multipath the namespace belongs to a subsystem, which has controllers.
std::string controller_of(const fs::path& drive) {
  std::error_code error;
  const fs::path device = fs::canonical(drive / "device", error);
  std::string name = device.filename().string();
  if (error || !name.starts_with("nvme")) return {};
  if (!name.starts_with("nvme-subsys")) return name;
  std::string first;
  for (fs::directory_iterator it(device, error), end; !error && it != end; it.increment(error)) {
    const std::string one = it->path().filename().string();
    const bool is_controller = one.starts_with("nvme") && one.find_last_not_of("0123456789") == 3;
    if (is_controller && (first.empty() || one < first)) first = one;
  }
  return first;
}

// False if a drive is not NVMe.
bool add_controllers(const std::string& block_device, const std::string& root,
                     std::set<std::string>& controllers) {
  std::error_code error;
  fs::path folder = fs::canonical(root + "/sys/dev/block/" + block_device, error);
  if (error) return false;
  if (fs::exists(folder / "partition", error)) folder = folder.parent_path();
  bool is_volume = false;
  for (fs::directory_iterator it(folder / "slaves", error), end; !error && it != end;
       it.increment(error)) {
    std::string number = read_text((it->path() / "dev").string());
    number.resize(std::min(number.size(), number.find('\n')));
    is_volume = true;
    if (!add_controllers(number, root, controllers)) return false;
  }
  if (is_volume) return true;
  std::string controller = controller_of(folder);
  if (controller.empty()) return false;
  controllers.insert(std::move(controller));
  return true;
}

Result<NvmeHealth> ask(const std::string& controller) {
  const std::string path = "/dev/" + controller;
  const auto failed = [&](std::string_view operation) {
    const bool is_refused = errno == EACCES || errno == EPERM;
    return Error::from_errno(errno, {.operation = operation, .path = path},
                             is_refused ? "only root may ask a drive for its health" : "");
  };
  const OwnedDescriptor drive(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (drive.get() < 0) return failed("open");
  std::array<std::byte, kNvmeHealthBytes> page{};
  constexpr std::uint32_t kHealthPage = 2;
  nvme_admin_cmd command{};
  command.opcode = 2;          // Get Log Page
  command.nsid = 0xffffffffU;  // of the whole controller
  command.addr = reinterpret_cast<std::uintptr_t>(page.data());
  command.data_len = page.size();
  command.cdw10 = kHealthPage | static_cast<std::uint32_t>(page.size() / 4 - 1) << 16U;
  const int status = ::ioctl(drive.get(), NVME_IOCTL_ADMIN_CMD, &command);
  if (status < 0) return failed("ioctl");
  if (status > 0) return Error(ErrorCode::kIo, path + " does not tell its health");
  return parse_nvme_health(page);
}

}  // namespace

NvmeHealth together(const NvmeHealth& a, const NvmeHealth& b) {
  NvmeHealth both{.used_percent = std::max(a.used_percent, b.used_percent),
                  .written_tb = a.written_tb + b.written_tb};
  if (a.rated_tb && b.rated_tb) both.rated_tb = *a.rated_tb + *b.rated_tb;
  return both;
}

NvmeHealth parse_nvme_health(std::span<const std::byte, kNvmeHealthBytes> page) {
  constexpr std::size_t kUsed = 5;
  constexpr std::size_t kWritten = 48;  // 16 bytes, little-endian
  constexpr double kTbOfAUnit = 1000 * 512e-12;
  constexpr int kLeastPercent = 5;
  NvmeHealth health{.used_percent = std::to_integer<int>(page[kUsed])};
  for (std::size_t i = 16; i-- > 0;)
    health.written_tb = 256 * health.written_tb + std::to_integer<int>(page[kWritten + i]);
  health.written_tb *= kTbOfAUnit;
  if (health.used_percent >= kLeastPercent && health.written_tb > 0)
    health.rated_tb = 100 * health.written_tb / health.used_percent;
  return health;
}

std::set<std::string> nvme_controllers(const std::string& block_device, const std::string& root) {
  std::set<std::string> controllers;
  if (!add_controllers(block_device, root, controllers)) controllers.clear();
  return controllers;
}

std::string block_device_of(const std::string& folder) {
  const MountInfo mount = mount_info(folder);
  struct stat status {};
  if (mount.device.starts_with("/dev/") && ::stat(mount.device.c_str(), &status) == 0 &&
      S_ISBLK(status.st_mode))
    return std::to_string(major(status.st_rdev)) + ":" + std::to_string(minor(status.st_rdev));
  return mount.device_number;
}

Result<NvmeHealth> nvme_health(const std::vector<std::string>& folders) {
  std::set<std::string> controllers;
  for (const std::string& folder : folders) {
    auto more = nvme_controllers(block_device_of(folder));
    if (more.empty()) return Error(ErrorCode::kUnsupported, folder + " is not on an NVMe drive");
    controllers.merge(more);
  }
  std::optional<NvmeHealth> all;
  for (const std::string& controller : controllers) {
    SLUICE_ASSIGN_OR_RETURN(const NvmeHealth one, ask(controller));
    all = all ? together(*all, one) : one;
  }
  if (!all) return Error(ErrorCode::kUnsupported, "no folder is given");
  return *all;
}

}  // namespace sluice::aio
