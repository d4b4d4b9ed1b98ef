#include "engine/checkpoint/checkpoint_state.h"

#include <set>

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

}  // namespace

std::vector<std::string> run_differences(const StoredRun& stored, const StoredRun& now) {
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
  for (const auto& [name, value] : now.family_numbers) {
    const auto entry = stored.family_numbers.find(name);
    if (entry == stored.family_numbers.end() || entry->second != value)
      differences.add(
          "the model's " + name,
          entry == stored.family_numbers.end() ? "not there" : std::to_string(entry->second),
          std::to_string(value));
  }
  return differences.take();
}

}  // namespace sluice::engine
