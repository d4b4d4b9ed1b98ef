// Whether files are memory: on tmpfs, ramfs or a RAM disk, or on an overlay whose upper layer is
// one of them.
//
// A container's overlay does not show what its upper layer is. So where storage_info() does not
// know it and files there have no blocks on a disk, space is taken for a file without a name while
// what the kernel counts as shared memory is observed.
//
// Side effects: just then 64 MiB of the folder's file system are taken for a moment, once for each
//               file system in the life of the process. Kernels before 6.1 have no files without a
//               name on an overlay: there a kill at the wrong moment leaves an empty
//               ".sluice-XXXXXX" in the folder.
// Threads:      any; one measures at a time.
#pragma once

#include <string>

namespace sluice::aio {

// Of a folder: the files that will be made in it. False where it cannot be determined.
bool folder_is_memory(const std::string& folder);

// Of an open file.
bool file_is_memory(int descriptor);

}  // namespace sluice::aio
