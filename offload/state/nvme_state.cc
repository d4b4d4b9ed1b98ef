#include "offload/state/nvme_state.h"

#include <algorithm>
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
  return specs;
}

Result<StoreLayout> plan_layout(const NvmeState::Options& options, std::vector<RecordSpec> specs) {
  SLUICE_RETURN_IF_ERROR(check_options(options));
  return StoreLayout::create({.store_id = 1,  // for no store
                              .run = options.store.run,
                              .paths = options.store.paths,
                              .weights = options.store.weights,
                              .stripe_bytes = options.store.stripe_bytes,
                              .chunk_bytes = tile_bytes(options.kind.form)},
                             std::move(specs));
}

}  // namespace

Result<NvmeState::Plan> NvmeState::plan(const Options& options, std::span<const UnitSpec> units,
                                        std::span<const SubGroup> placement) {
  SLUICE_ASSIGN_OR_RETURN(const StoreLayout layout,
                          plan_layout(options, record_specs(options, units, placement)));
  return Plan{.buffer_bytes =
                  aio::PinnedPool::mapped_bytes(layout.largest_image_bytes(), options.swap.buffers),
              .store_bytes = layout.total_bytes()};
}

Result<std::unique_ptr<NvmeState>> NvmeState::create(const Options& options,
                                                     std::span<const UnitSpec> units,
                                                     std::span<const SubGroup> placement,
                                                     Queues queues, aio::Executor& executor) {
  std::vector<RecordSpec> specs = record_specs(options, units, placement);
  SLUICE_ASSIGN_OR_RETURN(const StoreLayout layout, plan_layout(options, specs));
  std::unique_ptr<NvmeState> nvme(new NvmeState(options, executor));
  for_each_record(
      placement, options.record_elements,
      [&](const SubGroup& sub_group, std::uint64_t first, std::uint64_t elements) {
        const auto id = static_cast<RecordId>(nvme->all_.size());
        nvme->all_.push_back(id);
        nvme->parts_.add(
            sub_group.unit,
            {.first_element = first, .elements = elements, .group = sub_group.group, .id = id});
      });
  SLUICE_ASSIGN_OR_RETURN(nvme->pool_,
                          aio::PinnedPool::create({.buffer_bytes = layout.largest_image_bytes(),
                                                   .capacity = options.swap.buffers,
                                                   .huge_pages = options.huge_pages,
                                                   .lock = options.lock,
                                                   .backend = &queues.reads->backend(),
                                                   .executor = &executor}));
  StateStore::Options store = options.store;
  store.chunk_bytes = tile_bytes(options.kind.form);
  SLUICE_ASSIGN_OR_RETURN(
      nvme->store_, StateStore::create({*queues.reads, *queues.writes}, store, std::move(specs)));
  const Status made = nvme->make_pipeline();
  if (!made.ok()) {
    static_cast<void>(nvme->store_->remove());
    return made.error();
  }
  return nvme;
}

Status NvmeState::make_pipeline() {
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
  }
  return {};
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
  end_pipeline();
  SLUICE_ASSIGN_OR_RETURN(writer_,
                          swap::RecordWriter::create(*store_, *pool_, swap_options_.buffers));
  return {};
}

Status NvmeState::restore(const SubGroup& sub_group, const UnitArrays& arrays, StateSweep& sweep) {
  for (const Part& part : parts_.of(sub_group)) {
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
  const Status written = writer_->finish();
  writer_.reset();
  SLUICE_RETURN_IF_ERROR(written);
  return make_pipeline();
}

Status NvmeState::remove() {
  writer_.reset();
  end_pipeline();
  return store_->remove();
}

swap::SwapStats NvmeState::stats() const {
  const std::lock_guard lock(pipeline_mutex_);
  return pipeline_ != nullptr ? pipeline_->stats() : swap::SwapStats{};
}

}  // namespace sluice::offload
