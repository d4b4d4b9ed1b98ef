// How the tensors of a file are matched with a model's parameters, by their names and shapes.
//
// Our names of parameters are Hugging Face's, as transformers' base model has them. Files may put
// the base model's name in front of every one, and carry more than parameters: buffers such as a
// causal mask, and a tied head, which has to be the token embedding once more (tied_head.h).
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "aio/result.h"
#include "engine/weights/safetensors_header.h"

namespace sluice::engine {

// Of a family.
struct ParameterNames {
  std::string_view prefix;  // "transformer.", in front of a file's names; may be missing there
  bool prefixes_exports = false;                       // whether it is written
  bool (*is_buffer)(std::string_view name) = nullptr;  // by our name: nobody needs that; null: none
  // The output projection, which is outside the base model and has no prefix. A tied one is the
  // token embedding, and a parameter of files alone.
  std::string_view head;
  bool is_tied = false;
  std::string_view token_embedding;

  // Our name for a file's.
  std::string_view ours(std::string_view name_in_file) const;
  // Ours in a file that is written.
  std::string exported(std::string_view name) const;
};

// By our name; nullptr: the file has no such tensor.
const TensorInfo* find_parameter(const ParameterNames& names, std::span<const TensorInfo> in_file,
                                 std::string_view name);

// The name in the file of each wanted parameter. kInvalidArgument names what the file lacks, what
// has another shape, or what it has that the model has not: then it is another model.
Result<std::vector<std::string>> match_parameters(const ParameterNames& names,
                                                  std::span<const TensorInfo> in_file,
                                                  std::span<const TensorSpec> wanted);

}  // namespace sluice::engine
