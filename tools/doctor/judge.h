// Judges the facts of a machine: what is good for training, what is limited, and what is not
// possible.
//
// Threads: pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "tools/doctor/machine_facts.h"

namespace sluice::doctor {

enum class State : std::uint8_t { kGood, kLimited, kNotPossible };
std::string_view to_string(State state);  // "good", "limited", "not possible"

using Value = std::variant<bool, std::int64_t, double, std::string>;

struct Finding {
  std::string key;      // stable: "memlock", "gpu.0"
  std::string subject;  // "locked memory"
  State state = State::kGood;
  std::string found;   // What the machine has.
  std::string cost;    // What it costs, or what cannot be done; empty if it is good.
  std::string change;  // How to change it, if that is possible.
  // Not possible, and training needs it on this machine.
  bool is_needed = false;
  std::vector<std::pair<std::string, Value>> values;  // what `found` says, for programs
};

// In a fixed order: engine, GPUs, processor, memory, system, drives.
std::vector<Finding> judge(const MachineFacts& facts);

// Whether training is possible: no finding is needed and not possible.
bool can_train(const std::vector<Finding>& findings);

// The parts of judge().
void judge_engine(const MachineFacts& facts, std::vector<Finding>& findings);
void judge_gpus(const MachineFacts& facts, std::vector<Finding>& findings);
void judge_host(const MachineFacts& facts, std::vector<Finding>& findings);
void judge_paths(const MachineFacts& facts, std::vector<Finding>& findings);

// Makes the finding worse, with one more sentence of each kind.
void add_problem(Finding& finding, State state, const std::string& cost, const std::string& change);

}  // namespace sluice::doctor
