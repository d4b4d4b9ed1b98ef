// RunOwner: which process a run's folder belongs to, as recorded in the folder's owner.json.
//
// Threads: any, for different folders; owner.json may be read while it is written.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "aio/io_queue.h"
#include "aio/result.h"

namespace sluice::swap {

struct RunOwner {
  std::int64_t pid = 0;
  std::string host;
  std::string started_utc;  // 2026-01-31T23:59:59Z
  // Of the running kernel, the same in all of its containers, and of the installation. Empty where
  // the machine does not report them, and in what older versions wrote.
  std::string boot_id;
  std::string machine_id;
  // Of the mount that the folder was taken through, as stat() has it (st_dev). 0 where nothing
  // records it, and in what older versions wrote.
  std::uint64_t device = 0;
  friend bool operator==(const RunOwner&, const RunOwner&) = default;
};

// This process, starting now; without a device.
RunOwner this_process();

// Whether both are processes of one machine, in this boot of it or in an earlier one. A host name
// alone will not do: it changes with every container.
bool same_machine(const RunOwner& a, const RunOwner& b);

// Whether `self` would see a lock that `owner` holds, so that a free one says that `owner` ended.
// Where the file system's locks reach all its users: from the same machine, since a server that
// exports the drive does not see its clients' locks. Elsewhere locks may end at the mount, as
// FUSE's do: from the same boot and through the same mount.
bool sees_lock_of(const RunOwner& self, const RunOwner& owner, bool locks_reach_all);

inline constexpr const char* kOwnerFile = "owner.json";

// Durable and atomic, as aio/small_file.h says.
Status write_owner(aio::IoQueue& queue, const std::string& directory, const RunOwner& owner);

// Nothing where there is no owner.json, or none that makes sense or may be read.
Result<std::optional<RunOwner>> read_owner(aio::IoQueue& queue, const std::string& directory);

}  // namespace sluice::swap
