// Names the drive that holds a file, with names that a user can look up.
#pragma once

#include <string>

namespace sluice::aio {

// The block device and mount point that hold `path`: "/dev/nvme0n1p2 (xfs, mounted at /nvme)";
// empty if the machine does not report it.
//
// Never hangs. A separate thread follows symbolic links. If it does not return within a second, the
// path component that it is accessing is on a mount that does not respond. That mount is then the
// answer, and the thread is abandoned.
std::string describe_drive(const std::string& path);

// The target of a symbolic link; empty for everything else. Accesses the drive of the link.
std::string link_target(const std::string& path);

}  // namespace sluice::aio
