// What the tests of checkpoints share: a small model of odd sizes in several shards, state whose
// every bit depends on where it belongs, and saving and loading of it.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "aio/split_mix.h"
#include "engine/checkpoint/checkpoint_folder.h"
#include "engine/checkpoint/checkpoint_reader.h"
#include "engine/checkpoint/checkpoint_writer.h"
#include "tests/aio/backends_under_test.h"

namespace sluice::engine {

inline constexpr const char* kFolder = "/run/checkpoints";

// Sizes around chunks and pages, one number, none, and one tensor larger than a shard.
inline std::vector<TensorSpec> test_parameters() {
  return {{"wpe.weight", DType::kF32, {33, 17}}, {"wte.weight", DType::kF32, {101, 97}},
          {"h.0.weight", DType::kF32, {64, 64}}, {"none", DType::kF32, {0, 5}},
          {"h.0.bias", DType::kF32, {1023}},     {"one", DType::kF32, {1}},
          {"h.1.weight", DType::kF32, {31, 65}}, {"ln_f.bias", DType::kF32, {7}}};
}

inline std::uint64_t elements_of(const TensorSpec& parameter) {
  std::uint64_t elements = 1;
  for (const std::uint64_t length : parameter.shape) elements *= length;
  return elements;
}

// Any pattern of bits, NaNs too: state comes back as it went.
inline float state_at(std::uint64_t version, std::size_t family, std::size_t parameter,
                      std::uint64_t element) {
  aio::SplitMix mix(version * 1000 + family, parameter * 1'000'003 + element);
  return std::bit_cast<float>(static_cast<std::uint32_t>(mix.next()));
}

using State = std::array<std::vector<float>, kFamilies.size()>;
inline State state_of(std::uint64_t version, std::size_t parameter, std::uint64_t elements) {
  State state;
  for (std::size_t f = 0; f < state.size(); ++f) {
    state[f].resize(elements);
    for (std::uint64_t i = 0; i < elements; ++i) state[f][i] = state_at(version, f, parameter, i);
  }
  return state;
}

inline bool same_bits(std::span<const float> a, std::span<const float> b) {
  return a.size() == b.size() &&
         (a.empty() || std::memcmp(a.data(), b.data(), a.size_bytes()) == 0);
}

// Of this version of the state, which it names in samples_drawn.
inline CheckpointState test_state(std::uint64_t version, std::int64_t step) {
  return {.position = {.global_step = step,
                       .applied_step = step - step / 3,
                       .samples_drawn = version,
                       .loss_scale = {.scale = 65536.0,
                                      .steps = step,
                                      .last_overflow_step = step / 2,
                                      .hysteresis_left = 2}},
          .run = {.seed = 0xFEDCBA9876543210U,
                  .data_order = "permutation-1/1234abcd",
                  .precision = "bf16",
                  .cpu_threads = 2,
                  .model = {{"layers", 2}, {"hidden", 64}},
                  .dropout = 0.1},
          .loss = 3.25 + 1.0 / 3.0,
          .validation_loss = std::nullopt,
          .configuration =
              "{\n  \"train_batch_size\": 8, \"text\": \"gr\\u00f6\xc3\x9f"
              "e\"\n}\n",
          .program_version = "0.1.0"};
}

inline CheckpointWriter::Options small_chunks() {
  return {.max_shard_bytes = 20'000, .chunk_bytes = 4096, .chunks_in_flight = 2};
}

struct Save {
  std::uint64_t version = 1;
  std::int64_t step = 12;
  bool replace = false;
  std::uint64_t range = 1500;  // elements at a time
};

inline Status append_all(CheckpointWriter& writer, const std::vector<TensorSpec>& parameters,
                         const Save& save) {
  for (std::size_t p = 0; p < parameters.size(); ++p) {
    const State state = state_of(save.version, p, elements_of(parameters[p]));
    for (std::uint64_t first = 0; first < state[0].size(); first += save.range) {
      const std::uint64_t count = std::min<std::uint64_t>(save.range, state[0].size() - first);
      const auto range = [&](std::size_t f) { return std::span(state[f]).subspan(first, count); };
      SLUICE_RETURN_IF_ERROR(writer.append({.parameter = parameters[p].name,
                                            .first_element = first,
                                            .master = range(0),
                                            .exp_avg = range(1),
                                            .exp_avg_sq = range(2)}));
    }
  }
  return {};
}

inline Status save_checkpoint(aio::IoQueue& queue, const std::string& folder, const Save& save) {
  const auto parameters = test_parameters();
  CheckpointWriter::Options options = small_chunks();
  options.replace = save.replace;
  SLUICE_ASSIGN_OR_RETURN(const auto writer,
                          CheckpointWriter::begin(queue, folder, parameters, options));
  SLUICE_RETURN_IF_ERROR(append_all(*writer, parameters, save));
  return writer->commit(test_state(save.version, save.step));
}

// Reads all of it; the version, once every bit was compared with what that version has.
inline Result<std::uint64_t> load_checkpoint(aio::IoQueue& queue, const std::string& folder,
                                             std::uint64_t range = 2000) {
  SLUICE_ASSIGN_OR_RETURN(const auto reader,
                          CheckpointReader::open(queue, folder, {.chunks_ahead = 3}));
  const auto parameters = test_parameters();
  const std::uint64_t version = reader->state().position.samples_drawn;
  EXPECT_EQ(reader->state(), test_state(version, reader->state().position.global_step));
  EXPECT_EQ(reader->parameters().size(), parameters.size());
  for (std::size_t p = 0; p < parameters.size(); ++p) {
    EXPECT_EQ(static_cast<const TensorSpec&>(reader->parameters()[p]), parameters[p]);
    const State expected = state_of(version, p, elements_of(parameters[p]));
    for (std::uint64_t first = 0; first < expected[0].size(); first += range) {
      const std::uint64_t count = std::min<std::uint64_t>(range, expected[0].size() - first);
      State read;
      for (auto& values : read) values.resize(count);
      SLUICE_RETURN_IF_ERROR(
          reader->read(parameters[p].name, first,
                       {.master = read[0], .exp_avg = read[1], .exp_avg_sq = read[2]}));
      for (std::size_t f = 0; f < read.size(); ++f)
        EXPECT_TRUE(same_bits(read[f], std::span(expected[f]).subspan(first, count)))
            << parameters[p].name << ", family " << f << ", from " << first;
    }
  }
  return version;
}

}  // namespace sluice::engine
