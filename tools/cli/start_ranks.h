// The ranks of one machine as processes of this one: the same command once more for each, with the
// variables that a launcher would set.
#pragma once

#include <string>
#include <vector>

#include "aio/result.h"

namespace sluice::tools {

// The command line of this process.
Result<std::vector<std::string>> own_words();

// Starts so many of them and waits for all. An interrupt of this process is the first rank's to
// answer; if this process goes, so do they. The exit code is the first rank's, or 1 where only
// another one failed. Errors: kNotFound where one cannot be started; then none stays.
Result<int> run_ranks(const std::vector<std::string>& words, int ranks);

// In a rank that was started so, at the beginning: a socket that listens for the others, or -1.
int begin_as_rank();

}  // namespace sluice::tools
