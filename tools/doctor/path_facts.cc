#include <sys/vfs.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <filesystem>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "aio/copy_on_write.h"
#include "aio/machine_info.h"
#include "aio/make_backend.h"
#include "aio/memory_files.h"
#include "aio/mount_table.h"
#include "aio/nvme_health.h"
#include "aio/real_file_system.h"
#include "aio/storage_info.h"
#include "aio/units.h"
#include "engine/probe/drive_probe.h"
#include "tools/doctor/gather_facts.h"
#include "tools/doctor/patience.h"

namespace sluice::doctor {
namespace {

namespace fs = std::filesystem;

constexpr std::chrono::seconds kPathPatience{10};

bool is_on_network(const std::string& file_system) {
  constexpr std::array<std::string_view, 19> kNames = {
      "nfs",  "nfs4",   "cifs",  "smb3",     "smbfs", "ceph",     "lustre",
      "gpfs", "beegfs", "9p",    "virtiofs", "afs",   "orangefs", "glusterfs",
      "fuse", "wekafs", "panfs", "drvfs",    "pvfs2"};
  return file_system.starts_with("fuse.") ||
         std::find(kNames.begin(), kNames.end(), file_system) != kNames.end();
}

// A short measurement: the class of a drive, not what a plan is made from (sluice probe).
void measure(PathFacts& facts) {
  constexpr int kQueueDepth = 16;
  constexpr double kEachSeconds = 0.125;  // of four passes
  constexpr std::uint64_t kMostFileBytes = 256 * kMiB;
  auto backend = aio::make_backend({.queue_depth = kQueueDepth});
  if (!backend.ok()) return;
  const auto rates = engine::probe_drives(**backend, {.folders = {facts.path},
                                                      .weights = {},
                                                      .queue_depth = kQueueDepth,
                                                      .most_file_bytes = kMostFileBytes,
                                                      .fill_seconds = kEachSeconds,
                                                      .seconds = kEachSeconds});
  // On a busy drive no block may end within a pass.
  if (!rates.ok() || rates->in_bytes_per_s <= 0 || rates->out_bytes_per_s <= 0) return;
  facts.read_bytes_per_s = rates->in_bytes_per_s;
  facts.write_bytes_per_s = rates->out_bytes_per_s;
}

PathFacts look_at(const std::string& path, bool measures, const std::string& root) {
  PathFacts facts{.path = path};
  const aio::StorageInfo storage = aio::storage_info(path);
  const aio::MountInfo mount = aio::mount_info(path);
  facts.file_system = storage.file_system;
  aio::RealFileSystem files;
  if (const auto free = files.free_bytes(path); free.ok()) facts.free_bytes = *free;
  const auto file = files.open(path, {.access = aio::OpenOptions::Access::kReadWrite,
                                      .create = aio::OpenOptions::Create::kAnonymous});
  if (!file.ok()) {
    facts.problem = file.error().message();
  } else {
    facts.direct = (*file)->direct();
    facts.overwrites_elsewhere =
        storage.copies_on_write && !aio::set_overwritten_in_place((*file)->descriptor());
  }
  if (storage.in_memory || (file.ok() && aio::folder_is_memory(path))) {
    facts.kind = DriveKind::kMemory;
  } else if (is_on_network(mount.file_system)) {
    facts.kind = DriveKind::kNetwork;
  } else {
    const BlockDevice device = block_device(aio::block_device_of(path), root);
    facts.kind = device.kind;
    facts.device = device.name;
    if (device.kind == DriveKind::kUnknown && storage.file_system.starts_with("overlay"))
      facts.kind = DriveKind::kOverlay;
  }
  if (facts.kind == DriveKind::kNvme) {
    const auto health = aio::nvme_health({path});
    if (health.ok())
      facts.health = *health;
    else
      facts.health_problem = health.error().message();
  }
  // Memory is not measured: it would be called the fastest drive.
  if (measures && file.ok() && facts.kind != DriveKind::kMemory) measure(facts);
  return facts;
}

}  // namespace

BlockDevice block_device(const std::string& device_number, const std::string& root) {
  std::error_code error;
  fs::path folder = fs::canonical(root + "/sys/dev/block/" + device_number, error);
  if (error) return {};
  if (fs::exists(folder / "partition", error)) folder = folder.parent_path();
  const std::string name = folder.filename().string();
  // A volume of LVM, dm-crypt or a RAID is as fast as what it consists of.
  for (fs::directory_iterator it(folder / "slaves", error), end; !error && it != end;
       it.increment(error)) {
    std::string number = aio::read_text((it->path() / "dev").string());
    number.resize(std::min(number.size(), number.find('\n')));
    BlockDevice below = block_device(number, root);
    below.name = name + " on " + below.name;
    return below;
  }
  const bool is_virtual = name.starts_with("vd") || name.starts_with("xvd") ||
                          aio::read_text((folder / "device/vendor").string()).starts_with("QEMU") ||
                          aio::read_text((folder / "device/vendor").string()).starts_with("Msft");
  if (name.starts_with("nvme")) return {.name = name, .kind = DriveKind::kNvme};
  if (is_virtual) return {.name = name, .kind = DriveKind::kVirtual};
  const std::string rotational = aio::read_text((folder / "queue/rotational").string());
  if (rotational.empty()) return {.name = name};
  return {.name = name,
          .kind = rotational.front() == '1' ? DriveKind::kRotational : DriveKind::kSsd};
}

std::vector<PathFacts> path_facts(const GatherOptions& options) {
  std::vector<PathFacts> all;
  std::vector<std::string> numbers;  // of the file systems in `all`
  for (const std::string& path : options.paths) {
    if (options.silent.contains(path)) {
      all.push_back({.path = path, .is_named = options.paths_are_named, .answers = false});
      numbers.emplace_back();
      continue;
    }
    const auto number =
        within(kPathPatience, [path] { return aio::mount_info(path).device_number; });
    const auto same = number && !number->empty()
                          ? std::find(numbers.begin(), numbers.end(), *number)
                          : numbers.end();
    const bool is_new = same == numbers.end();
    auto facts = number ? within(kPathPatience,
                                 [path, root = options.root, measures = is_new && !options.quick] {
                                   return look_at(path, measures, root);
                                 })
                        : std::nullopt;
    if (!facts) facts = PathFacts{.path = path, .answers = false};
    facts->is_named = options.paths_are_named;
    if (!is_new) facts->same_as = all[static_cast<std::size_t>(same - numbers.begin())].path;
    numbers.push_back(facts->answers ? *number : "");
    all.push_back(std::move(*facts));
  }
  return all;
}

}  // namespace sluice::doctor
