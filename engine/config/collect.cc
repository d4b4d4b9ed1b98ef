#include "engine/config/collect.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "engine/config/key_value.h"
#include "engine/config/nearest_key.h"

namespace sluice::config {
namespace {

constexpr std::string_view kZero = "zero_optimization";
constexpr const char* kEnabled = "enabled";
constexpr const char* kAuto = "auto";

// JSON has no comments, so users write them as keys.
bool is_comment(std::string_view word) {
  return word.starts_with('_') || word.starts_with("//") || word.starts_with('#') ||
         word == "comment" || word == "comments";
}

// Whether the value is DeepSpeed's default, or what Sluice does in any case.
bool is_done_anyway(std::string_view path, const Json& value) {
  constexpr std::string_view kDoneInFp32[] = {"communication_data_type",
                                              "seq_parallel_communication_data_type",
                                              "data_types.grad_accum_dtype"};
  if (path == "gradient_predivide_factor") return value == Json(1.0);
  if (path == "fp32_allreduce" || path == "allreduce_always_fp32") return as_boolean(value) == true;
  return (value == Json("fp32") || value == Json("float32")) &&
         std::find(std::begin(kDoneInFp32), std::end(kDoneInFp32), path) != std::end(kDoneInFp32);
}

// Whether an ignored key would do anything in DeepSpeed that Sluice does not do.
bool asks_for_something(const std::string& path, const Json& value) {
  if (value.is_object() && value.contains(kEnabled))
    return asks_for_something(path, value.at(kEnabled));
  if (value.is_object()) {
    for (const auto& [word, inner] : value.items())
      if (asks_for_something(std::string(path).append(".").append(word), inner)) return true;
    return false;
  }
  return !value.is_null() && value != Json(kAuto) && as_boolean(value) != false &&
         !(value.is_array() && value.empty()) && !is_done_anyway(path, value);
}

class Collector {
 public:
  Collector(const Document& document, Collected& collected)
      : document_(document), collected_(collected) {}

  void section(const Json& object, const std::string& prefix) {
    for (const auto& [word, value] : object.items()) {
      std::string path = prefix;
      if (!path.empty()) path += '.';
      path += word;
      if (is_comment(word)) {
        ignore(printable(path), value, "a comment");
      } else if (word.find('.') != std::string::npos) {
        unknown(path, "a dotted path does not work inside a file: nest the key in braces");
      } else if (const Key* key = find_key(path)) {
        known(*key, value);
      } else if (is_section(path)) {
        subsection(path, value);
      } else {
        unknown(path, suggest_key(path));
      }
    }
  }

 private:
  void subsection(const std::string& path, const Json& value) {
    if (value.is_null() || (value.is_object() && value.empty())) {
      ignore(path, value, "an empty section: its keys keep their defaults");
    } else if (value.is_object()) {
      section(value, path);
    } else if (path == kZero && as_boolean(value)) {
      // The oldest form in DeepSpeed: zero_optimization: true is stage 1.
      set(*find_key("zero_optimization.stage"), *as_boolean(value) ? 1 : 0,
          "zero_optimization was given as " + short_text(value));
    } else {
      reject(path + " is a section: it must be an object in braces, not " + short_text(value));
    }
  }

  void known(const Key& key, const Json& value) {
    switch (key.treatment) {
      case Treatment::kHonoured:
        return set(key, value, {});
      case Treatment::kIgnored:
        return ignore_of_deepspeed(key, value);
      case Treatment::kRefusedIfTrue:
        if (!refuse_if_true(key, std::string(key.path), value))
          ignore(std::string(key.path), value, "not enabled");
        return;
      case Treatment::kRefused:
        return reject(std::string(key.path) + " cannot be used: " + std::string(key.reason));
      case Treatment::kAlias:
        return alias(key, value);
    }
  }

  void ignore_of_deepspeed(const Key& key, const Json& value) {
    ignore(std::string(key.path), value, std::string(key.reason));
    collected_.ignored.back().is_unused = asks_for_something(std::string(key.path), value);
  }

