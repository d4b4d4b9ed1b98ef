// The second half of resolving: derives values from several keys together, and checks that they
// agree. Private to this folder.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/config/collect.h"
#include "engine/config/config.h"

namespace sluice::config {

// The input and output of the rules: the settings, the configuration with the given values, and the
// notes and errors to report.
class Derivation {
 public:
  Derivation(Collected& collected, Config& target, const ResolverFacts& known)
      : config(target), facts(known), collected_(collected) {}

  Config& config;
  const ResolverFacts& facts;
  MissingFacts missing_facts;          // that the rules would have used
  std::vector<std::string> kept_auto;  // see Resolved
  bool model_refused = false;          // model.path's config.json; a stand-in has its place

  // Whether a value is given, that is, neither omitted nor "auto".
  bool given(std::string_view path) const {
    const Setting* setting = find(path);
    return setting != nullptr && !setting->is_auto();
  }
  bool is_auto(std::string_view path) const {
    const Setting* setting = find(path);
    return setting != nullptr && setting->is_auto();
  }
  // Whether any key of this section has a value.
  bool gives_any(std::string_view section) const {
    const std::string prefix = std::string(section) + ".";
    for (const auto& [path, setting] : collected_.settings)
      if (std::string_view(path).starts_with(prefix) && !setting.is_auto()) return true;
    return false;
  }
  // Whether a source gives "auto" explicitly: neither null nor omitted.
  bool says_auto(std::string_view path) const {
    const Setting* setting = find(path);
    return setting != nullptr && setting->says_auto();
  }
  // Rank of the source that gives the value; -1 if none does.
  int rank(std::string_view path) const { return given(path) ? find(path)->rank : -1; }

  // Whether one of the sources is a file written for DeepSpeed.
  bool has_deepspeed_file() const { return collected_.has_deepspeed_file; }

  // Records the source of the value, or the reason for it.
  void note(std::string_view path, std::string reason) { notes_[path] = std::move(reason); }
  // Reports that the given value has no effect; `is_unused` as in KeyReport.
  void drop(std::string_view path, const std::string& reason, bool is_unused = false);
  void reject(std::string sentence) { collected_.rejections.push_back(std::move(sentence)); }

  const std::map<std::string_view, std::string>& notes() const { return notes_; }

 private:
  const Setting* find(std::string_view path) const {
    const auto found = collected_.settings.find(path);
    return found == collected_.settings.end() ? nullptr : &found->second;
  }

  Collected& collected_;
  std::map<std::string_view, std::string> notes_;  // by path in the key table
};

void derive_batch_sizes(Derivation& derivation);       // batch.cc
void check_lanes(Derivation& derivation);              // batch.cc: after derive_batch_sizes()
void derive_model(Derivation& derivation);             // model_shape.cc
void derive_lora(Derivation& derivation);              // lora.cc: after the model
void derive_parameter_groups(Derivation& derivation);  // parameter_groups.cc: after model and lora
void derive_run_length(Derivation& derivation);        // run_length.cc: before the schedule
void derive_precision(Derivation& derivation);         // precision.cc
void derive_schedule(Derivation& derivation);          // schedule.cc
void check_schedule(Derivation& derivation);  // schedule_limits.cc: whether it can run to its end
void derive_all(Derivation& derivation);      // derive.cc: all of these and more, in order

// Whether the key has an effect in this configuration. A scheduler reads only its own parameters, a
// model only its family's numbers, and recipe.lora matters only for adapters.
bool has_effect(const Key& key, const Config& config);
bool matters_to_adapters(const Key& key, const Config& config);  // lora.cc

}  // namespace sluice::config
