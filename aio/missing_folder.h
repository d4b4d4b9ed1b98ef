// Errors for a configured folder that does not exist.
#pragma once

#include <string>

#include "aio/file_system.h"
#include "aio/result.h"

namespace sluice::aio {

// An error unless `path` is a folder. Returns kInvalidArgument if it is a file. Otherwise kNotFound
// says which part of the path exists and on which file system: an unmounted drive or a typo would
// have sent the files there. `what` names the setting: "budget.nvme_paths". Creates nothing.
Status require_folder(FileSystem& files, const std::string& what, const std::string& path);

// kNotFound if `path` is at or below a mount point of /etc/fstab whose drive is present but not
// mounted (unmounted_point()). Its files would go to the file system above, which holds the empty
// mount folder. The second overload takes the text of such a file.
Status require_mounted(const std::string& what, const std::string& path);
Status require_mounted(const std::string& what, const std::string& path, const std::string& fstab);

}  // namespace sluice::aio
