// The answer to a folder that was named and is not there.
#pragma once

#include <string>

#include "aio/file_system.h"
#include "aio/result.h"

namespace sluice::aio {

// An error unless `path` is a folder. kNotFound says which part of it exists and on which file
// system, where a drive that is not mounted, or a slip of the pen, would have sent the files;
// kInvalidArgument where it is a file. `what` names the setting: "budget.nvme_paths". Makes
// nothing.
Status require_folder(FileSystem& files, const std::string& what, const std::string& path);

// An error, kNotFound, where `path` lies at or below a mount point of /etc/fstab that has nothing
// mounted: its files would go to the file system above, where the folder is that waits for the
// drive.
Status require_mounted(const std::string& what, const std::string& path);

}  // namespace sluice::aio
