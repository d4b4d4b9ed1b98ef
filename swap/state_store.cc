#include "swap/state_store.h"

#include <algorithm>
#include <condition_variable>
#include <random>
#include <utility>

#include "aio/check.h"
#include "aio/log.h"
#include "aio/small_file.h"
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
      states_(shapes_.size()) {}

StateStore::~StateStore() {
  const std::lock_guard lock(mutex_);
  SLUICE_CHECK(in_flight_ == 0, "a StateStore was destroyed while a transfer was in flight");
}

Status StateStore::make_data() {
  std::vector<std::string> paths;
  for (const auto& directory : directories_) paths.push_back(data_path(directory->path()));
  aio::StripedFile::Options options;
  options.stripe_bytes = layout_.options().stripe_bytes;
  options.weights = layout_.options().weights;
  options.file.open.access = aio::OpenOptions::Access::kReadWrite;
  options.file.open.create = aio::OpenOptions::Create::kMustNotExist;
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
                           .chunk_bytes = options.chunk_bytes},
                          std::move(records)));
  SLUICE_ASSIGN_OR_RETURN(StoreDirectories taken,
                          StoreDirectory::take_all(queues.reads, options.paths, options.run));
  SLUICE_RETURN_IF_ERROR(clear_for_new_store(queues.reads, taken));

  std::unique_ptr<StateStore> store(new StateStore(queues, std::move(layout), std::move(taken)));
  store->label_ = options.label;
  const Status made = [&]() -> Status {
    SLUICE_RETURN_IF_ERROR(store->make_data());
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

void StateStore::read(RecordIo& io, RecordId id, std::span<std::byte> image) noexcept {
  SLUICE_CHECK(image.size() == shapes_[id].image_bytes(), "a buffer of the record's size");
  {
    const std::lock_guard lock(mutex_);
    RecordState& state = states_[id];
    SLUICE_CHECK(!state.writing, "a read of a record while a write of it is in flight");
    SLUICE_CHECK(state.valid, "a read of a record that was never written, or whose write failed");
    ++state.readers;
    ++in_flight_;
    io.queue_ = &queues_.reads;
  }
  io.store_ = this;
  io.record_ = id;
  io.request_.prepare_read(*data_, layout_.offset_bytes(id), image);
  io.request_.set_callback(&StateStore::on_done, &io);
  io.request_.set_label(label_);
  queues_.reads.submit(io.request_);
}

void StateStore::write(RecordIo& io, RecordId id, std::uint64_t generation,
                       std::span<const std::byte> image) noexcept {
  SLUICE_CHECK(image.size() == shapes_[id].image_bytes(), "a buffer of the record's size");
  {
    const std::lock_guard lock(mutex_);
    RecordState& state = states_[id];
    SLUICE_CHECK(!state.writing && state.readers == 0,
                 "a write of a record while a transfer of it is in flight");
    SLUICE_CHECK(generation > state.generation, "each write has a new generation");
    state.writing = true;
    state.generation = generation;
    state.valid = false;  // it is overwritten in place
    ++in_flight_;
    io.queue_ = &queues_.writes;
  }
  io.store_ = this;
  io.record_ = id;
  io.request_.prepare_write(*data_, layout_.offset_bytes(id), image);
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
