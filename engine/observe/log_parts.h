// The parts of a file of lines that is started anew when it has grown. PATH has the newest lines,
// PATH.1 the lines before those, PATH.2 the lines before those, and so on.
//
// Parts are renamed from the oldest on, so each has one name at any time. A crash in between may
// leave a missing number, or no PATH; readers and writers use the existing files.
//
// Errors: name the file.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "aio/result.h"

namespace sluice::engine {

// The existing parts, the oldest first. PATH itself is always included if it exists; others only if
// they are regular files, and not links.
std::vector<std::string> log_parts(const std::string& path);

// For reading while another process writes: calls read() with each part, the oldest first, or with
// PATH if there is none. If parts were renamed meanwhile, calls begin() and reads all of them
// again.
Status visit_log_parts(const std::string& path, const std::function<void()>& begin,
                       const std::function<Status(const std::string& part)>& read);

// Renames PATH, which is open as `descriptor`, to its first older part. Returns a descriptor of a
// new PATH, opened for writing with the additional `flags`. After an error PATH is unchanged. A
// link is refused.
Result<int> begin_log_part(const std::string& path, int descriptor, int flags = 0);

}  // namespace sluice::engine
