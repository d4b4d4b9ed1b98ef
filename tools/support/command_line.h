// Shared by the command lines of all programs: one sentence for each mistake, and the command as
// text for results.
#pragma once

#include <string>
#include <string_view>

#include "aio/result.h"

namespace CLI {  // NOLINT(readability-identifier-naming): named by CLI11
class App;
}

namespace sluice::tools {

// Adds --version and parses; the app's name is the program's name. False: help or the version was
// requested and printed. kInvalidArgument: one sentence.
Result<bool> parse_words(CLI::App& app, int argc, const char* const* argv);

// The command line as it could be typed again.
std::string command_text(std::string_view program, int argc, const char* const* argv);

}  // namespace sluice::tools
