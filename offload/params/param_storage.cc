#include "offload/params/param_storage.h"

#include <utility>

#include "aio/check.h"
#include "swap/store_layout.h"

namespace sluice::offload {
namespace {

Result<ParamLayout> layout_for(const ParamOptions& options) {
  return ParamLayout::create(options.units, options.element_bytes, options.cache_buffers);
}

std::vector<swap::RecordSpec> records_of(const ParamLayout& layout) {
  return {layout.records().begin(), layout.records().end()};
}

}  // namespace

Result<ParamMemoryPlan> ParamStorage::plan(const ParamOptions& options) {
  SLUICE_ASSIGN_OR_RETURN(const ParamLayout layout, layout_for(options));
  ParamMemoryPlan plan{.cpu_bytes = layout.cpu_bytes(), .buffer_bytes = layout.buffer_bytes()};
  if (layout.records().empty()) return plan;
  SLUICE_ASSIGN_OR_RETURN(const auto store,
                          swap::StoreLayout::create({.run = options.store.run,
                                                     .paths = options.store.paths,
                                                     .weights = options.store.weights,
                                                     .stripe_bytes = options.store.stripe_bytes,
                                                     .chunk_bytes = layout.chunk_bytes()},
                                                    records_of(layout)));
  plan.nvme_bytes = store.total_bytes();
  return plan;
}

Result<std::unique_ptr<ParamStorage>> ParamStorage::create(const ParamOptions& options,
                                                           const ParamEnvironment& environment) {
  SLUICE_ASSIGN_OR_RETURN(ParamLayout layout, layout_for(options));
  std::unique_ptr<ParamStorage> storage(new ParamStorage(std::move(layout)));
  SLUICE_RETURN_IF_ERROR(storage->take_memory(options, environment));
  if (storage->layout_.records().empty()) return storage;
  swap::StateStore::Options store = options.store;
  store.chunk_bytes = storage->layout_.chunk_bytes();
  SLUICE_ASSIGN_OR_RETURN(storage->store_,
                          swap::StateStore::create({*environment.reads, *environment.writes}, store,
                                                   records_of(storage->layout_)));
  return storage;
}

Status ParamStorage::pin(std::uint64_t bytes, const ParamOptions& options, aio::IoBackend* backend,
                         aio::Executor* executor, Pinned& memory) {
  SLUICE_ASSIGN_OR_RETURN(memory.pool, aio::PinnedPool::create({.buffer_bytes = bytes,
                                                                .capacity = 1,
                                                                .huge_pages = options.huge_pages,
                                                                .lock = options.lock,
                                                                .backend = backend,
                                                                .hook = options.hook,
                                                                .executor = executor}));
  memory.lease = memory.pool->acquire();
  return {};
}

Status ParamStorage::take_memory(const ParamOptions& options, const ParamEnvironment& environment) {
  if (layout_.cpu_bytes() > 0) {
    Status pinned =
        pin(layout_.cpu_bytes(), options, /*backend=*/nullptr, environment.executor, cpu_);
    if (!pinned.ok())
      return std::move(pinned).error().with_context("taking memory for parameters of tier cpu");
  }
  if (layout_.buffer_bytes() == 0) return {};
  SLUICE_CHECK(environment.reads != nullptr && environment.writes != nullptr,
               "nvme units need queues");
  Status pinned = pin(layout_.buffer_bytes(), options, &environment.reads->backend(),
                      environment.executor, buffers_);
  if (!pinned.ok())
    return std::move(pinned).error().with_context("taking buffers for parameters of tier nvme");
  for (const ParamLayout::SizeClass& it : layout_.classes()) {
    const auto of_class = buffers_.lease.bytes().subspan(it.first_offset_bytes);
    for (int i = 0; i < it.buffers; ++i) {
      slices_.push_back(
          of_class.subspan(static_cast<std::uint64_t>(i) * it.buffer_bytes, it.buffer_bytes));
    }
  }
  return {};
}

}  // namespace sluice::offload
