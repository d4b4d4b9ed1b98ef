#include "swap/state_store.h"

#include <algorithm>
#include <condition_variable>
#include <random>
#include <utility>

#include "aio/check.h"
#include "aio/log.h"
#include "aio/small_file.h"
#include "aio/units.h"
#include "swap/frozen_records.h"
#include "swap/record_work.h"
#include "swap/store_files.h"
#include "swap/store_inventory.h"
#include "swap/store_manifest.h"

namespace sluice::swap {
namespace {

using aio::IoQueue;

std::uint64_t random_store_id() {
  std::random_device device;
  const std::uint64_t high = device();
  return high << 32 | device();
}

std::vector<RecordShape> shapes_of(const StoreLayout& layout) {
  std::vector<RecordShape> shapes;
  shapes.reserve(layout.records().size());
  for (RecordId id = 0; id < layout.records().size(); ++id) shapes.push_back(layout.shape(id));
  return shapes;
}

// Generations of one process that continues in a store: more than it can ever write of a record.
constexpr std::uint64_t kGenerationsOfAProcess = std::uint64_t{1} << 32;

Status check_same_records(const FrozenStore& frozen, std::span<const RecordSpec> there,
                          std::span<const RecordSpec> wanted) {
  const std::string folder = folder_of(frozen.paths.front(), frozen.run);
  if (there.size() != wanted.size())
    return Error(ErrorCode::kInvalidArgument, folder + " has " + std::to_string(there.size()) +
                                                  " records, and the run's placement " +
                                                  std::to_string(wanted.size()));
  for (std::size_t i = 0; i < there.size(); ++i) {
    if (there[i].parameter != wanted[i].parameter ||
        there[i].first_element != wanted[i].first_element ||
        there[i].elements != wanted[i].elements ||
        there[i].payload_bytes != wanted[i].payload_bytes)
      return Error(ErrorCode::kInvalidArgument,
                   folder + " has record " + name_of(there[i]) + " (" +
                       format_bytes(there[i].payload_bytes) + ") where the run's placement has " +
                       name_of(wanted[i]) + " (" + format_bytes(wanted[i].payload_bytes) + ")");
  }
  return {};
}

// Clears the folders taken for a new store.
Status clear_for_new_store(IoQueue& queue, const StoreDirectories& directories) {
  aio::FileSystem& files = queue.backend().files();
  for (const auto& directory : directories) {
    const std::string& folder = directory->path();
    if (directory->previous_owner()) {
      log::warning(folder + " was left incomplete by " + describe(*directory->previous_owner()) +
                   ", which was killed; it is replaced");
    }
    SLUICE_RETURN_IF_ERROR(aio::remove_durably(files, manifest_path(folder)));
    SLUICE_RETURN_IF_ERROR(aio::remove_durably(files, data_path(folder)));
  }
  return {};
}

}  // namespace

StateStore::StateStore(Queues queues, StoreLayout layout, StoreDirectories directories)
    : queues_(queues),
      layout_(std::move(layout)),
      shapes_(shapes_of(layout_)),
      directories_(std::move(directories)),
      states_(shapes_.size()),
      places_(shapes_.size(), layout_.options().places) {}

StateStore::~StateStore() {
  const std::lock_guard lock(mutex_);
  SLUICE_CHECK(in_flight_ == 0, "a StateStore was destroyed while a transfer was in flight");
}

Status StateStore::open_data(aio::OpenOptions::Create create) {
  std::vector<std::string> paths;
  for (const auto& directory : directories_) paths.push_back(data_path(directory->path()));
  aio::StripedFile::Options options;
  options.stripe_bytes = layout_.options().stripe_bytes;
  options.weights = layout_.options().weights;
  options.file.open.access = aio::OpenOptions::Access::kReadWrite;
  options.file.open.create = create;
  options.file.size_bytes = layout_.total_bytes();
  options.file.overwritten = true;
  SLUICE_ASSIGN_OR_RETURN(data_, aio::StripedFile::open(queues_.reads, paths, options));
  return {};
}

Result<std::unique_ptr<StateStore>> StateStore::create(Queues queues, const Options& options,
                                                       std::vector<RecordSpec> records) {
  SLUICE_ASSIGN_OR_RETURN(
      StoreLayout layout,
      StoreLayout::create({.store_id = options.store_id != 0 ? options.store_id : random_store_id(),
                           .run = options.run,
                           .paths = options.paths,
                           .weights = options.weights,
                           .stripe_bytes = options.stripe_bytes,
                           .chunk_bytes = options.chunk_bytes,
                           .places = options.places},
                          std::move(records)));
  SLUICE_ASSIGN_OR_RETURN(StoreDirectories taken,
                          StoreDirectory::take_all(queues.reads, options.paths, options.run));
  SLUICE_RETURN_IF_ERROR(clear_for_new_store(queues.reads, taken));

  std::unique_ptr<StateStore> store(new StateStore(queues, std::move(layout), std::move(taken)));
  store->label_ = options.label;
  const Status made = [&]() -> Status {
    SLUICE_RETURN_IF_ERROR(store->open_data(aio::OpenOptions::Create::kMustNotExist));
    for (std::size_t i = 0; i < store->directories_.size(); ++i) {
      SLUICE_RETURN_IF_ERROR(aio::write_small_file(
          queues.reads, manifest_path(store->directories_[i]->path()), to_text(store->layout_, i)));
    }
    return {};
  }();
  if (!made.ok()) {
    static_cast<void>(store->remove());
    return Error(made.error()).with_context("making the state store of run " + options.run);
  }
  return store;
}

Result<std::unique_ptr<StateStore>> StateStore::open(Queues queues, const FrozenStore& frozen,
                                                     std::span<const RecordSpec> records,
                                                     const char* label) {
  SLUICE_ASSIGN_OR_RETURN(StoreLayout layout, layout_of(queues.reads, frozen));
  SLUICE_RETURN_IF_ERROR(check_same_records(frozen, layout.records(), records));
  SLUICE_ASSIGN_OR_RETURN(
      StoreDirectories taken,
      StoreDirectory::take_all(queues.reads, frozen.paths, frozen.run, {.adopts = true}));
  std::unique_ptr<StateStore> store(new StateStore(queues, std::move(layout), std::move(taken)));
  store->label_ = label;
  SLUICE_RETURN_IF_ERROR(layout_of(queues.reads, frozen).status());  // now that it is held
  SLUICE_RETURN_IF_ERROR(store->open_data(aio::OpenOptions::Create::kMustExist));
  // Some paths may have an older mark, or none, if a process was killed while it wrote them.
  FrozenMark marked;
  for (const auto& directory : store->directories_) {
    SLUICE_ASSIGN_OR_RETURN(const auto found, read_frozen_mark(queues.reads, directory->path()));
    if (found && found->openings >= marked.openings) marked = *found;
  }
  marked.named = true;
  ++marked.openings;
  SLUICE_RETURN_IF_ERROR(store->mark(marked));
  store->places_ = RecordPlaces(frozen.records);
  for (std::size_t i = 0; i < frozen.records.size(); ++i)
    store->states_[i] = {.generation = frozen.records[i].generation, .valid = true};
  store->first_generation_ = marked.openings * kGenerationsOfAProcess;
  return store;
}

Status StateStore::mark(const FrozenMark& mark) {
  for (const auto& directory : directories_)
    SLUICE_RETURN_IF_ERROR(write_frozen_mark(queues_.writes, directory->path(), mark));
  mark_ = mark;
  return {};
}

Status StateStore::remove_mark() {
  for (const auto& directory : directories_)
    SLUICE_RETURN_IF_ERROR(
        aio::remove_durably(queues_.writes.backend().files(), frozen_mark_path(directory->path())));
  mark_.reset();
  return {};
}

Result<FrozenStore> StateStore::freeze(const std::string& checkpoint) {
  FrozenStore frozen{.run = layout_.options().run,
                     .paths = layout_.options().paths,
                     .store_id = layout_.options().store_id};
  {
    const std::lock_guard lock(mutex_);
    for (RecordId id = 0; id < states_.size(); ++id) {
      SLUICE_CHECK(states_[id].valid && !states_[id].writing, "a store whose records are written");
      if (states_[id].suspect)
        return Error(ErrorCode::kIo, "record " + name(id) + " in " + data_->path() +
                                         " may be lost, because a sync of it has failed before");
      frozen.records.push_back({.generation = states_[id].generation, .place = places_.newest(id)});
    }
    places_.freeze();
  }
  Status durable = queues_.writes.sync(*data_);
  if (!durable.ok()) {
    const std::lock_guard lock(mutex_);
    for (RecordState& state : states_) state.suspect = true;
  }
  if (durable.ok() && !mark_) {
    durable = mark({.checkpoint = checkpoint});
    if (!durable.ok()) static_cast<void>(remove_mark());
  }
  if (durable.ok()) return frozen;
  const std::lock_guard lock(mutex_);
  places_.drop();
  return std::move(durable).error().with_context("freezing the state in " + data_->path());
}

Status StateStore::keep_frozen() {
  {
    const std::lock_guard lock(mutex_);
    places_.keep();
  }
  if (mark_->named) return {};
  FrozenMark named = *mark_;
  named.named = true;
  return mark(named);
}

Status StateStore::drop_frozen() {
  {
    const std::lock_guard lock(mutex_);
    places_.drop();
    if (places_.has_frozen()) return {};
  }
  return remove_mark();
}

bool StateStore::has_frozen() const {
  const std::lock_guard lock(mutex_);
  return places_.has_frozen();
}

bool StateStore::is_naming() const {
  const std::lock_guard lock(mutex_);
  return !places_.may_write();
}

Status StateStore::remove() {
  {
    const std::lock_guard lock(mutex_);
    SLUICE_CHECK(in_flight_ == 0, "remove() while a transfer is in flight");
  }
  data_.reset();
  return remove_store(queues_.writes, directories_);
}

std::optional<std::uint64_t> StateStore::generation(RecordId id) const {
  const std::lock_guard lock(mutex_);
  return states_[id].valid ? std::optional(states_[id].generation) : std::nullopt;
}

std::uint64_t StateStore::next_generation(RecordId id) const {
  const std::lock_guard lock(mutex_);
  return std::max(states_[id].generation + 1, first_generation_);
}

void StateStore::read(RecordIo& io, RecordId id, std::span<std::byte> image) noexcept {
  SLUICE_CHECK(image.size() == shapes_[id].image_bytes(), "a buffer of the record's size");
  int place = 0;
  {
    const std::lock_guard lock(mutex_);
    RecordState& state = states_[id];
    place = places_.newest(id);
    SLUICE_CHECK(!state.writing, "a read of a record while a write of it is in flight");
    SLUICE_CHECK(state.valid, "a read of a record that was never written, or whose write failed");
    ++state.readers;
    ++in_flight_;
    io.queue_ = &queues_.reads;
  }
  io.store_ = this;
  io.record_ = id;
  io.request_.prepare_read(*data_, layout_.offset_bytes(id, place), image);
  io.request_.set_callback(&StateStore::on_done, &io);
  io.request_.set_label(label_);
  queues_.reads.submit(io.request_);
}

void StateStore::write(RecordIo& io, RecordId id, std::uint64_t generation,
                       std::span<const std::byte> image) noexcept {
  SLUICE_CHECK(image.size() == shapes_[id].image_bytes(), "a buffer of the record's size");
  int place = 0;
  {
    const std::lock_guard lock(mutex_);
    RecordState& state = states_[id];
    SLUICE_CHECK(!state.writing && state.readers == 0,
                 "a write of a record while a transfer of it is in flight");
    SLUICE_CHECK(generation > state.generation && generation >= first_generation_,
                 "each write has a new generation");
    state.writing = true;
    state.generation = generation;
    state.suspect = false;
    state.valid = false;  // its newest place is overwritten, or becomes the other one
    place = places_.write(id);
    ++in_flight_;
    io.queue_ = &queues_.writes;
  }
  io.store_ = this;
  io.record_ = id;
  io.request_.prepare_write(*data_, layout_.offset_bytes(id, place), image);
  io.request_.set_callback(&StateStore::on_done, &io);
  io.request_.set_label(label_);
  queues_.writes.submit(io.request_);
}

// Only the request's own queue may access it: each queue has its own lock.
void StateStore::cancel(RecordIo& io) noexcept {
  IoQueue* queue = nullptr;
  {
    const std::lock_guard lock(mutex_);
    queue = io.queue_;
  }
  if (queue != nullptr) queue->cancel(io.request_);
}

void StateStore::on_done(aio::IoRequest& request, void* context) noexcept {
  auto& io = *static_cast<RecordIo*>(context);
  StateStore& store = *io.store_;
  const bool wrote = request.kind() == aio::IoKind::kWrite;
  io.status_ = request.status();
  if (!io.status_.ok()) {
    io.status_ = std::move(io.status_)
                     .error()
                     .with_context(std::string(wrote ? "writing" : "reading") + " record " +
                                   store.name(io.record_));
  }
  {
    const std::lock_guard lock(store.mutex_);
    RecordState& state = store.states_[io.record_];
    if (wrote) {
      state.writing = false;
      state.valid = io.status_.ok();
    } else {
      --state.readers;
    }
    --store.in_flight_;
  }
  if (io.callback_ != nullptr) io.callback_(io, io.context_);
}

Status StateStore::read_and_wait(RecordId id, std::span<std::byte> image) {
  RecordIo io;
  struct Ended {
    std::mutex mutex;
    std::condition_variable changed;
    bool yes = false;
  } ended;
  io.set_callback(
      [](RecordIo&, void* context) noexcept {
        auto& it = *static_cast<Ended*>(context);
        const std::lock_guard lock(it.mutex);
        it.yes = true;
        it.changed.notify_all();  // under the lock: the waiting thread destroys it after that
      },
      &ended);
  read(io, id, image);
  std::unique_lock lock(ended.mutex);
  while (!ended.yes) {
    lock.unlock();
    const aio::PumpResult pumped = pump();
    lock.lock();
    SLUICE_CHECK(pumped != aio::PumpResult::kIdle || ended.yes,
                 "virtual time ran out of events while a record was waited for: a deadlock");
    if (pumped == aio::PumpResult::kThreaded) ended.changed.wait(lock, [&] { return ended.yes; });
  }
  return io.status();
}

Status StateStore::read_checked(aio::Executor& executor, RecordId id, std::span<std::byte> image) {
  SLUICE_RETURN_IF_ERROR(read_and_wait(id, image));
  RecordImage view(shape(id), image);
  Status checked = work_on_record(executor, view, {.check = generation(id)});
  if (checked.ok()) return {};
  return std::move(checked).error().with_context("record " + name(id) + " in " + data_->path());
}

}  // namespace sluice::swap
