// Taking a checkpoint away so that it never looks whole when it is not: its manifest goes first,
// durably, then the files, then the folder.
//
// Only files with a checkpoint's names are removed; a folder with others in it stays, with them.
#pragma once

#include <string>

#include "aio/file_system.h"
#include "aio/io_queue.h"
#include "aio/result.h"

namespace sluice::engine {

// A checkpoint, or what an interrupted save or removal left. One that is not there is ok: a removal
// may be repeated after an error. Durable when it returns ok.
Status remove_checkpoint(aio::FileSystem& files, const std::string& folder);

// After a kill: `<folder>.new` takes the place of `folder` if it is a whole replacement, and is
// removed if it is not. Ok, too, when there is no such folder.
Status settle_replacement(aio::FileSystem& files, const std::string& folder);

}  // namespace sluice::engine
