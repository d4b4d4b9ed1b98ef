// Matches the tensors of a file with a model's parameters, by name and shape.
//
// Our parameter names are those of transformers' base model. Files may prefix every name with the
// base model's name. They may also contain buffers, such as a causal mask, and a tied head, which
// must be a copy of the token embedding (engine/exchange/model_weights.h).
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "aio/result.h"
#include "engine/weights/expert_stack.h"
#include "engine/weights/safetensors_header.h"

namespace sluice::engine {

// The naming rules of a family.
struct ParameterNames {
  std::string_view prefix;  // "transformer.", before a file's names; optional there
  // "language_model.", which may follow the prefix in files of a model with other parts. Exports
  // never have it.
  std::string_view part = {};
  bool prefixes_exports = false;  // whether exports have the prefix
  bool (*is_buffer)(std::string_view name) =
      nullptr;  // by our name; buffers are ignored. null: none
  // The output projection, which is outside the base model and has no prefix. A tied head is the
  // token embedding, and is a tensor only in files.
  std::string_view head;
  bool is_tied = false;
  std::string_view token_embedding;
  // Tensors that files may have instead of each expert's, and whether exports have them.
  std::span<const ExpertStack> stacks = {};
  bool exports_stacks = false;

  // Our name for a file's name.
  std::string_view ours(std::string_view name_in_file) const;
  // A file's name, in an export, for our name.
  std::string exported(std::string_view name) const;
};

// Finds a tensor by our name; nullptr: the file has no such tensor.
const TensorInfo* find_parameter(const ParameterNames& names, std::span<const TensorInfo> in_file,
                                 std::string_view name);

// The name in the file of each wanted parameter. kInvalidArgument if the file belongs to another
// model: names what is missing, has another shape, or is unknown to the model.
Result<std::vector<std::string>> match_parameters(const ParameterNames& names,
                                                  std::span<const TensorInfo> in_file,
                                                  std::span<const TensorSpec> wanted);

}  // namespace sluice::engine
