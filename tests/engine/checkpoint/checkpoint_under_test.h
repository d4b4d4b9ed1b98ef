// Shared by tests of checkpoints: a small model with odd sizes in several shards, state whose every
// bit depends on its place, and functions that save and load it.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "aio/split_mix.h"
#include "engine/checkpoint/checkpoint_folder.h"
#include "engine/checkpoint/checkpoint_reader.h"
#include "engine/checkpoint/checkpoint_writer.h"
#include "tests/aio/backends_under_test.h"

namespace sluice::engine {

inline constexpr const char* kFolder = "/run/checkpoints";

// Sizes around chunks and pages, one number, no numbers, and a tensor larger than a shard.
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

// Any bit pattern, including NaNs: state must be restored unchanged.
inline float state_at(std::uint64_t version, std::size_t family, std::size_t parameter,
                      std::uint64_t element) {
  aio::SplitMix mix(version * 1000 + family, parameter * 1'000'003 + element);
  return std::bit_cast<float>(static_cast<std::uint32_t>(mix.next()));
}

using State = std::array<std::vector<float>, offload::kStateFields.size()>;

// Some elements of a parameter's whole state.
inline offload::ConstStateSlice slice_of(const State& state, std::uint64_t first,
                                         std::uint64_t count) {
  return {first,
          {std::span(state[0]).subspan(first, count), std::span(state[1]).subspan(first, count),
           std::span(state[2]).subspan(first, count)}};
}
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

// The state of this version, which it stores in samples_drawn.
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
  std::uint64_t range = 1500;  // elements per append
  int writers = 1;             // above 1: each writes a part
  std::optional<double> validation_loss = {};
};

// Appends the values of these pieces. Writer: CheckpointWriter or PartWriter.
template <typename Writer>
Status append_pieces(Writer& writer, const std::vector<TensorSpec>& parameters,
                     const StatePieces& pieces, const Save& save) {
  for (const StatePiece& piece : pieces) {
    const TensorSpec& parameter = parameters[piece.parameter];
    const State state = state_of(save.version, piece.parameter, elements_of(parameter));
    for (std::uint64_t first = piece.first_element; first < piece.end(); first += save.range) {
      const std::uint64_t count = std::min<std::uint64_t>(save.range, piece.end() - first);
      SLUICE_RETURN_IF_ERROR(writer.append(parameter.name, slice_of(state, first, count)));
    }
  }
  return {};
}

inline Status append_all(CheckpointWriter& writer, const std::vector<TensorSpec>& parameters,
                         const Save& save) {
  StatePieces all;
  for (std::size_t p = 0; p < parameters.size(); ++p)
    all.push_back({.parameter = p, .elements = elements_of(parameters[p])});
  return append_pieces(writer, parameters, all, save);
}

// Like the pieces of ranks: two units, each in as many equal pieces as there are writers.
inline std::vector<StatePieces> pieces_of_writers(const std::vector<TensorSpec>& parameters,
                                                  int writers) {
  std::vector<StatePieces> pieces(static_cast<std::size_t>(writers));
  const std::size_t middle = parameters.size() / 2;
  for (const auto& [begin, end] :
       {std::pair(std::size_t{0}, middle), std::pair(middle, parameters.size())}) {
    std::uint64_t unit = 0;
    for (std::size_t p = begin; p < end; ++p) unit += elements_of(parameters[p]);
    const std::uint64_t shard = unit / pieces.size() + 1;
    std::uint64_t done = 0;  // elements of the unit
    for (std::size_t p = begin; p < end; ++p) {
      const std::uint64_t elements = elements_of(parameters[p]);
      for (std::uint64_t first = 0; first < elements;) {
        const std::uint64_t writer = done / shard;
        const std::uint64_t count = std::min(elements - first, (writer + 1) * shard - done);
        pieces[writer].push_back({.parameter = p, .first_element = first, .elements = count});
        first += count;
        done += count;
      }
    }
  }
  return pieces;
}

// What the ranks of a run do concurrently, here one after another.
inline Status save_parts(aio::IoQueue& queue, const std::string& folder, const Save& save,
                         const CheckpointWriter::Options& options) {
  const auto parameters = test_parameters();
  const auto pieces = pieces_of_writers(parameters, save.writers);
  SLUICE_ASSIGN_OR_RETURN(CheckpointPlan made,
                          plan_checkpoint(parameters, pieces, options.shards()));
  const auto plan = std::make_shared<const CheckpointPlan>(std::move(made));
  SLUICE_ASSIGN_OR_RETURN(const auto writer,
                          CheckpointWriter::begin_together(queue, folder, plan, options));
  std::vector<std::unique_ptr<PartWriter>> parts;
  for (int i = 1; i < save.writers; ++i) {
    SLUICE_ASSIGN_OR_RETURN(auto part, PartWriter::begin(queue, folder, plan, i, options));
    parts.push_back(std::move(part));
  }
  SLUICE_RETURN_IF_ERROR(append_pieces(*writer, parameters, pieces[0], save));
  SLUICE_RETURN_IF_ERROR(writer->finish_part());
  for (int i = 1; i < save.writers; ++i) {
    PartWriter& part = *parts[static_cast<std::size_t>(i) - 1];
    SLUICE_RETURN_IF_ERROR(
        append_pieces(part, parameters, pieces[static_cast<std::size_t>(i)], save));
    SLUICE_RETURN_IF_ERROR(part.finish());
    SLUICE_RETURN_IF_ERROR(writer->add_part(i, part.checksums()));
  }
  return writer->commit(test_state(save.version, save.step));
}

inline Status save_checkpoint(aio::IoQueue& queue, const std::string& folder, const Save& save) {
  const auto parameters = test_parameters();
  CheckpointWriter::Options options = small_chunks();
  options.replace = save.replace;
  if (save.writers > 1) return save_parts(queue, folder, save, options);
  SLUICE_ASSIGN_OR_RETURN(const auto writer,
                          CheckpointWriter::begin(queue, folder, parameters, options));
  SLUICE_RETURN_IF_ERROR(append_all(*writer, parameters, save));
  CheckpointState state = test_state(save.version, save.step);
  state.validation_loss = save.validation_loss;
  return writer->commit(state);
}

// Reads everything, compares every bit with the version's values, and returns the version.
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
          reader->read(parameters[p].name, {first, {read[0], read[1], read[2]}}));
      for (std::size_t f = 0; f < read.size(); ++f)
        EXPECT_TRUE(same_bits(read[f], std::span(expected[f]).subspan(first, count)))
            << parameters[p].name << ", " << offload::kStateFields[f].name << ", from " << first;
    }
  }
  return version;
}

}  // namespace sluice::engine
