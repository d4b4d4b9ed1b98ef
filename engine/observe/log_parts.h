// The parts of a file of lines that is begun anew when it has grown: PATH has the newest lines,
// PATH.1 those before it, PATH.2 those before these.
//
// Parts are renamed from the oldest on, so each has one name at any time. A crash meanwhile leaves
// a number without a part, or no PATH; readers and writers take what there is.
//
// Errors: name the file.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "aio/result.h"

namespace sluice::engine {

// Those that there are, the oldest first. PATH itself is among them whatever it is; others only as
// regular files, and not as links to some.
std::vector<std::string> log_parts(const std::string& path);

// For who reads while somebody writes: read() with each part, the oldest first, or with PATH where
// there is none. Where parts were renamed meanwhile: begin(), and all of them again.
Status visit_log_parts(const std::string& path, const std::function<void()>& begin,
                       const std::function<Status(const std::string& part)>& read);

// Makes PATH, which `descriptor` is of, its first older part. Returns a descriptor of a new PATH,
// opened for writing with `flags` besides. After an error PATH is what it was. A link is refused.
Result<int> begin_log_part(const std::string& path, int descriptor, int flags = 0);

}  // namespace sluice::engine
