// keep_lines: what is about to be cut off a file of lines, appended to another file first.
//
// Errors: name the file. After one the other file is as it was, as far as that can be had.
#pragma once

#include <cstdint>
#include <string>

#include "aio/result.h"

namespace sluice::engine {

// The whole lines of `from` behind `begin_bytes`; durable when it returns. How many there are. A
// last line without an end counts where it is a whole JSON object, and is torn else.
Result<std::int64_t> keep_lines(const std::string& from, std::uint64_t begin_bytes,
                                const std::string& to);

// "runs/a/metrics.jsonl" -> "runs/a/metrics-cut.jsonl": where cut lines go if nothing is said.
std::string cut_lines_path(const std::string& path);

}  // namespace sluice::engine
