// What the command lines of all programs have in common: one sentence for each mistake, and the
// command as text for their results.
#pragma once

#include <string>
#include <string_view>

#include "aio/result.h"

namespace CLI {  // NOLINT(readability-identifier-naming): named by CLI11
class App;
}

namespace sluice::tools {

// Adds --version, and parses; the app's name is the program's. False: help or version was asked for
// and printed. kInvalidArgument: one sentence.
Result<bool> parse_words(CLI::App& app, int argc, const char* const* argv);

// In a form that could be typed again.
std::string command_text(std::string_view program, int argc, const char* const* argv);

}  // namespace sluice::tools
