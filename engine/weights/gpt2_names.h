// GPT-2's parameters under Hugging Face's names, which are ours too: "wte.weight", "wpe.weight",
// "h.3.ln_1.weight", "h.3.attn.c_attn.weight", ..., "ln_f.bias".
//
// The matrices of attn and mlp are stored as [in, out] (Hugging Face's Conv1D), so that y = x W +
// b. Files may put "transformer." in front of every name, and carry more than parameters: the
// causal mask ("h.3.attn.bias", "h.3.attn.masked_bias"), and the head ("lm_head.weight"), which has
// to be the token embedding once more (tied_head.h).
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "aio/result.h"
#include "engine/weights/safetensors_header.h"

namespace sluice::engine {

struct Gpt2Shape {
  std::uint64_t layers = 12;
  std::uint64_t hidden = 768;
  std::uint64_t context = 1024;
  std::uint64_t vocabulary = 50257;
};

// Every parameter, in the order in which units are run: embeddings, blocks, final norm.
std::vector<TensorSpec> gpt2_parameters(const Gpt2Shape& shape, DType dtype);

// Our name for a file's: without "transformer.".
std::string_view gpt2_parameter_name(std::string_view name_in_file);
// Whether a tensor of that name (ours) is a mask, which nobody needs.
bool is_gpt2_mask(std::string_view name);

inline constexpr std::string_view kGpt2Head = "lm_head.weight";
inline constexpr std::string_view kGpt2TokenEmbedding = "wte.weight";
// By our name; nullptr: the file has no such tensor.
const TensorInfo* find_gpt2_tensor(std::span<const TensorInfo> in_file, std::string_view name);

// The name in the file of each wanted parameter. kInvalidArgument names what the file lacks, what
// has another shape, or what it has that GPT-2 has not: then it is another model.
Result<std::vector<std::string>> match_gpt2_parameters(std::span<const TensorInfo> in_file,
                                                       std::span<const TensorSpec> wanted);

}  // namespace sluice::engine
