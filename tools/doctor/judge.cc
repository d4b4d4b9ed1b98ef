#include "tools/doctor/judge.h"

#include <algorithm>

namespace sluice::doctor {

std::string_view to_string(State state) {
  switch (state) {
    case State::kGood:
      return "good";
    case State::kLimited:
      return "limited";
    case State::kNotPossible:
      return "not possible";
  }
  return "unknown";
}

void add_problem(Finding& finding, State state, const std::string& cost,
                 const std::string& change) {
  const auto append = [](std::string& text, const std::string& sentence) {
    if (!text.empty() && !sentence.empty()) text += ' ';
    text += sentence;
  };
  finding.state = std::max(finding.state, state);
  append(finding.cost, cost);
  append(finding.change, change);
}

std::vector<Finding> judge(const MachineFacts& facts) {
  std::vector<Finding> findings;
  judge_engine(facts, findings);
  judge_gpus(facts, findings);
  judge_host(facts, findings);
  judge_paths(facts, findings);
  return findings;
}

bool can_train(const std::vector<Finding>& findings) {
  return std::none_of(findings.begin(), findings.end(), [](const Finding& finding) {
    return finding.is_needed && finding.state == State::kNotPossible;
  });
}

}  // namespace sluice::doctor
