// keep_lines: appends to another file what is about to be cut off a file of lines.
//
// Errors: name the file. After one the other file is as it was, unless cutting it back fails too.
#pragma once

#include <cstdint>
#include <string>

#include "aio/result.h"

namespace sluice::engine {

// Keeps the whole lines of `from` after `begin_bytes`; durable when it returns. Returns how many
// there are. A last line without an end is whole if it is a JSON object, else torn and left out.
Result<std::int64_t> keep_lines(const std::string& from, std::uint64_t begin_bytes,
                                const std::string& to);

// "runs/a/metrics.jsonl" -> "runs/a/metrics-cut.jsonl": where cut lines go by default.
std::string cut_lines_path(const std::string& path);

}  // namespace sluice::engine