  // Refuses true, or a section with a true `enabled`. In a section without `enabled`, each inner
  // section is checked by itself. Later sources win here too. Returns whether anything is refused.
  bool refuse_if_true(const Key& key, const std::string& path, const Json& value) {
    if (value.is_object() && !value.contains(kEnabled)) {
      bool refused = false;
      for (const auto& [word, inner] : value.items()) {
        const std::string place = std::string(path).append(".").append(word);
        if (inner.is_object()) refused = refuse_if_true(key, place, inner) || refused;
      }
      return refused;
    }
    const Json asked = value.is_object() ? value.at(kEnabled) : value;
    if (asked.is_null() || (document_.lenient && asked == Json(kAuto))) return false;
    overrule(path);
    if (as_boolean(asked) == false || (value.is_object() && asked == Json(kAuto))) return false;
    collected_.refused[path] = {path, Outcome::kIgnored, short_text(value),
                                document_.name + ": " + path + " cannot be " + short_text(value) +
                                    ": " + std::string(key.reason),
                                document_.name};
    return true;
  }

  // Drops what earlier sources requested at this path and below it.
  void overrule(const std::string& path) {
    for (auto before = collected_.refused.begin(); before != collected_.refused.end();) {
      auto& [asked_at, report] = *before;
      if (asked_at != path && !asked_at.starts_with(path + ".")) {
        ++before;
        continue;
      }
      report.reason = "overruled by " + document_.name;
      collected_.ignored.push_back(std::move(report));
      before = collected_.refused.erase(before);
    }
  }

  void alias(const Key& key, const Json& value) {
    const bool is_share = !key.share_of.empty() && value.is_number() && value > 0 && value < 1;
    const std::string target(is_share ? key.share_of : key.alias_of);
    const Key* meant = find_key(target);
    if (meant == nullptr) return subsection(target, value);
    const std::string note = "given as " + std::string(key.path);
    if (key.is_old_name) return set(*meant, value, note + ", its old name", &key);
    if (meant->choices.empty()) return set(*meant, value, note, &key);
    // A switch that became a key with choices: on is the second choice, off the first.
    if (Setting{meant, value}.is_auto()) return set(*meant, value, note, &key);
    const auto boolean = as_boolean(value);
    if (!boolean) {
      return reject(std::string(key.path) + " must be true or false, not " + short_text(value));
    }
    const auto choices = split_choices(meant->choices);
    set(*meant, Json(std::string(choices.at(*boolean ? 1 : 0))), note, &key);
  }

  // `given_as`: the alias in the document.
  void set(const Key& key, const Json& value, std::string note, const Key* given_as = nullptr) {
    Setting setting{&key, value, document_.rank, document_.name, std::move(note)};
    if (given_as != nullptr) {
      setting.given_as = given_as->path;
      setting.has_old_name = given_as->is_old_name;
    }
    const auto found = collected_.settings.find(key.path);
    if (found == collected_.settings.end()) {
      collected_.settings.emplace(key.path, std::move(setting));
      return;
    }
    Setting& before = found->second;
    if (before.rank == setting.rank) {
      const std::string_view other = setting.given_as.empty() ? before.given_as : setting.given_as;
      return reject(std::string(key.path) + " is given twice, also as " +
                    std::string(other.empty() ? "another name" : other) + ": keep one of them");
    }
    if (document_.lenient && setting.is_auto()) {
      before.note = document_.name + " says \"auto\", so this file decides";
      before.was_auto = setting.says_auto();
      return;
    }
    collected_.ignored.push_back({std::string(key.path), Outcome::kIgnored,
                                  short_text(before.value), "overruled by " + setting.source,
                                  before.source});
    before = std::move(setting);
  }

  void unknown(const std::string& path, const std::string& hint) {
    reject(printable(path) + " is not a key of Sluice or DeepSpeed; " + hint);
  }

  void ignore(std::string path, const Json& value, std::string reason) {
    collected_.ignored.push_back(
        {std::move(path), Outcome::kIgnored, short_text(value), std::move(reason), document_.name});
  }

  void reject(const std::string& sentence) {
    collected_.rejections.push_back(document_.name + ": " + sentence);
  }

  const Document& document_;
  Collected& collected_;
};

}  // namespace

bool Setting::is_auto() const {
  if (value.is_null()) return true;
  if (!value.is_string() || value.get_ref<const std::string&>() != "auto") return false;
  for (const std::string_view choice : split_choices(key->choices)) {
    if (choice == "auto") return false;
  }
  return true;
}

bool Setting::says_auto() const { return value.is_string() && is_auto(); }

void collect(const Document& document, Collected& collected) {
  collected.has_deepspeed_file = collected.has_deepspeed_file || document.lenient;
  if (document.root.is_object()) return Collector(document, collected).section(document.root, "");
  collected.rejections.push_back(document.name +
                                 ": a configuration must be one object in braces, not " +
                                 short_text(document.root));
}

}  // namespace sluice::config
