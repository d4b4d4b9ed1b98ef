// same_command: this command line without some options, for messages that say what to type next.
#pragma once

#include <set>
#include <string>

namespace CLI {  // NOLINT(readability-identifier-naming): named by CLI11
class App;
}

namespace sluice::tools {

// "sluice train run.json --out runs/a", including the options of `sluice` itself, quoted for a
// shell. `without`: names of options to leave out, such as "--resume".
std::string same_command(const CLI::App& command, const std::set<std::string>& without);

}  // namespace sluice::tools
