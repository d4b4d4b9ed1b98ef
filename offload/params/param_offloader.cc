#include "offload/params/param_offloader.h"

#include <cstring>
#include <utility>

#include "aio/check.h"
#include "offload/params/param_offloader_parts.h"
#include "swap/record_image.h"
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

namespace {

// Whether the old content is not needed.
bool replaces(ParamOffloader::Access access) {
  return access == ParamOffloader::Access::kReplace || access == ParamOffloader::Access::kOverwrite;
}

std::vector<int> class_of_each_unit(const ParamLayout& layout) {
  std::vector<int> classes;
  classes.reserve(layout.units());
  for (std::size_t i = 0; i < layout.units(); ++i)
    classes.push_back(layout.place(static_cast<int>(i)).size_class);
  return classes;
}

std::vector<int> buffers_of_each_class(const ParamLayout& layout) {
  std::vector<int> buffers;
  for (const ParamLayout::SizeClass& it : layout.classes()) buffers.push_back(it.buffers);
  return buffers;
}

Error closing() {
  return {ErrorCode::kCancelled, "the parameters were asked for after their offloader was closed"};
}

}  // namespace

// ---- leases ----------------------------------------------------------------------------------

ParamOffloader::Lease::Lease(Lease&& other) noexcept
    : owner_(std::exchange(other.owner_, nullptr)),
      unit_(other.unit_),
      access_(other.access_),
      bytes_(std::exchange(other.bytes_, {})) {}

ParamOffloader::Lease& ParamOffloader::Lease::operator=(Lease&& other) noexcept {
  if (this != &other) {
    release();
    owner_ = std::exchange(other.owner_, nullptr);
    unit_ = other.unit_;
    access_ = other.access_;
    bytes_ = std::exchange(other.bytes_, {});
  }
  return *this;
}

void ParamOffloader::Lease::release() {
  bytes_ = {};
  if (owner_ != nullptr) std::exchange(owner_, nullptr)->release(unit_, access_);
}

// ---- construction and destruction ------------------------------------------------------------

ParamOffloader::ParamOffloader(std::unique_ptr<ParamStorage> storage, const Options& options,
                               const Environment& environment)
    : storage_(std::move(storage)),
      layout_(storage_->layout()),
      store_(storage_->store()),
      clock_(environment.reads != nullptr ? environment.reads->backend().clock() : steady_clock_),
      executor_(environment.executor),
      units_(std::make_unique<Unit[]>(layout_.units())),  // NOLINT(modernize-avoid-c-arrays)
      slots_(std::make_unique<Slot[]>(                    // NOLINT(modernize-avoid-c-arrays)
          static_cast<std::size_t>(storage_->buffers()))),
      cache_(class_of_each_unit(layout_), buffers_of_each_class(layout_), options.read_ahead) {
  for (std::size_t i = 0; i < layout_.units(); ++i) {
    if (layout_.place(static_cast<int>(i)).tier == Tier::kCpu)
      units_[i].content = Unit::Content::kPresent;
  }
  for (int i = 0; i < storage_->buffers(); ++i) {
    Slot& slot = slots_[static_cast<std::size_t>(i)];
    slot.owner = this;
    slot.memory = storage_->buffer(i);
    slot.io.set_callback(&ParamOffloader::on_done, &slot);
  }
}

Result<std::unique_ptr<ParamOffloader>> ParamOffloader::create(const Options& options,
                                                               const Environment& environment) {
  SLUICE_ASSIGN_OR_RETURN(auto storage, ParamStorage::create(options, environment));
  return std::unique_ptr<ParamOffloader>(
      new ParamOffloader(std::move(storage), options, environment));
}

void ParamOffloader::stop() {
  Lock lock(mutex_);
  SLUICE_CHECK(leases_ == 0, "a ParamOffloader was closed while a lease was out");
  fail_locked(closing());
  std::int64_t waited_ns = 0;
  while (!quiet_locked()) wait_for_change(lock, waited_ns);
}

ParamOffloader::~ParamOffloader() { stop(); }

Status ParamOffloader::remove() {
  stop();
  if (store_ != nullptr && !removed_) {
    SLUICE_RETURN_IF_ERROR(store_->remove());
    removed_ = true;
  }
  return {};
}

// ---- access ----------------------------------------------------------------------------------

Result<ParamOffloader::Lease> ParamOffloader::acquire(int unit, Access access) {
  SLUICE_CHECK(on_host(unit), "parameters that live on the GPU are not leased on the host");
  Lock lock(mutex_);
  cache_.access(unit);
  SLUICE_RETURN_IF_ERROR(enter(lock, unit, access));
  const Status there = bring(lock, unit, access);
  if (!there.ok()) {
    leave_locked(unit, access);
    return there.error();
  }
  read_ahead(lock);
  lock.unlock();
  Lease lease(this, unit, access, bytes_of(unit));
  if (access == Access::kReplace) std::memset(lease.bytes().data(), 0, lease.bytes().size());
  return lease;
}

