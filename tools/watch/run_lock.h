// Whether somebody trains in a run's folder, without taking part: taking the lock to see whether it
// is free could refuse a run that begins at that moment. The kernel lists the locks of this machine
// (/proc/locks); of a network's or a user's file system, and in another container, it does not know
// them.
//
// Threads: any. Errors: kUnknown.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace sluice::watch {

enum class RunLock : std::uint8_t { kUnknown, kFree, kHeld };

// `folder`: the run's. Where there is no lock file, nobody trains there (kFree).
RunLock run_lock(const std::string& folder);

// Whether `locks`, the text of /proc/locks, has a flock() of this inode.
bool lists_lock(std::string_view locks, std::uint64_t inode);

}  // namespace sluice::watch
