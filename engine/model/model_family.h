// ModelFamily: an architecture without its arithmetic: the numbers that define a model of it, its
// units and their costs, the names of its parameters in files, and Hugging Face's config.json. The
// code of its units' passes uses LibTorch and is found by the same name
// (engine/families/make_model.h). Without LibTorch.
//
// A family is one folder next to this file and a row in each table of engine/families/; no other
// code names it.
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

// A named shape: a choice of model.preset in a configuration.
struct NamedShape {
  std::string_view name;
  ModelShape shape;
};

// A number that not every family has. It is the configuration key model.<name> and an entry of
// ModelShape::numbers, and checkpoints store it under its name. Families may share a number, each
// with its own range and default. Some numbers stand for a word: its index in a list that only
// grows at its end, because checkpoints store the index.
struct ShapeNumber {
  std::string_view key;  // "model.rope_theta"
  // Used if no source gives the number. A number added later defaults to the behaviour of earlier
  // models, because their checkpoints lack it.
  double default_value = 0;
  double minimum = -std::numeric_limits<double>::infinity();
  double maximum = std::numeric_limits<double>::infinity();
  std::string_view choices = {};  // "none|linear": the words, which also set the range
  bool whole = false;             // no fraction
  // Added after the family's first models. A shape may lack it, and then has the default. Files
  // store it only if it differs from the default, so that the files of earlier models stay the
  // same.
  bool omit_if_default = false;
  std::string_view meaning = {};

  std::string_view name() const { return key.substr(key.find('.') + 1); }
  double most() const;  // maximum, or the last word
  double least() const { return choices.empty() ? minimum : 0; }
  std::string text(double value) const;  // "llama3", "8"
  // Whether a model with this value stores it in its files.
  bool should_serialise(double value) const { return !omit_if_default || value != default_value; }
  // The index of a word, ignoring case; nothing if it is not among the choices.
  std::optional<double> place(std::string_view word) const;
};

// A list of numbers that not every model has. It is the configuration key model.<name> and an entry
// of ModelShape::lists, and checkpoints store it under its name. A model without it has no entry.
struct ShapeList {
  std::string_view key;  // "model.rope_long_factor"
  std::string_view meaning = {};

  std::string_view name() const { return key.substr(key.find('.') + 1); }
};

// The choices of a switch: true and false in a configuration.
inline constexpr std::string_view kSwitchChoices = "false|true";

// Defaults for a shape without a preset.
struct DefaultNumbers {
  double dropout = 0;
  double ffn_multiplier = 4;  // the feed-forward layer's width divided by hidden
};

// The contents of a transformers config.json.
struct HuggingFaceModel {
  ModelShape shape;
  SpecialTokens special;           // in the vocabulary
  DType dtype = DType::kF32;       // of the weights next to it
  std::vector<std::string> notes;  // sentences: how Sluice's model differs
};

class ModelFamily {
 public:
  ModelFamily() = default;
  virtual ~ModelFamily() = default;
  ModelFamily(const ModelFamily&) = delete;
  ModelFamily& operator=(const ModelFamily&) = delete;

  // The name in configurations and checkpoints, for example "gpt2".
  virtual std::string_view name() const = 0;
  virtual std::span<const NamedShape> presets() const { return {}; }
  virtual std::span<const ShapeNumber> numbers() const { return {}; }
  virtual std::span<const ShapeList> lists() const { return {}; }
  // Defaults for a shape without a preset.
  virtual DefaultNumbers default_numbers() const { return {}; }

  // Resolves derived defaults ("as many as heads"), so that equal models have equal numbers. The
  // shape must have all numbers.
  virtual void resolve_derived(ModelShape& /*shape*/) const {}
  // Checks what check_sizes() leaves to the family, such as how hidden is divided among the heads;
  // no other code does. The numbers have been checked against their ranges. kInvalidArgument, as in
  // check_sizes().
  virtual Status check(const ModelShape& shape) const = 0;
  // The products that can have adapters (LoraRecipe::targets), by PEFT's names for them, in the
  // order of their parameters. Empty: models of the family can only be trained whole. The shape
  // may not have been checked.
  virtual std::span<const std::string_view> adapter_targets(const ModelShape& /*shape*/) const {
    return {};
  }
  // Shape and recipe must have been checked.
  virtual ModelLayout layout(const ModelOptions& options) const = 0;

  // ---- in files --------------------------------------------------------------------------------
  virtual const ParameterNames& parameter_names(const ModelShape& shape) const = 0;
  // The values of "model_type" in a config.json that belong to the family.
  virtual std::span<const std::string_view> model_types() const = 0;
  // The keys in config.json by the names of stored_model(): {"layers", "n_layer"}. Also those of
  // the family's numbers that have other names there.
  virtual const std::map<std::string, std::string>& config_keys() const = 0;
  // Reads a config.json with one of the model_types. Refuses models that Sluice does not compute as
  // transformers does. The message lacks the file's name; kCorrupt if a value is invalid,
  // kInvalidArgument if it describes another model. `dtype` stays at its default, because the
  // weights have their own. Missing numbers get their defaults.
  virtual Result<HuggingFaceModel> read_config(std::string_view text) const = 0;
  // Writes the text that transformers reads.
  virtual std::string write_config(const HuggingFaceModel& model) const = 0;
};

}  // namespace sluice::engine
