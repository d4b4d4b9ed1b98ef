// Files whose blocks stay where they are when they are overwritten.
#pragma once

namespace sluice::aio {

// Asks a copy-on-write file system to overwrite this file in place (FS_NOCOW_FL; btrfs), so that
// the space allocated for it stays its own. The file must be open for writing and still empty.
// Returns whether it will be: false on file systems without such a flag, including all those that
// overwrite in place anyway.
bool set_overwritten_in_place(int descriptor);

}  // namespace sluice::aio
