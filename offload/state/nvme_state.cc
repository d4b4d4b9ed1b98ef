#include "offload/state/nvme_state.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <functional>
#include <utility>

#include "aio/check.h"
#include "offload/adamw/adamw.h"

namespace sluice::offload {
namespace {

using swap::RecordId;
using swap::RecordSpec;
using swap::StateStore;
using swap::StoreLayout;
using swap::SwapPipeline;

Error invalid(const std::string& what) { return Error(ErrorCode::kInvalidArgument, what); }

Status check_options(const NvmeState::Options& options) {
  constexpr std::uint64_t kMost = swap::kMaxChunks * kTileElements;
  const std::uint64_t elements = options.record_elements;
  if (elements == 0 || elements % kTileElements != 0 || elements > kMost) {
    return invalid("a record has " + std::to_string(elements) +
                   " elements at most; that must be a multiple of " +
                   std::to_string(kTileElements) + " up to " + std::to_string(kMost));
  }
  if (options.swap.buffers < 2 || options.swap.buffers > SwapPipeline::kMaxBuffers) {
    return invalid("swapping takes 2 to " + std::to_string(SwapPipeline::kMaxBuffers) +
                   " buffers, not " + std::to_string(options.swap.buffers));
  }
  return {};
}

// Calls `record(sub_group, first_element, elements)` for each record in ascending order.
template <typename Record>
void for_each_record(std::span<const SubGroup> placement, std::uint64_t record_elements,
                     const Record& record) {
  for (const SubGroup& sub_group : placement) {
    if (sub_group.tier != Tier::kNvme) continue;
    for (std::uint64_t done = 0; done < sub_group.elements; done += record_elements) {
      record(sub_group, sub_group.first_element + done,
             std::min(record_elements, sub_group.elements - done));
    }
  }
}

std::vector<RecordSpec> record_specs(const NvmeState::Options& options,
                                     std::span<const UnitSpec> units,
                                     std::span<const SubGroup> placement) {
  std::vector<RecordSpec> specs;
  for_each_record(
      placement, options.record_elements,
      [&](const SubGroup& sub_group, std::uint64_t first, std::uint64_t elements) {
        specs.push_back(
            {.parameter = units[static_cast<std::size_t>(sub_group.unit)].name + "/adamw",
             .first_element = first,
             .elements = elements,
             .payload_bytes = state_bytes(options.kind.form, elements)});
      });
  if (!options.in_place || !has_parameter_records(options.kind.form)) return specs;
  for_each_record(
      placement, options.record_elements,
      [&](const SubGroup& sub_group, std::uint64_t first, std::uint64_t elements) {
        specs.push_back(
            {.parameter = units[static_cast<std::size_t>(sub_group.unit)].name + "/parameters",
             .first_element = first,
             .elements = elements,
             .payload_bytes = parameter_bytes(options.kind.form, elements)});
      });
  return specs;
}

std::uint64_t largest_image(const StoreLayout& layout, std::size_t begin, std::size_t end) {
  std::uint64_t largest = 0;
  for (std::size_t id = begin; id < end; ++id)
    largest = std::max(largest, layout.shape(static_cast<RecordId>(id)).image_bytes());
  return largest;
}

// The records of state come first.
std::size_t state_records(const NvmeState::Options& options, const StoreLayout& layout) {
  const bool both = options.in_place && has_parameter_records(options.kind.form);
  return layout.records().size() / (both ? 2 : 1);
}

std::uint64_t state_buffer_bytes(const NvmeState::Options& options, const StoreLayout& layout) {
  return largest_image(layout, 0, state_records(options, layout));
}

// 0: there are no records of parameters.
std::uint64_t parameter_buffer_bytes(const NvmeState::Options& options, const StoreLayout& layout) {
  return largest_image(layout, state_records(options, layout), layout.records().size());
}

Result<StoreLayout> plan_layout(const NvmeState::Options& options, std::vector<RecordSpec> specs) {
  SLUICE_RETURN_IF_ERROR(check_options(options));
  return StoreLayout::create({.store_id = 1,  // for no store
                              .run = options.store.run,
                              .paths = options.store.paths,
                              .weights = options.store.weights,
                              .stripe_bytes = options.store.stripe_bytes,
                              .chunk_bytes = tile_bytes(options.kind.form),
                              .places = options.in_place ? 2 : 1},
                             std::move(specs));
}

}  // namespace

Result<NvmeState::Plan> NvmeState::plan(const Options& options, std::span<const UnitSpec> units,
                                        std::span<const SubGroup> placement) {
  SLUICE_ASSIGN_OR_RETURN(const StoreLayout layout,
                          plan_layout(options, record_specs(options, units, placement)));
  const std::uint64_t of_parameters = parameter_buffer_bytes(options, layout);
  return Plan{
      .buffer_bytes =
          aio::PinnedPool::mapped_bytes(state_buffer_bytes(options, layout), options.swap.buffers) +
          (of_parameters > 0 ? aio::PinnedPool::mapped_bytes(of_parameters, kParameterBuffers) : 0),
      .store_bytes = layout.total_bytes()};
}

Result<std::unique_ptr<NvmeState>> NvmeState::create(const Options& options,
                                                     std::span<const UnitSpec> units,
                                                     std::span<const SubGroup> placement,
                                                     Queues queues, aio::Executor& executor) {
  std::vector<RecordSpec> specs = record_specs(options, units, placement);
  SLUICE_ASSIGN_OR_RETURN(const StoreLayout layout, plan_layout(options, specs));
  std::unique_ptr<NvmeState> nvme(new NvmeState(options, executor));
  for_each_record(placement, options.record_elements,
                  [&](const SubGroup& sub_group, std::uint64_t first, std::uint64_t elements) {
                    const auto id = static_cast<RecordId>(nvme->all_.size());
                    nvme->all_.push_back(id);
                    nvme->parts_.add(sub_group.unit, {.unit = sub_group.unit,
                                                      .first_element = first,
                                                      .elements = elements,
                                                      .group = sub_group.group,
                                                      .id = id});
                  });
  SLUICE_ASSIGN_OR_RETURN(
      nvme->pool_, aio::PinnedPool::create({.buffer_bytes = state_buffer_bytes(options, layout),
                                            .capacity = options.swap.buffers,
                                            .huge_pages = options.huge_pages,
                                            .lock = options.lock,
                                            .backend = &queues.reads->backend(),
                                            .executor = &executor}));
  SLUICE_RETURN_IF_ERROR(nvme->make_parameter_pool(options, layout, queues));
  SLUICE_RETURN_IF_ERROR(nvme->make_store(options, std::move(specs), queues));
  const Status made = nvme->make_pipeline();
  if (!made.ok()) {
    static_cast<void>(nvme->remove());
    return made.error();
  }
  return nvme;
}

Status NvmeState::make_parameter_pool(const Options& options, const StoreLayout& layout,
                                      Queues queues) {
  const std::uint64_t bytes = parameter_buffer_bytes(options, layout);
  if (bytes == 0) return {};
  SLUICE_ASSIGN_OR_RETURN(parameter_pool_,
                          aio::PinnedPool::create({.buffer_bytes = bytes,
                                                   .capacity = kParameterBuffers,
                                                   .huge_pages = options.huge_pages,
                                                   .lock = options.lock,
                                                   .backend = &queues.reads->backend(),
                                                   .executor = &executor_}));
  return {};
}

Status NvmeState::make_store(const Options& options, std::vector<RecordSpec> specs, Queues queues) {
  const StateStore::Queues both{*queues.reads, *queues.writes};
  if (options.adopt) {
    auto opened = StateStore::open(both, *options.adopt, specs, options.store.label);
    if (!opened.ok() && opened.error().code() == ErrorCode::kInvalidArgument)
      return std::move(opened).error().with_suffix(
          "; sluice copy makes a checkpoint of files, which any placement resumes");
    SLUICE_ASSIGN_OR_RETURN(store_, std::move(opened));
    return {};
  }
  StateStore::Options store = options.store;
  store.chunk_bytes = tile_bytes(options.kind.form);
  store.places = options.in_place ? 2 : 1;
  SLUICE_ASSIGN_OR_RETURN(store_, StateStore::create(both, store, std::move(specs)));
  return {};
}

Status NvmeState::make_pipeline() {
  if (parameter_pool_ != nullptr && parameter_writer_ == nullptr && !adopts_) {
    SLUICE_ASSIGN_OR_RETURN(parameter_writer_, swap::RecordWriter::create(*store_, *parameter_pool_,
                                                                          kParameterBuffers));
  }
  SLUICE_ASSIGN_OR_RETURN(auto pipeline, SwapPipeline::create(*store_, *pool_, swap_options_));
  const std::lock_guard lock(pipeline_mutex_);
  pipeline_ = std::move(pipeline);
  return {};
}

void NvmeState::end_pipeline() {
  announced_ = false;
  const std::lock_guard lock(pipeline_mutex_);
  pipeline_.reset();
}

void NvmeState::announce() {
  if (!std::exchange(announced_, true)) pipeline_->expect(all_);
}

void NvmeState::begin_pass() {
  announce();
  announced_ = false;
}

Status NvmeState::abandon_pass() {
  while (pipeline_->expected() > 0) {
    SLUICE_ASSIGN_OR_RETURN(auto loan, pipeline_->next());
    pipeline_->release(std::move(loan));
  }
  return {};
}

Status NvmeState::update(const UnitUpdate& update) {
  for (const Part& part : parts_.of(update.unit)) {
    SLUICE_ASSIGN_OR_RETURN(auto loan, pipeline_->next());
    SLUICE_CHECK(loan.record() == part.id, "records come as they were announced");
    const auto work = [&](int tile, std::span<std::byte> data) {
      update_tile(part, tile, data, update);
    };
    SLUICE_RETURN_IF_ERROR(loan.work(executor_, std::cref(work)));
    pipeline_->write(std::move(loan));
    if (update.keeps_parameters && keeps_parameters())
      SLUICE_RETURN_IF_ERROR(store_parameters(
          part, param_at(kind_.form.param, update.arrays.param, part.first_element)));
  }
  return {};
}

Status NvmeState::store_parameters(const SubGroup& sub_group, const UnitArrays& arrays) {
  for (const Part& part : parts_.of(sub_group))
    SLUICE_RETURN_IF_ERROR(
        store_parameters(part, param_at(kind_.form.param, arrays.param, part.first_element)));
  return {};
}

// `param`: the first of the part's parameters.
Status NvmeState::store_parameters(const Part& part, const void* param) {
  SLUICE_ASSIGN_OR_RETURN(const std::span<std::byte> payload,
                          parameter_writer_->begin(parameters_of(part)));
  const std::uint64_t tile_bytes = parameter_bytes(kind_.form, kTileElements);
  const auto copy = [&](int tile) {
    const std::uint64_t begin = static_cast<std::uint64_t>(tile) * tile_bytes;
    std::memcpy(payload.data() + begin, static_cast<const std::byte*>(param) + begin,
                std::min(tile_bytes, payload.size() - begin));
  };
  executor_.run(static_cast<int>(tile_count(part.elements)), std::cref(copy));
  return parameter_writer_->write(executor_);
}

Result<FrozenState> NvmeState::freeze(const std::string& checkpoint) {
  FrozenState frozen{.form = kind_.form};
  SLUICE_ASSIGN_OR_RETURN(frozen.store, store_->freeze(checkpoint));
  for (const Part& part : parts_.all()) {
    frozen.parts.push_back(
        {.unit = part.unit,
         .first_element = part.first_element,
         .elements = part.elements,
         .state = part.id,
         .parameters = keeps_parameters() ? std::optional(parameters_of(part)) : std::nullopt});
  }
  return frozen;
}

void NvmeState::update_tile(const Part& part, int tile, std::span<std::byte> data,
                            const UnitUpdate& update) const {
  const std::uint64_t first = static_cast<std::uint64_t>(tile) * kTileElements;
  const std::uint64_t elements = std::min(kTileElements, part.elements - first);
  const std::uint64_t in_shard = part.first_element + first;
  const AdamwArrays arrays =
      step_arrays(tile_arrays(kind_.form, state_tile(kind_.form, data.data(), elements),
                              param_at(kind_.form.param, update.arrays.param, in_shard)),
                  kind_, update, update.arrays.grad, in_shard);
  for (std::uint64_t i = 0; i < elements;) {
    const auto piece = update.piece(part.group, in_shard + i, in_shard + elements);
    adamw_range(kind_.isa, piece.scalars, arrays, i, piece.end - in_shard);
    i = piece.end - in_shard;
  }
}

StateSweep::Tile NvmeState::tile_of(const Part& part, std::span<std::byte> payload,
                                    std::uint64_t index, const UnitArrays& arrays) const {
  const std::uint64_t first = index * kTileElements;
  const std::uint64_t elements = std::min(kTileElements, part.elements - first);
  const std::uint64_t in_shard = part.first_element + first;
  std::byte* const tile = payload.data() + index * tile_bytes(kind_.form);
  return {in_shard, elements,
          tile_arrays(kind_.form, state_tile(kind_.form, tile, elements),
                      param_at(kind_.form.param, arrays.param, in_shard))};
}

Result<swap::SwapPipeline::Loan> NvmeState::sweep_next(int unit, const Part& part,
                                                       const UnitArrays& arrays,
                                                       StateSweep& sweep) {
  SLUICE_ASSIGN_OR_RETURN(auto loan, pipeline_->next());
  SLUICE_CHECK(loan.record() == part.id, "records come as they were announced");
  SLUICE_RETURN_IF_ERROR(loan.check(executor_));
  const std::span<std::byte> payload = loan.image().payload();
  SLUICE_RETURN_IF_ERROR(
      sweep.run({.unit = unit, .count = tile_count(part.elements), .at = [&](std::uint64_t index) {
                   return tile_of(part, payload, index, arrays);
                 }}));
  return loan;
}

Status NvmeState::snapshot(const SubGroup& sub_group, const UnitArrays& arrays, StateSweep& sweep) {
  for (const Part& part : parts_.of(sub_group)) {
    SLUICE_ASSIGN_OR_RETURN(auto loan, sweep_next(sub_group.unit, part, arrays, sweep));
    pipeline_->release(std::move(loan));
  }
  return {};
}

Status NvmeState::begin_amend(std::span<const int> units) {
  if (announced_) {
    begin_pass();
    SLUICE_RETURN_IF_ERROR(abandon_pass());
  }
  some_.clear();
  for (const int unit : units)
    for (const Part& part : parts_.of(unit)) some_.push_back(part.id);
  pipeline_->expect(some_);
  return {};
}

Status NvmeState::amend(const SubGroup& sub_group, const UnitArrays& arrays, StateSweep& sweep) {
  for (const Part& part : parts_.of(sub_group)) {
    SLUICE_ASSIGN_OR_RETURN(auto loan, sweep_next(sub_group.unit, part, arrays, sweep));
    const auto as_it_is = [](int /*tile*/, std::span<std::byte> /*data*/) {};
    SLUICE_RETURN_IF_ERROR(loan.work(executor_, as_it_is));  // seals the unchanged record
    pipeline_->write(std::move(loan));
  }
  return {};
}

// The pipeline returns only records that can be read. During a restore its buffers belong to a
// writer.
Status NvmeState::begin_restore() {
  if (adopts_) {
    if (!keeps_parameters()) begin_pass();
    return {};
  }
  end_pipeline();
  SLUICE_ASSIGN_OR_RETURN(writer_,
                          swap::RecordWriter::create(*store_, *pool_, swap_options_.buffers));
  return {};
}

// The state stays in the store, and the parameters come from it.
Status NvmeState::adopt_parameters(const Part& part, void* param) {
  if (keeps_parameters()) {
    std::array<aio::PinnedPool::Lease, 1> lease;
    SLUICE_CHECK(parameter_pool_->try_acquire_all(lease), "a free buffer");
    const swap::RecordId id = parameters_of(part);
    const std::span<std::byte> image = lease[0].bytes().first(store_->shape(id).image_bytes());
    SLUICE_RETURN_IF_ERROR(store_->read_checked(executor_, id, image));
    const std::span<std::byte> payload = swap::RecordImage(store_->shape(id), image).payload();
    std::memcpy(param, payload.data(), payload.size());
    return {};
  }
  SLUICE_ASSIGN_OR_RETURN(auto loan, pipeline_->next());
  SLUICE_CHECK(loan.record() == part.id, "records come as they were announced");
  SLUICE_RETURN_IF_ERROR(loan.check(executor_));
  for (std::uint64_t done = 0; done < part.elements; done += kTileElements) {
    const std::uint64_t elements = std::min(kTileElements, part.elements - done);
    std::byte* const tile =
        loan.image().payload().data() + done / kTileElements * tile_bytes(kind_.form);
    pack_parameters(kind_.form.param, {state_tile(kind_.form, tile, elements).master, elements},
                    param_at(kind_.form.param, param, done));
  }
  pipeline_->release(std::move(loan));
  return {};
}

Status NvmeState::restore(const SubGroup& sub_group, const UnitArrays& arrays, StateSweep& sweep) {
  for (const Part& part : parts_.of(sub_group)) {
    if (adopts_) {
      SLUICE_RETURN_IF_ERROR(
          adopt_parameters(part, param_at(kind_.form.param, arrays.param, part.first_element)));
      continue;
    }
    SLUICE_ASSIGN_OR_RETURN(const std::span<std::byte> payload, writer_->begin(part.id));
    const std::uint64_t tiles = tile_count(part.elements);
    const std::uint64_t bytes = tile_bytes(kind_.form);
    const auto blank_tile = [&](std::uint64_t index) {
      // Only the last one may have gaps between its fields.
      if (index == tiles - 1)
        std::fill(payload.begin() + static_cast<std::ptrdiff_t>(index * bytes), payload.end(),
                  std::byte{0});
      return tile_of(part, payload, index, arrays);
    };
    SLUICE_RETURN_IF_ERROR(
        sweep.run({.unit = sub_group.unit, .count = tiles, .at = std::cref(blank_tile)}));
    SLUICE_RETURN_IF_ERROR(writer_->write(executor_));
  }
  return {};
}

Status NvmeState::end_restore() {
  if (std::exchange(adopts_, false)) {
    end_pipeline();
    return make_pipeline();
  }
  const Status written = writer_->finish();
  writer_.reset();
  SLUICE_RETURN_IF_ERROR(written);
  return make_pipeline();
}

Status NvmeState::drain() {
  SLUICE_RETURN_IF_ERROR(pipeline_->drain());
  return parameter_writer_ != nullptr ? parameter_writer_->finish() : Status();
}

Status NvmeState::remove() {
  writer_.reset();
  parameter_writer_.reset();
  end_pipeline();
  if (!store_->has_frozen() && !store_->is_naming()) return store_->remove();
  store_.reset();
  return {};
}

swap::SwapStats NvmeState::stats() const {
  const std::lock_guard lock(pipeline_mutex_);
  return pipeline_ != nullptr ? pipeline_->stats() : swap::SwapStats{};
}

}  // namespace sluice::offload
