// Whether files are stored in memory: on tmpfs, ramfs or a RAM disk, or on an overlay whose upper
// layer is one of these.
//
// A container's overlay does not show its upper layer. If storage_info() cannot determine it and
// files there have no blocks on a disk, the functions measure. They allocate space for an unnamed
// file and watch the kernel's count of shared memory.
//
// Side effects: a measurement briefly allocates 64 MiB of the folder's file system, once per file
//               system in the life of the process. Kernels before 6.1 have no unnamed files on an
//               overlay: there a kill at the wrong moment leaves an empty ".sluice-XXXXXX" in the
//               folder.
// Threads:      any; one measures at a time.
#pragma once

#include <string>

namespace sluice::aio {

// Applies to the files that will be created in the folder. False if it cannot be determined.
bool folder_is_memory(const std::string& folder);

// The same for an open file.
bool file_is_memory(int descriptor);

}  // namespace sluice::aio
