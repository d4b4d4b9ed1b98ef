// Formats what became of each key as an aligned table for users.
#pragma once

#include <string>

#include "engine/config/resolve.h"

namespace sluice::config {

struct ReportOptions {
  bool verbose = false;  // also keys that no source gives
};

// Grouped: honoured, derived, ignored and, if verbose, defaults; then format_autos(). One line per
// key, and each ends in "\n". Empty groups are left out.
std::string format_report(const Resolved& resolved, const ReportOptions& options = {});

// What each "auto" of the sources became and why, and how to set it. Empty if there is none.
std::string format_autos(const Resolved& resolved);

// One sentence that names the keys that request something without effect (KeyReport::is_unused). It
// omits their values: logs keep the sentence, and a value may be a password. Empty if there is
// none.
std::string unused_keys(const Resolved& resolved);

// One sentence that names the keys given under old names, with their names today. Empty if there is
// none.
std::string renamed_keys(const Resolved& resolved);

}  // namespace sluice::config
