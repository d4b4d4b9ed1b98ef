// Small files read and written whole: manifests and the like.
//
// write_small_file() and remove_durably() are durable when they return ok. At every moment, even
// through a power loss or any failing call, a reader of `path` sees the whole old or the whole new
// content (or no file, where there was none). The new content is written to `path`.new first; what
// an interrupted write left there is replaced by the next.
//
// Threads: one writer of a path at a time; readers at any.
// Errors:  those of the calls it makes. After one, either the old or the new content is there,
//          whole.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "aio/file_system.h"
#include "aio/io_queue.h"
#include "aio/result.h"

namespace sluice::aio {

// kNotFound where there is no such file; kInvalidArgument for one of more than max_bytes.
Result<std::string> read_small_file(IoQueue& queue, const std::string& path,
                                    std::uint64_t max_bytes);

Status write_small_file(IoQueue& queue, const std::string& path, std::string_view content);

// A file, or an empty folder. It need not exist: a removal may be repeated after an error.
Status remove_durably(FileSystem& files, const std::string& path);

// An unused name: `path`, else the first of "<path>-2", "<path>-3" and so on. For what
// is moved out of the way; whoever holds the folder's lock can rely on it.
Result<std::string> unused_name(FileSystem& files, const std::string& path);

}  // namespace sluice::aio