// Waits until access is possible, and takes it.
Status ParamOffloader::enter(Lock& lock, int index, Access access) {
  Unit& unit = at(index);
  const bool alone = access != Access::kRead;
  const auto due = [&] {
    return !unit.updating && (alone ? unit.readers == 0 : unit.updaters_waiting == 0);
  };
  if (alone) ++unit.updaters_waiting;
  while (failure_.ok() && !due()) wait_for_change(lock, stats_.wait_access_ns);
  if (alone) --unit.updaters_waiting;
  if (!failure_.ok()) return failure_;
  SLUICE_CHECK(unit.filled || replaces(access),
               "a unit's parameters are asked for before they were set");
  unit.updating = alone;
  unit.readers += alone ? 0 : 1;
  cache_.pin(index);
  ++leases_;
  return {};
}

void ParamOffloader::leave_locked(int index, Access access) {
  Unit& unit = at(index);
  unit.updating = false;
  unit.readers -= access == Access::kRead ? 1 : 0;
  cache_.unpin(index);
  --leases_;
  changed_locked();
}

// Waits until the content is in memory, checked, and usable for `access`.
Status ParamOffloader::bring(Lock& lock, int index, Access access) {
  using Content = Unit::Content;
  Unit& unit = at(index);
  if (!replaces(access)) count_locked(index);
  for (;;) {
    if (!failure_.ok()) return failure_;
    switch (unit.content) {
      case Content::kPresent:
        return {};
      case Content::kWriting:
        if (access == Access::kRead) return {};
        wait_for_change(lock, stats_.wait_access_ns);
        break;
      case Content::kLoaded:
        if (replaces(access)) {
          unit.content = Content::kPresent;
        } else {
          check(lock, index);
        }
        break;
      case Content::kReading:
      case Content::kChecking:
        wait_for_change(lock, stats_.wait_read_ns);
        break;
      case Content::kAbsent:
        make_room(lock, index, access);
        break;
    }
  }
}

// Gives an absent unit a buffer, and starts to bring its content. Another reader may do the same
// meanwhile.
void ParamOffloader::make_room(Lock& lock, int index, Access access) {
  using Content = Unit::Content;
  Unit& unit = at(index);
  cache_.begin_wait(index);
  while (failure_.ok() && unit.content == Content::kAbsent && !cache_.take(index))
    wait_for_change(lock, stats_.wait_buffer_ns);
  cache_.end_wait(index);
  if (!failure_.ok() || unit.content != Content::kAbsent) return;
  if (replaces(access)) {
    occupy_locked(index);
    unit.content = Content::kPresent;
  } else {
    start_read(lock, index);
  }
  read_ahead(lock);
}

void ParamOffloader::release(int index, Access access) noexcept {
  const bool write = access != Access::kRead && layout_.place(index).tier == Tier::kNvme;
  if (write) {
    ++at(index).generation;  // no other thread has access
    SLUICE_CHECK(work_on_image(index, /*seal=*/true).ok(), "a record can always be sealed");
  }
  Lock lock(mutex_);
  if (access != Access::kRead) at(index).filled = true;
  leave_locked(index, access);
  if (write && failure_.ok()) write_back(lock, index);
  read_ahead(lock);
}

// ---- order and hints -------------------------------------------------------------------------

Status ParamOffloader::drain() {
  Lock lock(mutex_);
  std::int64_t waited_ns = 0;
  while (failure_.ok() ? writing_ > 0 : !quiet_locked()) wait_for_change(lock, waited_ns);
  return failure_;
}

void ParamOffloader::expect(std::span<const int> order) {
  Lock lock(mutex_);
  cache_.expect(order);
  read_ahead(lock);
}

void ParamOffloader::prefetch(int unit) {
  Lock lock(mutex_);
  if (failure_.ok() && cache_.hint(unit)) start_read(lock, unit);
}

// ---- state -----------------------------------------------------------------------------------

ParamOffloader::Unit& ParamOffloader::at(int unit) const {
  return units_[static_cast<std::size_t>(unit)];
}

ParamOffloader::Slot& ParamOffloader::slot_of(int unit) const {
  return slots_[static_cast<std::size_t>(cache_.buffer_of(unit))];
}

std::span<std::byte> ParamOffloader::image_of(int unit) const {
  return slot_of(unit).memory.first(layout_.place(unit).image_bytes);
}

std::span<std::byte> ParamOffloader::bytes_of(int unit) const {
  const ParamLayout::Place& place = layout_.place(unit);
  return place.tier == Tier::kCpu ? storage_->parameters(place)
                                  : image_of(unit).subspan(swap::kRecordHeaderBytes, place.bytes);
}

bool ParamOffloader::in_memory(int unit) const {
  const std::lock_guard lock(mutex_);
  return at(unit).content != Unit::Content::kAbsent && at(unit).content != Unit::Content::kReading;
}

void ParamOffloader::count_locked(int index) {
  using Content = Unit::Content;
  if (layout_.place(index).tier == Tier::kCpu) return;
  const Content content = at(index).content;
  if (content == Content::kAbsent) {
    ++stats_.misses;
  } else if (content != Content::kReading) {
    ++stats_.hits;
    if (content == Content::kWriting) ++stats_.shared;
  }
}

ParamStats ParamOffloader::stats() const {
  const std::lock_guard lock(mutex_);
  return stats_;
}

}  // namespace sluice::offload
