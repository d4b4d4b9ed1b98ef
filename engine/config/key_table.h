// The table of every key of a configuration. It is the only list: parsing, defaults, the canonical
// form, suggestions and documentation all use it.
//
// An honoured key has a field of Config; its type is the field's, its unit of measure is in `unit`.
// A key without a field is ignored, refused or another name of an honoured key, and `reason` says
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
  kIgnored,        // no meaning here, with all keys below it; see `reason`
  kRefusedIfTrue,  // ignored while false; true is not supported
  kRefused,        // would change the result if ignored
  kAlias,          // another name of `alias_of`, a key or a section
};

enum class KeySource : std::uint8_t {
  kDeepSpeed,    // documented there, or in its current code
  kOlder,        // from an older DeepSpeed, or widely copied though no DeepSpeed reads it
  kHuggingFace,  // a parameter of transformers' get_scheduler() or TrainingArguments
  kSluice,
};

template <typename T>
using Accessor = T& (*)(Config&);

// Accesses a number that only some families have.
struct FamilyNumber {
  std::string_view name;
  std::optional<double>& operator()(Config& config) const {
    return config.model.numbers[std::string(name)];
  }
};

// Accesses a list of numbers that only some families have.
struct FamilyList {
  std::string_view name;
  std::vector<double>& operator()(Config& config) const {
    return config.model.lists[std::string(name)];
  }
};

using Field = std::variant<
    std::monostate, FamilyNumber, FamilyList, Accessor<bool>, Accessor<std::int64_t>,
    Accessor<double>, Accessor<std::string>, Accessor<std::optional<double>>, Accessor<Betas>,
    Accessor<std::vector<std::string>>, Accessor<std::optional<TierFractions>>,
    Accessor<std::optional<PathWeights>>, Accessor<OptimizerType>, Accessor<ScheduleType>,
    Accessor<WarmupType>, Accessor<DecayType>, Accessor<OffloadDevice>, Accessor<TokenType>,
    Accessor<Device>, Accessor<Tristate>, Accessor<IoBackendChoice>, Accessor<DecayedParameters>,
    Accessor<MomentType>, Accessor<NonFiniteStep>, Accessor<LaterCheckpoints>,
    Accessor<LongDocuments>, Accessor<WeightGradients>, Accessor<SentWeights>, Accessor<HostCopy>,
    Accessor<offload::SumCodec>, Accessor<std::vector<ParameterGroup>>>;

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
  Range range = {};                        // for numbers
  std::string_view unit = {};
  std::string_view choices = {};  // "none|cpu|nvme", in the order of the field's enum
  // Other names of choices: "FusedAdam=Adam", separated by "|".
  std::string_view choice_aliases = {};
  std::string_view applies_to = {};  // scheduler types that read it, separated by "|"; empty: all
  std::string_view families = {};    // families that have it, separated by "|"; empty: all
  std::string_view auto_rule = {};   // what "auto" becomes, if not the default
  std::string_view meaning = {};
  std::string_view reason = {};    // why it is ignored or refused
  std::string_view alias_of = {};  // the path that it stands for
  bool is_old_name = false;        // of the key `alias_of`: accepted, with a notice
  std::string_view share_of =
      {};  // the path that a number between 0 and 1 stands for; empty: alias_of
};

// All keys, grouped by section, in the order of the documentation.
std::span<const Key> all_keys();

const Key* find_key(std::string_view path);  // null if there is none

// Whether models of the family have it.
bool belongs_to(const Key& key, std::string_view family);

// Whether `path` is an object that contains keys.
bool is_section(std::string_view path);

// A description of the key's values: "integer", "boolean", "\"none\", \"cpu\" or \"nvme\"".
std::string type_name(const Key& key);

// The parts of `list`, split at "|".
std::vector<std::string_view> split_choices(std::string_view list);

// "a, b or c" for "a|b|c".
std::string choices_in_words(std::string_view list);

// The table as text for users, one paragraph per key: path, type, range, unit, default, source and
// meaning.
std::string describe_keys();

}  // namespace sluice::config
