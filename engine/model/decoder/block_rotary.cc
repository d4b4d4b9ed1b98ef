#include "engine/model/decoder/block_rotary.h"

#include <ATen/ops/tensor.h>

#include <algorithm>
#include <vector>

namespace sluice::engine {

BlockRotary::BlockRotary(const Rope& rope, std::int64_t head_dim)
    : rope_(rope), rotated_(rope.rotated(head_dim)) {
  if (exists()) within_context_ = rope_frequencies(rope, rotated_, rope.original_context);
}

bool BlockRotary::keys_depend_on_length(std::int64_t tokens) const {
  return rope_.scaling == RopeScaling::kDynamic && is_beyond_context(tokens);
}

std::int64_t BlockRotary::keys_change_beyond() const {
  return rope_.scaling == RopeScaling::kLongRope ? rope_.original_context : 0;
}

RotaryFrequencies BlockRotary::at(std::int64_t tokens) const {
  if (!is_beyond_context(tokens)) return within_context_;
  return rope_frequencies(rope_, rotated_, tokens);
}

at::Tensor BlockRotary::of_tokens(const Documents* documents, at::Device device) const {
  if (documents == nullptr || !grows_with_sequence(rope_)) return {};
  const std::vector<std::int64_t>& lengths = documents->lengths;
  const auto grows = [&](std::int64_t tokens) { return is_beyond_context(tokens); };
  if (std::none_of(lengths.begin(), lengths.end(), grows)) return {};
  std::vector<float> of_documents;
  for (const std::int64_t tokens : lengths) {
    const std::vector<float> of_pair = at(tokens).of_pair;
    of_documents.insert(of_documents.end(), of_pair.begin(), of_pair.end());
  }
  const auto documents_count = static_cast<std::int64_t>(lengths.size());
  return at::tensor(of_documents, at::kFloat)
      .view({documents_count, -1})
      .to(device)
      .repeat_interleave(at::tensor(lengths, at::kLong).to(device), 0,
                         documents->positions.numel());
}

}  // namespace sluice::engine
