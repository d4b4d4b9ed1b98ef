// The table of families, and functions for a model of any of them. Without LibTorch; the units'
// code is in make_model.h.
//
// Threads: any, once all families are added.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "aio/result.h"
#include "engine/model/decoder/block_spec.h"
#include "engine/model/model_family.h"

namespace sluice::engine {

// All families. The caller may derive data from the table, so no family can be added after this
// call.
const std::vector<const ModelFamily*>& model_families();
// Adds a program's own family. It aborts after the first call that lists all families, presets or
// configuration keys. The caller keeps ownership; the family must outlive all use.
void add_family(const ModelFamily& family);

// Null if no family has that name.
const ModelFamily* find_family(std::string_view name);
// The shape must have been checked.
const ModelFamily& family_of(const ModelShape& shape);

// The preset of any family; nothing for other names.
std::optional<ModelShape> preset_shape(std::string_view name);
// The presets of all families, in the order of the tables. No family can be added after this call.
std::vector<NamedShape> model_presets();

// Adds the family's defaults for numbers that the shape lacks, because a file or checkpoint does
// not have them. Returns the shape unchanged if there is no such family.
ModelShape complete(ModelShape shape);

// kInvalidArgument with a sentence that names the fault: an unknown family, or a number that the
// family does not have, that is missing or that is out of range.
Status validate(const ModelShape& shape);
// The same for adapters on a model whose shape is valid.
Status validate(const LoraRecipe& lora, const ModelShape& shape);

// The shape must be valid.
ModelLayout model_layout(const ModelOptions& options);

// What the model consists of; nothing for a family that is no decoder (add_family()). Numbers that
// the shape lacks have their defaults.
std::optional<DecoderSpec> decoder_spec(const ModelShape& shape);

// A class of transformers whose modules a family's units compute.
struct ModuleClass {
  std::string model_type;
  std::string name;               // "Qwen3ForCausalLM"
  std::vector<std::string> keys;  // of its config, which the family reads or whose values it checks
};
std::vector<ModuleClass> module_classes();

// Whether positions have their own parameters, as many as the context is long. Otherwise a model
// can read past its context. The shape must be valid.
bool has_learned_positions(const ModelShape& shape);

inline constexpr std::uint64_t kMaxModelConfigBytes = 16 << 20;
// Reads a Hugging Face folder's config.json by its "model_type". Errors:
// ModelFamily::read_config().
Result<HuggingFaceModel> read_hugging_face_config(std::string_view text);

}  // namespace sluice::engine
