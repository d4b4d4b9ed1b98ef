// A store with two places, filled from known numbers as a run would, and checkpoints that name it.
// It has one unit with gaps between its parameters. The unit's first elements are written to files,
// the others are in records: parameters begin and end in the middle of records, several are in one,
// one has only gaps.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "aio/page_memory.h"
#include "aio/small_file.h"
#include "aio/split_mix.h"
#include "aio/striped_file.h"
#include "offload/state/state_tiles.h"
#include "swap/record_image.h"
#include "swap/store_files.h"
#include "swap/store_manifest.h"
#include "tests/engine/checkpoint/checkpoint_under_test.h"

namespace sluice::engine {

inline constexpr std::uint64_t kRecordElements = 2 * offload::kTileElements;

// Finite, and representable as bf16 where the moments are.
inline float stored_value(offload::StateForm form, std::uint64_t version, std::size_t field,
                          std::uint64_t parameter, std::uint64_t element) {
  aio::SplitMix mix(version * 1000 + field, parameter * 1'000'003 + element);
  const auto value = static_cast<float>(mix.unit() - 0.5);
  const bool is_whole = field == 0 || form.moments == offload::ElementType::kFp32;
  const std::uint32_t kept = is_whole ? 0xFFFFFFFF : 0xFFFF0000;
  return std::bit_cast<float>(std::bit_cast<std::uint32_t>(value) & kept);
}

class FrozenStoreUnderTest {
 public:
  FrozenStoreUnderTest(aio::IoQueue& queue, offload::StateForm form,
                       std::uint64_t first_in_store = 40'000)
      : queue_(queue), form_(form), first_in_store_(first_in_store) {
    std::uint64_t end = 0;
    for (const TensorSpec& parameter : parameters_) {
      begins_.push_back(end);
      end = align_up(end + elements_of(parameter), 64) + 64;
    }
    for (std::uint64_t at = first_in_store_; at < end; at += kRecordElements)
      add_part(at, std::min(kRecordElements, end - at));
    add_part(end, 1000);  // only a gap
    for (StoredRecords::Part& part : records_.parts) {
      if (form.param == offload::ParamForm::kFp32AndFp16) break;
      part.parameters = static_cast<swap::RecordId>(specs_.size());
      const auto pass_bytes =
          static_cast<std::uint64_t>(offload::param_bytes_per_element(form.param));
      specs_.push_back({.parameter = "h.0/parameters",
                        .first_element = specs_[part.state].first_element,
                        .elements = part.elements,
                        .payload_bytes = part.elements * pass_bytes});
    }
    records_.form = form;
    records_.placement = "{\"of\": \"the run\"}";
    records_.store = {.run = "test", .paths = {"/nvme0", "/nvme1"}, .store_id = 0xABCDEF};
    for (std::size_t id = 0; id < specs_.size(); ++id)  // of several saves
      records_.store.records.push_back({.generation = 7 + id, .place = static_cast<int>(id % 2)});
  }

  // Makes the store's files, and writes the frozen generation with this version's values.
  void create(std::uint64_t version) {
    const swap::StoreLayout layout = this->layout();
    std::vector<std::string> files;
    for (std::size_t i = 0; i < records_.store.paths.size(); ++i) {
      const std::string folder = swap::folder_of(records_.store.paths[i], records_.store.run);
      ASSERT_OK(queue_.backend().files().make_directories(folder));
      ASSERT_OK(
          aio::write_small_file(queue_, swap::manifest_path(folder), swap::to_text(layout, i)));
      files.push_back(swap::data_path(folder));
    }
    aio::StripedFile::Options options;
    options.stripe_bytes = layout.options().stripe_bytes;
    options.file.open.access = aio::OpenOptions::Access::kReadWrite;
    options.file.open.create = aio::OpenOptions::Create::kIfMissing;
    options.file.size_bytes = layout.total_bytes();
    auto opened = aio::StripedFile::open(queue_, files, options);
    ASSERT_OK(opened);
    data_ = std::move(*opened);
    for (swap::RecordId id = 0; id < specs_.size(); ++id)
      write(id, records_.store.records[id], version);
  }

  // Writes a record as its run would: at another place, or over the frozen one.
  void write(swap::RecordId id, const swap::FrozenRecord& at, std::uint64_t version) {
    const swap::StoreLayout layout = this->layout();
    const swap::RecordShape shape = layout.shape(id);
    const aio::PageMemory memory =
        std::move(aio::PageMemory::map(shape.image_bytes(), false)).value();
    swap::RecordImage image(shape, memory.bytes().first(shape.image_bytes()));
    fill(id, image.payload(), version);
    image.begin_seal(at.generation);
    for (int i = 0; i < image.chunk_count(); ++i) image.seal_chunk(i, at.generation);
    image.finish_seal();
    ASSERT_OK(queue_.write(*data_, layout.offset_bytes(id, at.place), image.bytes()));
  }

  void flip_bit(swap::RecordId id, std::uint64_t offset_bytes, int bit) {
    const std::uint64_t at =
        layout().offset_bytes(id, records_.store.records[id].place) + offset_bytes;
    std::byte byte{};
    ASSERT_OK(queue_.read(*data_, at, {&byte, 1}));
    byte ^= std::byte{1} << bit;
    ASSERT_OK(queue_.write(*data_, at, {&byte, 1}));
  }

  swap::StoreLayout layout() const {
    return swap::StoreLayout::create({.store_id = records_.store.store_id,
                                      .run = records_.store.run,
                                      .paths = records_.store.paths,
                                      .stripe_bytes = 64 * kKiB,
                                      .chunk_bytes = offload::tile_bytes(form_),
                                      .places = 2},
                                     specs_)
        .value();
  }

  const std::vector<TensorSpec>& parameters() const { return parameters_; }
  const StatePieces& written() const { return written_; }
  StoredRecords& records() { return records_; }

  CheckpointWriter::Options options() const {
    CheckpointWriter::Options options = small_chunks();
    options.max_shard_bytes = 100'000;
    options.moments = form_.moments == offload::ElementType::kBf16 ? DType::kBF16 : DType::kF32;
    options.replace = true;
    return options;
  }
  Status save(const std::string& folder, std::uint64_t version, std::int64_t step = 12) {
    SLUICE_ASSIGN_OR_RETURN(const auto writer,
                            CheckpointWriter::begin_beside_store(queue_, folder, parameters_,
                                                                 written_, records_, options()));
    for (const StatePiece& piece : written_) {
      const State state = values(version, piece.parameter, piece.first_element, piece.elements);
      SLUICE_RETURN_IF_ERROR(writer->append(parameters_[piece.parameter].name,
                                            {piece.first_element, {state[0], state[1], state[2]}}));
    }
    return writer->commit(test_state(version, step));
  }

  State values(std::uint64_t version, std::uint64_t parameter, std::uint64_t first,
               std::uint64_t count) const {
    State state;
    for (std::size_t f = 0; f < state.size(); ++f) {
      state[f].resize(count);
      for (std::uint64_t i = 0; i < count; ++i)
        state[f][i] = stored_value(form_, version, f, parameter, first + i);
    }
    return state;
  }

  // Reads everything, and expects the version's bits.
  Status load(const std::string& folder, std::uint64_t version, std::uint64_t range) const {
    SLUICE_ASSIGN_OR_RETURN(const auto reader, CheckpointReader::open(queue_, folder, {}));
    for (std::uint64_t p = 0; p < parameters_.size(); ++p) {
      const std::uint64_t elements = elements_of(parameters_[p]);
      for (std::uint64_t first = 0; first < elements; first += range) {
        const std::uint64_t count = std::min(range, elements - first);
        const State expected = values(version, p, first, count);
        State read = {std::vector<float>(count), std::vector<float>(count),
                      std::vector<float>(count)};
        SLUICE_RETURN_IF_ERROR(
            reader->read(parameters_[p].name, {first, {read[0], read[1], read[2]}}));
        for (std::size_t f = 0; f < read.size(); ++f)
          EXPECT_TRUE(same_bits(read[f], expected[f]))
              << parameters_[p].name << " " << f << " from " << first;
      }
    }
    return {};
  }

 private:
  // Elements of the unit. The unit's first elements, up to first_in_store_, are written to files.
  void add_part(std::uint64_t first, std::uint64_t elements) {
    StoredRecords::Part part{.state = static_cast<swap::RecordId>(specs_.size()),
                             .elements = elements};
    for (std::uint64_t p = 0; p < parameters_.size(); ++p) {
      const std::uint64_t begin = std::max(first, begins_[p]);
      const std::uint64_t end =
          std::min(first + elements, begins_[p] + elements_of(parameters_[p]));
      if (specs_.empty() && begins_[p] < first_in_store_ && elements_of(parameters_[p]) > 0)
        written_.push_back(
            {.parameter = p,
             .elements = std::min(first_in_store_ - begins_[p], elements_of(parameters_[p]))});
      if (begin < end)
        part.pieces.push_back({.piece = {.parameter = p,
                                         .first_element = begin - begins_[p],
                                         .elements = end - begin},
                               .record_element = begin - first});
    }
    specs_.push_back({.parameter = "h.0",
                      .first_element = first,
                      .elements = elements,
                      .payload_bytes = offload::state_bytes(form_, elements)});
    records_.parts.push_back(std::move(part));
  }

  // The payload of a record of state or of parameters, made from the canonical state of its tiles.
  void fill(swap::RecordId id, std::span<std::byte> payload, std::uint64_t version) const {
    const auto part = std::find_if(
        records_.parts.begin(), records_.parts.end(),
        [&](const StoredRecords::Part& one) { return one.state == id || one.parameters == id; });
    State whole;
    for (std::size_t f = 0; f < whole.size(); ++f) {
      whole[f].resize(part->elements);
      for (const auto& [piece, at] : part->pieces) {
        for (std::uint64_t i = 0; i < piece.elements; ++i)
          whole[f][at + i] =
              stored_value(form_, version, f, piece.parameter, piece.first_element + i);
      }
    }
    const auto width = static_cast<std::uint64_t>(offload::param_bytes_per_element(form_.param));
    std::vector<std::byte> parameters(part->elements * width);
    std::vector<std::byte> state(offload::state_bytes(form_, part->elements) + 64);
    std::byte* const aligned =
        state.data() + (64 - std::bit_cast<std::uintptr_t>(state.data()) % 64);
    for (std::uint64_t first = 0; first < part->elements; first += offload::kTileElements) {
      const std::uint64_t count = std::min(offload::kTileElements, part->elements - first);
      std::byte* const tile = aligned + first / offload::kTileElements * offload::tile_bytes(form_);
      offload::StateSlice slice;
      for (std::size_t f = 0; f < whole.size(); ++f)
        slice.fields[f] = std::span(whole[f]).subspan(first, count);
      offload::pack_state(slice,
                          offload::tile_arrays(form_, offload::state_tile(form_, tile, count),
                                               parameters.data() + first * width));
    }
    std::memcpy(payload.data(), part->state == id ? aligned : parameters.data(), payload.size());
  }

  aio::IoQueue& queue_;
  const offload::StateForm form_;
  const std::uint64_t first_in_store_;
  const std::vector<TensorSpec> parameters_ = {{"wte.weight", DType::kF32, {1000, 130}},
                                               {"none", DType::kF32, {0, 5}},
                                               {"ln.bias", DType::kF32, {33}},
                                               {"h.0.weight", DType::kF32, {401, 503}},
                                               {"one", DType::kF32, {1}},
                                               {"h.0.bias", DType::kF32, {70'001}}};
  std::vector<std::uint64_t> begins_;  // of the parameters, in the unit
  std::vector<swap::RecordSpec> specs_;
  StatePieces written_;
  StoredRecords records_;
  std::unique_ptr<aio::StripedFile> data_;
};

}  // namespace sluice::engine
