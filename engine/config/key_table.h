// The table of every key that a configuration may hold. It alone drives parsing, defaults, the
// canonical form, suggestions and documentation: there is no other list.
//
// A key that is honoured has a field of Config; its type is the field's, its unit of measure is in
// `unit`. A key without a field is ignored, refused or another name of an honoured key, and says
// why. Constant data; threads: any.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "engine/config/config.h"

namespace sluice::config {

enum class Treatment : std::uint8_t {
  kHonoured,
  kIgnored,        // `reason` says why it has no meaning here; so with everything below it
  kRefusedIfTrue,  // ignored while false; true asks for what Sluice does not do
  kRefused,        // would change the result if it were ignored
  kAlias,          // another name of `alias_of`, a key or a section
};

enum class KeySource : std::uint8_t {
  kDeepSpeed,    // documented there, or in its code today
  kOlder,        // from an older DeepSpeed, or widely copied though no DeepSpeed reads it
  kHuggingFace,  // a parameter of transformers' get_scheduler() or TrainingArguments
  kSluice,
};

template <typename T>
using Accessor = T& (*)(Config&);

// The accessor of a number that not every family has.
struct FamilyNumber {
  std::string_view name;
  std::optional<double>& operator()(Config& config) const {
    return config.model.numbers[std::string(name)];
  }
};

using Field = std::variant<
    std::monostate, FamilyNumber, Accessor<bool>, Accessor<std::int64_t>, Accessor<double>,
    Accessor<std::string>, Accessor<std::optional<double>>, Accessor<Betas>,
    Accessor<std::vector<std::string>>, Accessor<std::optional<TierFractions>>,
    Accessor<std::optional<PathWeights>>, Accessor<OptimizerType>, Accessor<ScheduleType>,
    Accessor<WarmupType>, Accessor<DecayType>, Accessor<OffloadDevice>, Accessor<TokenType>,
    Accessor<Device>, Accessor<Tristate>, Accessor<IoBackendChoice>, Accessor<DecayedParameters>,
    Accessor<MomentType>, Accessor<NonFiniteStep>, Accessor<LaterCheckpoints>,
    Accessor<LongDocuments>, Accessor<std::vector<ParameterGroup>>>;

struct Range {
  double minimum = -std::numeric_limits<double>::infinity();
  double maximum = std::numeric_limits<double>::infinity();
};

struct Key {
  std::string_view path;  // "zero_optimization.offload_param.device"
  Treatment treatment = Treatment::kHonoured;
  KeySource source = KeySource::kDeepSpeed;
  Field field = {};
  std::string_view default_json = "null";  // "\"auto\"": by auto_rule; null: unset
  Range range = {};                        // of numbers
  std::string_view unit = {};
  std::string_view choices = {};  // "none|cpu|nvme", in the order of the field's enum
  // Other names of choices: "FusedAdam=Adam", "|" between.
  std::string_view choice_aliases = {};
  std::string_view applies_to = {};  // the scheduler types that read it, "|" between; empty: all
  std::string_view families = {};    // whose models have it, "|" between; empty: all
  std::string_view auto_rule = {};   // what "auto" becomes, where it is not the default
  std::string_view meaning = {};
  std::string_view reason = {};    // why it is ignored or refused
  std::string_view alias_of = {};  // the path that it stands for
  std::string_view share_of = {};  // likewise, of a number between 0 and 1; empty: the same
};

// All keys, sections together, in the order of the documentation.
std::span<const Key> all_keys();

const Key* find_key(std::string_view path);  // null where there is none

// Whether models of the family have it.
bool belongs_to(const Key& key, std::string_view family);

// Whether `path` is an object that contains keys.
bool is_section(std::string_view path);

// "integer", "boolean", "\"none\", \"cpu\" or \"nvme\"": what a value of the key looks like.
std::string type_name(const Key& key);

// The parts of `list` between its bars.
std::vector<std::string_view> split_choices(std::string_view list);

// "a, b or c" for "a|b|c".
std::string choices_in_words(std::string_view list);

// The table as text for people, one paragraph per key: path, type, range, unit,
// default, source and meaning.
std::string describe_keys();

}  // namespace sluice::config
