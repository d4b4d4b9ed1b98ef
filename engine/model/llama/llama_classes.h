// The classes of transformers in the Llama family: their names, and the defaults of keys that a
// config.json lacks. Without LibTorch.
#pragma once

#include <cstdint>
#include <span>

#include "engine/model/llama/llama_shape.h"

namespace sluice::engine {

struct LlamaClass {
  const char* model_type;
  const char* name;    // before "ForCausalLM"
  const char* models;  // in messages
  LlamaArchitecture architecture;
  std::int64_t vocab;
  std::int64_t ffn;
  std::int64_t context;
  std::int64_t kv_heads = 0;  // 0: as many as heads
  std::int64_t head_dim = 0;  // 0: hidden / heads
  std::int64_t hidden = 4096;
  std::int64_t layers = 32;
  std::int64_t heads = 32;
  double epsilon = 1e-6;
  double rope_theta = 10000;
  std::int64_t window = 4096;
  bool has_begin_and_end = false;  // tokens 1 and `end`
  std::int64_t end = 2;
  std::int64_t padding = 0;  // 0: none
  bool attention_bias = false;
  std::int64_t experts = 0;
  std::int64_t experts_per_token = 0;
};

std::span<const LlamaClass> llama_classes();
const LlamaClass& llama_class(LlamaArchitecture architecture);

}  // namespace sluice::engine
