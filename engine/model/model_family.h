// ModelFamily: everything about an architecture but its arithmetic: which numbers make a model of
// it, its units and their costs, the names of its parameters in files, and Hugging Face's
// config.json. Its units' passes are code on LibTorch and are found by the same name
// (engine/families/make_model.h). Without LibTorch.
//
// A family is one folder beside this one and a row in each table of engine/families/: nothing else
// names it.
//
// Memory:  constant data, for the whole program. Threads: any.
#pragma once

#include <limits>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "aio/result.h"
#include "engine/model/model_layout.h"
#include "engine/model/model_shape.h"
#include "engine/weights/dtype.h"
#include "engine/weights/parameter_names.h"
#include "engine/weights/special_tokens.h"

namespace sluice::engine {

// A shape that has a name: a choice of model.preset in a configuration.
struct NamedShape {
  std::string_view name;
  ModelShape shape;
};

// A number that not every family has: the key model.<name> of a configuration, an entry of
// ModelShape::numbers, and stored with checkpoints under its name. Families may have the same one,
// each with a range and a default of its own. Some stand for a word: they are its place in a list
// that only grows at its end, as checkpoints have the number.
struct ShapeNumber {
  std::string_view key;  // "model.rope_theta"
  // Where nothing says it. A number that comes later has what models were before, since their
  // checkpoints do not say it.
  double default_value = 0;
  double minimum = -std::numeric_limits<double>::infinity();
  double maximum = std::numeric_limits<double>::infinity();
  std::string_view choices = {};  // "none|linear": the words, and the range with them
  bool whole = false;             // without a fraction
  // It came after the family's first models. A shape may lack it, which then has the default; and
  // what is written of a model has it where it is another, so that files of models from before stay
  // what they were.
  bool came_later = false;
  std::string_view meaning = {};

  std::string_view name() const { return key.substr(key.find('.') + 1); }
  double most() const;  // maximum, or the last word
  double least() const { return choices.empty() ? minimum : 0; }
  std::string text(double value) const;  // "llama3", "8"
  // Whether what is written of a model with this value says it.
  bool is_written(double value) const { return !came_later || value != default_value; }
  // The place of a word, in letters of either case; nothing where it is none.
  std::optional<double> place(std::string_view word) const;
};

// The choices of what is on or off: true and false in a configuration.
inline constexpr std::string_view kSwitchChoices = "false|true";

// Of a shape that nothing says more about, as a preset would.
struct UsualNumbers {
  double dropout = 0;
  double ffn_multiplier = 4;  // the feed-forward layer's width over hidden
};

// A config.json of transformers.
struct HuggingFaceModel {
  ModelShape shape;
  SpecialTokens special;           // those of the vocabulary
  DType dtype = DType::kF32;       // of the weights beside it
  std::vector<std::string> notes;  // sentences: what Sluice's model has otherwise
};

class ModelFamily {
 public:
  ModelFamily() = default;
  virtual ~ModelFamily() = default;
  ModelFamily(const ModelFamily&) = delete;
  ModelFamily& operator=(const ModelFamily&) = delete;

  // In configurations and checkpoints; "gpt2".
  virtual std::string_view name() const = 0;
  virtual std::span<const NamedShape> presets() const { return {}; }
  virtual std::span<const ShapeNumber> numbers() const { return {}; }
  // Of a shape without a preset.
  virtual UsualNumbers usual() const { return {}; }

  // Replaces numbers that leave it to others ("as many as heads") by what that is, so that equal
  // models have equal numbers. Of a shape with all of them.
  virtual void settle(ModelShape& /*shape*/) const {}
  // What check_sizes() leaves to the family, such as how hidden is divided among the heads: nothing
  // else has a rule for that. The numbers have been checked against their ranges.
  // kInvalidArgument, as there.
  virtual Status check(const ModelShape& shape) const = 0;
  // The products that can have adapters (LoraRecipe::targets), by PEFT's names for them, in the
  // order of their parameters. None: models of the family are trained whole.
  virtual std::span<const std::string_view> adapter_targets() const { return {}; }
  // Shape and recipe must have been checked.
  virtual ModelLayout layout(const ModelOptions& options) const = 0;

  // ---- in files --------------------------------------------------------------------------------
  virtual const ParameterNames& parameter_names(const ModelShape& shape) const = 0;
  // What "model_type" of a config.json is its.
  virtual std::span<const std::string_view> model_types() const = 0;
  // Its keys there, by the names of stored_model(): {"layers", "n_layer"}; and those of its numbers
  // that have other names there.
  virtual const std::map<std::string, std::string>& config_keys() const = 0;
  // A config.json of one of its model_types. Anything that Sluice does not compute as transformers
  // does is refused: a sentence without the file's name, kCorrupt where a value is none,
  // kInvalidArgument where it describes another model. `dtype` is left as it is by default: the
  // weights say theirs. Numbers that it leaves out have their defaults.
  virtual Result<HuggingFaceModel> read_config(std::string_view text) const = 0;
  // As transformers reads it.
  virtual std::string write_config(const HuggingFaceModel& model) const = 0;
};

}  // namespace sluice::engine
