#include "engine/config/parameter_groups.h"

#include <fnmatch.h>

#include <algorithm>
#include <cctype>
#include <set>
#include <string_view>
#include <utility>

#include "engine/config/derive.h"
#include "engine/families/families.h"

namespace sluice::config {
namespace {

constexpr std::size_t kNamesSaid = 3;

bool decays(const Optimizer& optimizer, const engine::ParameterSpec& parameter) {
  return optimizer.decayed_parameters == DecayedParameters::kAll ||
         parameter.group == engine::kDecayed;
}

class Matcher {
 public:
  explicit Matcher(const engine::ParameterNames& names) : names_(names) {}

  bool matches(const std::string& pattern, const std::string& name) const {
    return ::fnmatch(pattern.c_str(), name.c_str(), 0) == 0 ||
           (name != names_.head && ::fnmatch(pattern.c_str(), in_files(name).c_str(), 0) == 0);
  }
  // The distance of the nearer of the two names.
  int distance(const std::string& pattern, const std::string& name) const;

 private:
  std::string in_files(const std::string& name) const { return std::string(names_.prefix) + name; }

  const engine::ParameterNames& names_;
};

// The number of edits after which a pattern matches the name; * stands for any text, ? for any
// letter.
int edits_to_match(std::string_view pattern, std::string_view name) {
  std::vector<int> last(name.size() + 1), row(name.size() + 1);
  for (std::size_t j = 0; j <= name.size(); ++j) last[j] = static_cast<int>(j);
  for (const char letter : pattern) {
    const bool any = letter == '*';
    row[0] = last[0] + (any ? 0 : 1);
    for (std::size_t j = 1; j <= name.size(); ++j) {
      const bool same = letter == name[j - 1] || letter == '?';
      row[j] = any ? std::min(last[j], row[j - 1])
                   : std::min({last[j - 1] + (same ? 0 : 1), last[j] + 1, row[j - 1] + 1});
    }
    last.swap(row);
  }
  return last[name.size()];
}

int Matcher::distance(const std::string& pattern, const std::string& name) const {
  return std::min(edits_to_match(pattern, name), edits_to_match(pattern, in_files(name)));
}

// "layers.#.mlp": the same for all layers.
std::string without_numbers(const std::string& name) {
  std::string text;
  for (const char letter : name) {
    const bool digit = std::isdigit(static_cast<unsigned char>(letter)) != 0;
    if (!digit || !text.ends_with('#')) text += digit ? '#' : letter;
  }
  return text;
}

// The nearest of the model's names, one per kind.
std::string nearest_names(const Matcher& matcher, const std::string& pattern,
                          const engine::ModelLayout& layout) {
  std::vector<std::pair<int, std::string>> names;
  std::set<std::string> kinds;
  for (int unit = 0; unit < layout.units(); ++unit) {
    for (const engine::ParameterSpec& parameter : layout.layout(unit).parameters)
      if (kinds.insert(without_numbers(parameter.name)).second)
        names.emplace_back(matcher.distance(pattern, parameter.name), parameter.name);
  }
  std::stable_sort(names.begin(), names.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  std::string text;
  for (std::size_t i = 0; i < std::min(kNamesSaid, names.size()); ++i)
    text += (i == 0 ? "" : ", ") + names[i].second;
  return text;
}

// Gives each parameter its group.
class Grouping {
 public:
  Grouping(const Optimizer& optimizer, const engine::ModelLayout& layout,
           const engine::ParameterNames& names)
      : groups_(optimizer.groups), layout_(layout), names_(names), matcher_(names) {
    for (const ParameterGroup& group : groups_) {
      matched_.emplace_back(group.match.size(), false);
      taken_.push_back(0);
    }
  }

  // -1: none.
  int group_of(const std::string& name) {
    int first = -1;
    for (std::size_t g = 0; g < groups_.size(); ++g) {
      const std::vector<std::string>& patterns = groups_[g].match;
      for (std::size_t i = 0; i < patterns.size(); ++i) {
        // A pattern that has matched need not be tried again in later groups.
        if ((first >= 0 && matched_[g][i]) || !matcher_.matches(patterns[i], name)) continue;
        matched_[g][i] = true;
        if (first < 0) first = static_cast<int>(g);
      }
    }
    if (first >= 0) ++taken_[static_cast<std::size_t>(first)];
    return first;
  }

  // Call it after all parameters were grouped.
  Status check() const {
    for (std::size_t g = 0; g < groups_.size(); ++g) {
      for (std::size_t i = 0; i < matched_[g].size(); ++i)
        if (!matched_[g][i]) return no_parameter(g, groups_[g].match[i]);
      if (taken_[g] == 0)
        return Error(ErrorCode::kInvalidArgument,
                     place(g, groups_[g].match.front()) +
                         " has no parameters left: earlier groups match all of them, and the first "
                         "match is used. Put this group before them, or leave it out");
    }
    return {};
  }

  const std::vector<int>& taken() const { return taken_; }

 private:
  static std::string place(std::size_t group, const std::string& pattern) {
    return "optimizer.groups[" + std::to_string(group) + "].match \"" + printable(pattern) + "\"";
  }

  Error no_parameter(std::size_t group, const std::string& pattern) const {
    const std::string head(names_.head);
    const bool is_tied_head = names_.is_tied && !head.empty() && matcher_.matches(pattern, head);
    return Error(
        ErrorCode::kInvalidArgument,
        place(group, pattern) + " matches no parameter of this model: " +
            (is_tied_head ? head + " is tied to " + std::string(names_.token_embedding)
                          : "similar names are " + nearest_names(matcher_, pattern, layout_)));
  }

  const std::vector<ParameterGroup>& groups_;
  const engine::ModelLayout& layout_;
  const engine::ParameterNames& names_;
  const Matcher matcher_;
  std::vector<std::vector<bool>> matched_;  // by group and pattern
  std::vector<int> taken_;
};

int index_of(const ParameterSetting& setting, std::vector<ParameterSetting>& each) {
  const auto found = std::find(each.begin(), each.end(), setting);
  if (found != each.end()) return static_cast<int>(found - each.begin());
  each.push_back(setting);
  return static_cast<int>(each.size()) - 1;
}

std::string counts_text(const std::vector<int>& taken) {
  std::string text = "parameters per group: ";
  for (std::size_t g = 0; g < taken.size(); ++g)
    text += (g == 0 ? "" : ", ") + std::to_string(taken[g]);
  return text;
}

}  // namespace

Result<ParameterSettings> parameter_settings(const Optimizer& optimizer,
                                             const engine::ModelLayout& layout,
                                             const engine::ParameterNames& names) {
  const double lr = optimizer.learning_rate;
  const bool all = optimizer.decayed_parameters == DecayedParameters::kAll;
  ParameterSettings settings;
  settings.each = {{lr, optimizer.weight_decay}, {lr, all ? optimizer.weight_decay : 0}};
  if (optimizer.groups.empty()) return settings;
  Grouping grouping(optimizer, layout, names);
  for (int unit = 0; unit < layout.units(); ++unit) {
    std::vector<int>& of_unit = settings.of.emplace_back();
    for (const engine::ParameterSpec& parameter : layout.layout(unit).parameters) {
      const int group = grouping.group_of(parameter.name);
      if (group < 0) {
        of_unit.push_back(parameter.group);
        continue;
      }
      const ParameterGroup& own = optimizer.groups[static_cast<std::size_t>(group)];
      const double decay = decays(optimizer, parameter) ? optimizer.weight_decay : 0;
      of_unit.push_back(index_of({own.learning_rate.value_or(lr), own.weight_decay.value_or(decay)},
                                 settings.each));
    }
  }
  SLUICE_RETURN_IF_ERROR(grouping.check());
  settings.taken = grouping.taken();
  return settings;
}

void derive_parameter_groups(Derivation& derivation) {
  const Config& config = derivation.config;
  const Optimizer& optimizer = config.optimizer;
  if (optimizer.groups.empty()) return;
  const bool any_rate = std::any_of(optimizer.groups.begin(), optimizer.groups.end(),
                                    [](const auto& group) { return group.learning_rate; });
  if (any_rate && optimizer.learning_rate == 0 && names_its_rates(config.schedule.type))
    derivation.reject(
        "optimizer.groups has an lr, which scales the scheduler's rates as lr / "
        "optimizer.params.lr, but optimizer.params.lr is 0: set it too");
  // The plan, which has the module, refuses patterns that match nothing.
  if (!derivation.facts.means_default_model && !derivation.gives_any("model")) return;
  const engine::ModelShape shape = config.model.shape();
  const engine::LoraRecipe lora = config.lora.recipe();
  if (derivation.missing_facts.model || !engine::validate(shape).ok() ||
      !engine::validate(lora, shape).ok())
    return;
  const auto settings =
      parameter_settings(optimizer, engine::model_layout({.shape = shape, .lora = lora}),
                         engine::family_of(shape).parameter_names(shape));
  if (!settings.ok()) return derivation.reject(settings.error().message());
  derivation.note("optimizer.groups", counts_text(settings->taken));
}

}  // namespace sluice::config
