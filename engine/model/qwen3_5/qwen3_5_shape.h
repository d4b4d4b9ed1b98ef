// The numbers of a Qwen3.5 text model, and what they mean. Most blocks have a gated delta rule
// instead of attention; every attention_interval-th attends. With experts, the feed-forward's width
// is that of the shared one. Without LibTorch.
#pragma once

#include <span>
#include <string_view>

#include "engine/model/decoder/block_spec.h"
#include "engine/model/model_family.h"
#include "engine/model/model_shape.h"

namespace sluice::engine {

inline constexpr std::string_view kQwen35Family = "qwen3_5";

std::span<const ShapeNumber> qwen3_5_numbers();

bool has_qwen3_5_experts(const ModelShape& shape);
const BlockNames& qwen3_5_names(bool has_experts);

// The shape must have all numbers of the family.
DecoderSpec qwen3_5_spec(const ModelShape& shape);

// ModelFamily::check() and ModelFamily::resolve_derived().
Status check_qwen3_5(const ModelShape& shape);
void resolve_qwen3_5(ModelShape& shape);

}  // namespace sluice::engine
