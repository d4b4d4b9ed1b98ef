// Findings as a table for a terminal, and as JSON for programs.
//
// Threads: pure functions.
#pragma once

#include <string>
#include <vector>

#include "tools/doctor/judge.h"

namespace sluice::doctor {

struct TableOptions {
  int columns = 100;
  bool colours = false;
};
// A line for each finding, with its cost and how to change it below, and a line that says whether
// training is possible.
std::string table_of(const std::vector<Finding>& findings, const TableOptions& options);

// One object: "version", "possible", and "lines" with "key", "subject", "state" (good, limited,
// not_possible), "needed", "found", "cost", "change" and "values".
std::string json_of(const std::vector<Finding>& findings, const std::string& version);

}  // namespace sluice::doctor
