// What became of each key, as an aligned table for people to read.
#pragma once

#include <string>

#include "engine/config/resolve.h"

namespace sluice::config {

struct ReportOptions {
  bool verbose = false;  // also the keys that no source gave
};

// Grouped: honoured, derived, ignored and, when verbose, defaults; then format_autos(). One line
// per key, lines end in "\n". A group without keys is left out.
std::string format_report(const Resolved& resolved, const ReportOptions& options = {});

// What each "auto" of the sources became and why, and how to choose it. Empty without any.
std::string format_autos(const Resolved& resolved);

// One sentence that names the keys that ask for something and have no effect
// (KeyReport::is_unused), without their values: logs keep the sentence, and one may be a password.
// Empty without any.
std::string unused_keys(const Resolved& resolved);

}  // namespace sluice::config
