// Which drive holds a file, by names that a user can look up.
#pragma once

#include <string>

namespace sluice::aio {

// The block device and mount point that hold `path`: "/dev/nvme0n1p2 (xfs, mounted at /nvme)";
// empty where the machine does not report it.
//
// Never hangs. Symbolic links are followed by a separate thread. Where that does not return within
// a second, the place it is looking at lies on a mount that does not respond; that mount is then
// the answer, and the thread is left behind.
std::string describe_drive(const std::string& path);

// The target of a symbolic link; empty for everything else. Asks the drive that the link is on.
std::string link_target(const std::string& path);

}  // namespace sluice::aio
