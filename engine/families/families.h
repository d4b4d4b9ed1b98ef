// The table of families, and what is done with a model of any of them. Without LibTorch; the units'
// code is in make_model.h.
//
// Threads: any, once the families are there.
#pragma once

#include <optional>
#include <string_view>
#include <vector>

#include "aio/result.h"
#include "engine/model/model_family.h"

namespace sluice::engine {

// All of them. Whoever asks makes something of the table, so from here on no family can be added.
const std::vector<const ModelFamily*>& model_families();
// For a program that brings a family of its own: before anything asks for all families, presets or
// keys of configurations; later it aborts. It stays the caller's and must outlive everything.
void add_family(const ModelFamily& family);

// Null where there is none of that name.
const ModelFamily* find_family(std::string_view name);
// Of a shape that was checked.
const ModelFamily& family_of(const ModelShape& shape);

// Of any family; nothing for other names.
std::optional<ModelShape> preset_shape(std::string_view name);
// All of them, in the order of the tables; likewise the end of adding families.
std::vector<NamedShape> model_presets();

// With the family's defaults for those of its numbers that the shape lacks: of a file or a
// checkpoint that does not say them. As it is where there is no such family.
ModelShape complete(ModelShape shape);

// kInvalidArgument with a sentence that names what is at fault: no such family, a number that it
// has not, that is missing or that is out of its range.
Status validate(const ModelShape& shape);
// Likewise of adapters beside a model whose shape is valid.
Status validate(const LoraRecipe& lora, const ModelShape& shape);

// The shape must be valid.
ModelLayout model_layout(const ModelOptions& options);

// Whether positions have parameters of their own, as many as the context is long. Else a model can
// read further than its context says. The shape must be valid.
bool has_learned_positions(const ModelShape& shape);

inline constexpr std::uint64_t kMaxModelConfigBytes = 16 << 20;
// Of a Hugging Face folder: by its "model_type". Errors: ModelFamily::read_config().
Result<HuggingFaceModel> read_hugging_face_config(std::string_view text);

}  // namespace sluice::engine
