#include "engine/config/decay_of_stored.h"

#include <algorithm>

namespace sluice::config {
namespace {

constexpr const char* kKey = "optimizer.params.decayed";

bool is_given(const Resolved& resolved) {
  return std::any_of(resolved.reports.begin(), resolved.reports.end(),
                     [](const KeyReport& report) { return report.path == kKey && report.given; });
}

const char* name_of(DecayedParameters decayed) {
  return decayed == DecayedParameters::kAll ? "all" : "matrices";
}

}  // namespace

std::string keep_decayed_parameters(const std::string& stored, Resolved& resolved) {
  const auto before = resolve({.run_file = Source{.name = "the checkpoint", .text = stored}});
  if (!before.ok()) return {};  // of another version: what it has in common is checked elsewhere
  const DecayedParameters had =
      is_given(*before) ? before->config.optimizer.decayed_parameters : DecayedParameters::kAll;
  Optimizer& optimizer = resolved.config.optimizer;
  if (optimizer.decayed_parameters == had) return {};
  const std::string now = name_of(optimizer.decayed_parameters);
  const bool matters = optimizer.weight_decay > 0;
  if (is_given(resolved)) {
    return matters
               ? std::string(kKey) + " was " + name_of(had) + ", and is " + now + " from here on"
               : "";
  }
  optimizer.decayed_parameters = had;
  if (!matters) return {};
  return std::string("weight decay goes on applying to ") +
         (had == DecayedParameters::kAll ? "all parameters" : "matrices alone") +
         ", as it did so far in this run; --set " + kKey + "=" + now + " changes that";
}

}  // namespace sluice::config
