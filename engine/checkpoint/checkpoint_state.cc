#include "engine/checkpoint/checkpoint_state.h"

#include <nlohmann/json.hpp>
#include <set>

#include "aio/text.h"

namespace sluice::engine {
namespace {

class Differences {
 public:
  template <typename Value>
  void compare(const std::string& what, const Value& stored, const Value& now) {
    if (stored == now) return;
    add(what, text(stored), text(now));
  }
  void add(const std::string& what, const std::string& stored, const std::string& now) {
    found_.push_back(what + " is " + now + ", and was " + stored +
                     " when the checkpoint was written");
  }
  std::vector<std::string> take() { return std::move(found_); }

 private:
  static std::string text(const std::string& value) { return "\"" + value + "\""; }
  template <typename Number>
  static std::string text(Number value) {
    return std::to_string(value);
  }
  std::vector<std::string> found_;
};

// Differences are named by their configuration keys, which the user can change.
void compare_adapters(const StoredRun& stored, const StoredRun& now, Differences& differences) {
  const auto rank = [](const StoredRun& run) {
    return run.adapters ? std::to_string(run.adapters->rank) : std::string("0, the model itself");
  };
  if (rank(stored) != rank(now)) differences.add("recipe.lora.rank", rank(stored), rank(now));
  if (!stored.adapters || !now.adapters) return;
  const StoredAdapters& was = *stored.adapters;
  const StoredAdapters& is = *now.adapters;
  if (was.alpha != is.alpha)
    differences.add("recipe.lora.alpha", significant(was.alpha, kAllDigits),
                    significant(is.alpha, kAllDigits));
  const auto list = [](const StoredAdapters& adapters) {
    std::string text;
    for (const std::string& target : adapters.targets) text += (text.empty() ? "" : ", ") + target;
    return "[" + text + "]";
  };
  if (was.rank_stabilised != is.rank_stabilised)
    differences.add("recipe.lora.rank_stabilised", was.rank_stabilised ? "true" : "false",
                    is.rank_stabilised ? "true" : "false");
  if (!stored.imported() && was.base_bits != is.base_bits)
    differences.add("recipe.lora.base_bits", std::to_string(was.base_bits),
                    std::to_string(is.base_bits));
  if (!stored.imported() && was.double_quant != is.double_quant)
    differences.add("recipe.lora.double_quant", was.double_quant ? "true" : "false",
                    is.double_quant ? "true" : "false");
  if (!stored.imported() && was.dropout != is.dropout)
    differences.add("recipe.lora.dropout", significant(was.dropout, kAllDigits),
                    significant(is.dropout, kAllDigits));
  if (was.targets != is.targets) differences.add("recipe.lora.targets", list(was), list(is));
}

void compare_lists(const StoredRun& stored, const StoredRun& now, Differences& differences) {
  if (stored.family != now.family) return;
  std::set<std::string> names;
  for (const auto* of : {&stored.family_lists, &now.family_lists})
    for (const auto& [name, values] : *of) names.insert(name);
  for (const std::string& name : names) {
    const auto text = [&name](const StoredRun& run) {
      const auto found = run.family_lists.find(name);
      return found == run.family_lists.end() ? "not there" : list_text(found->second);
    };
    if (text(stored) != text(now)) differences.add("the model's " + name, text(stored), text(now));
  }
}

}  // namespace

std::string list_text(const std::vector<double>& values) { return nlohmann::json(values).dump(); }

std::vector<std::string> run_differences(const StoredRun& stored, const StoredRun& now,
                                         const FamilyNumberText& text_of) {
  Differences differences;
  if (!stored.imported()) {
    differences.compare("the run's seed", stored.seed, now.seed);
    differences.compare("the order of the data", stored.data_order, now.data_order);
    differences.compare("the precision", stored.precision, now.precision);
    differences.compare("the number of CPU threads", stored.cpu_threads, now.cpu_threads);
    differences.compare("the dropout", stored.dropout, now.dropout);
  }
  differences.compare("the model's family", stored.family, now.family);
  std::set<std::string> names;
  for (const auto* model : {&stored.model, &now.model})
    for (const auto& [name, value] : *model) names.insert(name);
  for (const std::string& name : names) {
    const auto text = [&name](const std::map<std::string, std::int64_t>& model) {
      const auto entry = model.find(name);
      return entry == model.end() ? std::string("not there") : std::to_string(entry->second);
    };
    if (text(stored.model) != text(now.model))
      differences.add("the model's " + name, text(stored.model), text(now.model));
  }
  std::set<std::string> numbers;
  if (stored.family == now.family) {  // different families have different numbers
    for (const auto* of : {&stored.family_numbers, &now.family_numbers})
      for (const auto& [name, value] : *of) numbers.insert(name);
  }
  for (const std::string& name : numbers) {
    const auto text = [&](const std::map<std::string, double>& of) {
      const auto entry = of.find(name);
      if (entry == of.end()) return std::string("not there");
      return text_of ? text_of(name, entry->second) : significant(entry->second, kAllDigits);
    };
    if (text(stored.family_numbers) != text(now.family_numbers))
      differences.add("the model's " + name, text(stored.family_numbers), text(now.family_numbers));
  }
  compare_lists(stored, now, differences);
  compare_adapters(stored, now, differences);
  return differences.take();
}

}  // namespace sluice::engine
