// The second half of resolving: what follows from several keys together, and whether they agree.
// Private to this folder.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/config/collect.h"
#include "engine/config/config.h"

namespace sluice::config {

// What the rules see: the settings, the configuration holding those that have a value, and where to
// report what was done.
class Derivation {
 public:
  Derivation(Collected& collected, Config& target, const Answers& known)
      : config(target), answers(known), collected_(collected) {}

  Config& config;
  const Answers& answers;
  Questions questions;                 // the rules set what they would have asked
  std::vector<std::string> kept_auto;  // see Resolved

  // Whether a value is given, that is, neither left out nor "auto".
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
  // Stated explicitly: neither null nor left out.
  bool says_auto(std::string_view path) const {
    const Setting* setting = find(path);
    return setting != nullptr && setting->says_auto();
  }
  // Of the source that gives a value; -1 where none does.
  int rank(std::string_view path) const { return given(path) ? find(path)->rank : -1; }

  // Whether one of the sources is a file that was written for DeepSpeed.
  bool has_deepspeed_file() const { return collected_.has_deepspeed_file; }

  // Where the value comes from, or why it is what it is.
  void note(std::string_view path, std::string reason) { notes_[path] = std::move(reason); }
  // The value that was given has no effect; `is_unused` as in KeyReport.
  void drop(std::string_view path, const std::string& reason, bool is_unused = false);
  void reject(std::string sentence) { collected_.rejections.push_back(std::move(sentence)); }

  const std::map<std::string_view, std::string>& notes() const { return notes_; }

 private:
  const Setting* find(std::string_view path) const {
    const auto found = collected_.settings.find(path);
    return found == collected_.settings.end() ? nullptr : &found->second;
  }

  Collected& collected_;
  std::map<std::string_view, std::string> notes_;  // by paths of the key table
};

void derive_batch_sizes(Derivation& derivation);       // batch.cc
void check_lanes(Derivation& derivation);              // batch.cc: after them
void derive_model(Derivation& derivation);             // model_shape.cc
void derive_lora(Derivation& derivation);              // lora.cc: after the model
void derive_parameter_groups(Derivation& derivation);  // parameter_groups.cc: after both
void derive_run_length(Derivation& derivation);        // run_length.cc: before the schedule
void derive_precision(Derivation& derivation);         // precision.cc
void derive_schedule(Derivation& derivation);          // schedule.cc
void check_schedule(Derivation& derivation);           // schedule_limits.cc: whether it can be run
void derive_all(Derivation& derivation);               // derive.cc: these and the rest, in order

// Whether the key means anything in this configuration: a scheduler reads its own parameters alone,
// a model its own family's numbers, and only adapters what is said of adapters.
bool has_effect(const Key& key, const Config& config);
bool matters_to_adapters(const Key& key, const Config& config);  // lora.cc

}  // namespace sluice::config
