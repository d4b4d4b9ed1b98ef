// Files whose blocks are overwritten in place.
#pragma once

namespace sluice::aio {

// Asks a copy-on-write file system to overwrite this file in place (FS_NOCOW_FL; btrfs), so that it
// keeps the space allocated for it. The file must be open for writing and still empty. Returns
// whether the flag was set: false on file systems without such a flag, including all that overwrite
// in place anyway.
bool set_overwritten_in_place(int descriptor);

}  // namespace sluice::aio
