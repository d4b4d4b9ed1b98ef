// checkpoint_save FOLDER MAX_SHARD_BYTES: saves a small model with known values for a test in
// another language. Element e of parameter p in family f is ((7 e + 13 p + 101 f) mod 251 - 125) /
// 4.
#include <cstdio>
#include <string>
#include <vector>

#include "aio/make_backend.h"
#include "engine/checkpoint/checkpoint_writer.h"
#include "engine/exchange/stored_shape.h"

namespace sluice::engine {
namespace {

std::vector<float> values_of(std::size_t family, std::size_t parameter, std::uint64_t elements) {
  std::vector<float> values(elements);
  for (std::uint64_t e = 0; e < elements; ++e) {
    const auto number = static_cast<float>((7 * e + 13 * parameter + 101 * family) % 251);
    values[e] = (number - 125) / 4;
  }
  return values;
}

Status save(const std::string& folder, std::uint64_t max_shard_bytes) {
  SLUICE_ASSIGN_OR_RETURN(const auto backend, aio::make_backend({}));
  SLUICE_ASSIGN_OR_RETURN(const auto queue, aio::IoQueue::create(*backend, {}));
  const std::vector<TensorSpec> parameters = parameter_specs(
      {.layers = 2, .hidden = 48, .heads = 4, .context_tokens = 33, .vocab = 101}, DType::kF32);
  SLUICE_ASSIGN_OR_RETURN(
      const auto writer,
      CheckpointWriter::begin(*queue, folder, parameters,
                              {.max_shard_bytes = max_shard_bytes, .chunk_bytes = 8192}));
  for (std::size_t p = 0; p < parameters.size(); ++p) {
    std::uint64_t elements = 1;
    for (const std::uint64_t length : parameters[p].shape) elements *= length;
    const auto master = values_of(0, p, elements);
    const auto exp_avg = values_of(1, p, elements);
    const auto exp_avg_sq = values_of(2, p, elements);
    SLUICE_RETURN_IF_ERROR(
        writer->append(parameters[p].name, {.fields = {master, exp_avg, exp_avg_sq}}));
  }
  CheckpointState state;
  state.position.global_step = 5;
  state.position.applied_step = 4;
  state.position.samples_drawn = 40;
  state.loss = 2.5;
  state.configuration =
      "{\"train_batch_size\": 8, \"note\": \"gr\xc3\xb6\xc3\x9f"
      "e\"}";
  return writer->commit(state);
}

}  // namespace
}  // namespace sluice::engine

int main(int argc, char** argv) {
  const std::vector<std::string> words(argv + 1, argv + argc);
  if (words.size() != 2) {
    std::fputs("usage: checkpoint_save FOLDER MAX_SHARD_BYTES\n", stderr);
    return 2;
  }
  const sluice::Status status = sluice::engine::save(words[0], std::stoull(words[1]));
  if (status.ok()) return 0;
  std::fprintf(stderr, "checkpoint_save: %s\n", status.error().message().c_str());
  return 1;
}
