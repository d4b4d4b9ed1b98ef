// The small files of a run's folder on a path: `owner.json`, the process that owns it (RunOwner),
// and `store.json`, the store's layout (StoreManifest).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "aio/io_queue.h"
#include "aio/result.h"
#include "swap/store_layout.h"

namespace sluice::swap {

// RunOwner: the process that owns a run's folder, as recorded in the folder's owner.json.
//
// Threads: any, for different folders; owner.json may be read while it is written.
struct RunOwner {
  std::int64_t pid = 0;
  std::string host;
  std::string started_utc;  // 2026-01-31T23:59:59Z
  // boot_id identifies the running kernel and is the same in all of its containers; machine_id
  // identifies the installation. Empty if the machine does not report them, or if an older version
  // wrote the file.
  std::string boot_id;
  std::string machine_id;
  // The device (st_dev) of the mount through which the folder was taken. 0 if it was not recorded,
  // or if an older version wrote the file.
  std::uint64_t device = 0;
  friend bool operator==(const RunOwner&, const RunOwner&) = default;
};

// This process, with the current time as its start; without a device.
RunOwner this_process();

// Whether both are processes of one machine, in the same boot or in different ones. A host name
// alone is not enough: it changes with every container.
bool same_machine(const RunOwner& a, const RunOwner& b);

// Whether `self` would see a lock that `owner` holds, so that a free lock proves that `owner`
// ended. If the file system's locks reach all its users, this requires the same machine, because a
// server that exports the drive does not see its clients' locks. Other locks may be limited to a
// mount, as FUSE's are; then it requires the same boot and the same mount.
bool sees_lock_of(const RunOwner& self, const RunOwner& owner, bool locks_reach_all);

inline constexpr const char* kOwnerFile = "owner.json";

// Durable and atomic: see aio/small_file.h.
Status write_owner(aio::IoQueue& queue, const std::string& directory, const RunOwner& owner);

// Empty if there is no owner.json, or if it is invalid or unreadable.
Result<std::optional<RunOwner>> read_owner(aio::IoQueue& queue, const std::string& directory);

// StoreManifest: the layout as text, `store.json` in the run's folder on every path. FORMAT.md
// specifies the keys.
struct StoreManifest {
  StoreLayout layout;
  std::size_t member;  // index of the layout's path that has this copy
};
std::string to_text(const StoreLayout& layout, std::size_t member);
// Accepts any bytes; kCorrupt or kInvalidArgument with one sentence.
Result<StoreManifest> parse_manifest(std::string_view text);

// Reads the manifest of a folder. kNotFound if there is no store.json; kCorrupt, kNewerVersion and
// read errors name the file.
Result<StoreManifest> read_manifest(aio::IoQueue& queue, const std::string& folder);

// An error if the store with this folder may be more than scratch. That is so if a part of it is
// missing, is unreadable, or has a `closed.json`, with which earlier versions marked a store as
// complete. Ok if there is no store.
Status check_is_scratch(aio::IoQueue& queue, const std::string& folder, const std::string& run);

}  // namespace sluice::swap
