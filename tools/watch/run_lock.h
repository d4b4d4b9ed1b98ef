// Whether a process trains in a run's folder, without touching the lock: taking it to see whether
// it is free could refuse a run that begins at that moment. The kernel lists the locks of this
// machine in /proc/locks, but not those of network or user-space file systems, and not in another
// container.
//
// Threads: any. Errors: kUnknown.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace sluice::watch {

enum class RunLock : std::uint8_t { kUnknown, kFree, kHeld };

// `folder`: the run's. kFree if there is no lock file.
RunLock run_lock(const std::string& folder);

// Whether `locks`, the text of /proc/locks, has a flock() of this inode.
bool lists_lock(std::string_view locks, std::uint64_t inode);

}  // namespace sluice::watch
