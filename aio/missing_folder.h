// The answer to a folder that was named and does not exist.
#pragma once

#include <string>

#include "aio/file_system.h"
#include "aio/result.h"

namespace sluice::aio {

// An error unless `path` is a folder. kNotFound says which part of it exists and on which file
// system, that is, where an unmounted drive or a typo would have sent the files;
// kInvalidArgument where it is a file. `what` names the setting: "budget.nvme_paths". Creates
// nothing.
Status require_folder(FileSystem& files, const std::string& what, const std::string& path);

// An error, kNotFound, where `path` lies at or below a mount point of /etc/fstab whose drive is
// present but not mounted (unmounted_point()): its files would go to the file system above, which
// holds the folder that waits for the drive. The second takes the text of another such file.
Status require_mounted(const std::string& what, const std::string& path);
Status require_mounted(const std::string& what, const std::string& path, const std::string& fstab);

}  // namespace sluice::aio
