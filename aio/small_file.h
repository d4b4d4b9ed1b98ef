// Small files that are read and written whole, such as manifests.
//
// write_small_file() and remove_durably() are durable when they return ok. A reader of `path`
// always sees the whole old or the whole new content (or no file, if there was none), even after a
// power loss or any failing call. The new content is written to `path`.new first; the next write
// replaces what an interrupted one left there.
//
// Threads: one writer of a path at a time; readers at any time.
// Errors:  errors of the calls it makes. After one, either the old or the new content is complete.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "aio/file_system.h"
#include "aio/io_queue.h"
#include "aio/result.h"

namespace sluice::aio {

// kNotFound: there is no such file; kInvalidArgument: the file has more than max_bytes.
Result<std::string> read_small_file(IoQueue& queue, const std::string& path,
                                    std::uint64_t max_bytes);

Status write_small_file(IoQueue& queue, const std::string& path, std::string_view content);

// Removes a file or an empty folder. It need not exist: a removal may be repeated after an error.
Status remove_durably(FileSystem& files, const std::string& path);

// An unused name: `path`, else the first unused of "<path>-2", "<path>-3" and so on. For files that
// are moved out of the way; the result is reliable for the holder of the folder's lock.
Result<std::string> unused_name(FileSystem& files, const std::string& path);

}  // namespace sluice::aio
