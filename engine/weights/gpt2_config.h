// Gpt2Config: the config.json of a Hugging Face folder that holds a GPT-2, to and from text.
//
// What is parsed is a model that Sluice computes as transformers does. Anything else - another
// architecture, another activation, another scaling of attention - is refused with what is
// different. Keys that are missing have transformers' defaults; keys that do not change what the
// model computes are not looked at. Sizes may have transformers' common names (num_attention_heads)
// instead of GPT-2's (n_head).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "aio/result.h"
#include "engine/weights/dtype.h"
#include "engine/weights/special_tokens.h"

namespace sluice::engine {

struct Gpt2Config {
  std::int64_t layers = 12;
  std::int64_t hidden = 768;
  std::int64_t heads = 12;
  std::int64_t context = 1024;
  std::int64_t vocab = 50257;
  std::int64_t ffn_hidden = 3072;
  double residual_dropout = 0.1;
  double embedding_dropout = 0.1;
  double attention_dropout = 0.1;
  SpecialTokens special;      // those of the vocabulary
  DType dtype = DType::kF32;  // of the weights beside it

  friend bool operator==(const Gpt2Config&, const Gpt2Config&) = default;
};

inline constexpr std::uint64_t kMaxModelConfigBytes = 16 << 20;

// As transformers' GPT2LMHeadModel reads it.
std::string to_text(const Gpt2Config& config);

// A sentence without the file's name: kCorrupt where it is no such file, kInvalidArgument where it
// describes another model. `dtype` is left as it is by default: the weights themselves say theirs.
Result<Gpt2Config> parse_gpt2_config(std::string_view text);

}  // namespace sluice::engine
