#include "offload/inputs/input_spill.h"

#include <algorithm>
#include <utility>

#include "aio/check.h"
#include "aio/units.h"
#include "swap/callers_thread.h"
#include "swap/record_image.h"
#include "swap/record_work.h"

namespace sluice::offload {
namespace {

constexpr std::uint64_t kBufferBytes = 512 * kMiB;  // approximate total of all buffers
constexpr int kFewestBuffers = 4;  // one each to fill, to write, to read and in use
constexpr int kMostBuffers = 64;

std::uint64_t image_bytes(std::uint64_t piece_bytes) {
  return swap::RecordShape{.payload_bytes = piece_bytes, .chunk_bytes = piece_bytes}.image_bytes();
}

// The finest chunks for which a record's header has room.
std::uint64_t chunk_bytes(std::uint64_t piece_bytes) {
  constexpr std::uint64_t kFinest = kMiB;
  const std::uint64_t coarse = (piece_bytes + swap::kMaxChunks - 1) / swap::kMaxChunks;
  return std::max(kFinest, align_up(coarse, swap::kRecordAlignmentBytes));
}

std::vector<swap::RecordSpec> records_of(const InputSpill::Options& options) {
  std::vector<swap::RecordSpec> records;
  for (const std::string& unit : options.units) {
    for (std::uint64_t m = 0; m < options.pieces_of_unit; ++m) {
      records.push_back({.parameter = unit + " input",
                         .first_element = m * options.piece_bytes,
                         .elements = options.piece_bytes,
                         .payload_bytes = options.piece_bytes});
    }
  }
  return records;
}

}  // namespace

InputSpill::Footprint InputSpill::footprint(std::uint64_t pieces, std::uint64_t piece_bytes) {
  if (pieces == 0) return {};
  const std::uint64_t image = image_bytes(piece_bytes);
  const auto wanted = static_cast<int>(std::clamp<std::uint64_t>(
      kBufferBytes / image, std::uint64_t{kFewestBuffers}, std::uint64_t{kMostBuffers}));
  const int buffers = static_cast<int>(
      std::min(static_cast<std::uint64_t>(wanted), std::max<std::uint64_t>(pieces, 2)));
  return {.buffers = buffers,
          .buffer_bytes = aio::PinnedPool::mapped_bytes(image, buffers),
          .nvme_bytes = pieces * image};
}

Status InputSpill::check(const Options& options) {
  swap::StoreLayoutOptions layout{.run = options.store.run,
                                  .paths = options.store.paths,
                                  .weights = options.store.weights,
                                  .stripe_bytes = options.store.stripe_bytes,
                                  .chunk_bytes = chunk_bytes(options.piece_bytes)};
  return swap::StoreLayout::create(std::move(layout), records_of(options)).status();
}

Result<std::unique_ptr<InputSpill>> InputSpill::create(const Options& options, Queues queues) {
  std::vector<swap::RecordSpec> records = records_of(options);
  const int buffers =
      std::min(footprint(records.size(), options.piece_bytes).buffers, options.most_buffers);
  std::unique_ptr<InputSpill> spill(new InputSpill());
  auto pool = aio::PinnedPool::create({.buffer_bytes = image_bytes(options.piece_bytes),
                                       .capacity = buffers,
                                       .huge_pages = options.huge_pages,
                                       .lock = options.lock,
                                       .backend = &queues.reads.backend(),
                                       .hook = options.hook});
  if (!pool.ok())
    return std::move(pool).error().with_context("taking buffers for inputs of units on NVMe");
  spill->pool_ = *std::move(pool);
  spill->pieces_.resize(records.size());
  spill->buffers_ = std::vector<Buffer>(static_cast<std::size_t>(buffers));
  for (Buffer& buffer : spill->buffers_) {
    spill->leases_.push_back(spill->pool_->acquire());
    buffer.owner = spill.get();
    buffer.memory = spill->leases_.back().bytes().first(image_bytes(options.piece_bytes));
    buffer.io.set_callback(&InputSpill::on_done, &buffer);
  }
  swap::StateStore::Options store = options.store;
  store.chunk_bytes = chunk_bytes(options.piece_bytes);
  SLUICE_ASSIGN_OR_RETURN(spill->store_, swap::StateStore::create({queues.reads, queues.writes},
                                                                  store, std::move(records)));
  return spill;
}

InputSpill::~InputSpill() { static_cast<void>(drain()); }

Status InputSpill::remove() {
  static_cast<void>(drain());
  return store_->remove();
}

// ---- writing ------------------------------------------------------------------------------------

InputSpill::Buffer* InputSpill::free_buffer_locked() {
  const auto free = std::find_if(buffers_.begin(), buffers_.end(),
                                 [](const Buffer& it) { return it.use == Use::kFree; });
  return free == buffers_.end() ? nullptr : &*free;
}

void InputSpill::occupy_locked(Buffer& buffer, int index, Use use) {
  buffer.use = use;
  buffer.piece = index;
  piece(index).buffer = static_cast<int>(&buffer - buffers_.data());
}

void InputSpill::vacate_locked(Buffer& buffer) {
  piece(buffer.piece).buffer = kNone;
  buffer.piece = kNone;
  buffer.use = Use::kFree;
  changed_.notify_all();
}

// A piece taken in the last pass may still be in use.
bool InputSpill::may_begin_locked(int index) {
  if (piece(index).buffer == kNone) return free_buffer_locked() != nullptr;
  SLUICE_CHECK(buffer_of(index).use == Use::kTaken, "a piece is begun once a pass");
  return false;
}

Result<std::optional<std::span<std::byte>>> InputSpill::try_begin(int index) {
  const Lock lock(mutex_);
  if (!failure_.ok()) return failure_.error();
  SLUICE_CHECK(expected_.empty(), "all that was expected is taken before more is written");
  if (!may_begin_locked(index)) return std::optional<std::span<std::byte>>();
  Buffer* const buffer = free_buffer_locked();
  occupy_locked(*buffer, index, Use::kFilling);
  return std::optional(
      swap::RecordImage(store_->shape(static_cast<swap::RecordId>(index)), buffer->memory)
          .payload());
}

Result<std::span<std::byte>> InputSpill::begin(int index) {
  for (;;) {
    SLUICE_ASSIGN_OR_RETURN(const auto place, try_begin(index));
    if (place) return *place;
    Lock lock(mutex_);
    SLUICE_RETURN_IF_ERROR(wait(lock, [&] { return may_begin_locked(index); }));
  }
}

void InputSpill::write(int index) noexcept {
  Lock lock(mutex_);
  Buffer& buffer = buffer_of(index);
  SLUICE_CHECK(buffer.use == Use::kFilling, "a piece that was begun");
  if (!failure_.ok()) return vacate_locked(buffer);
  buffer.use = Use::kSealing;
  const std::uint64_t generation = ++piece(index).generation;
  const auto record = static_cast<swap::RecordId>(index);
  ++starting_;
  lock.unlock();
  swap::CallersThread alone;
  swap::RecordImage image(store_->shape(record), buffer.memory);
  Status sealed = swap::work_on_record(alone, image, {.check = {}, .seal = generation, .work = {}});
  SLUICE_CHECK(sealed.ok(), "sealing checks nothing");
  lock.lock();
  buffer.use = Use::kWriting;
  ++in_flight_;
  lock.unlock();
  store_->write(buffer.io, record, generation, buffer.memory);
  lock.lock();
  --starting_;
  changed_.notify_all();
}

void InputSpill::on_done(swap::RecordIo& io, void* context) noexcept {
  Buffer& buffer = *static_cast<Buffer*>(context);
  InputSpill& self = *buffer.owner;
  Lock lock(self.mutex_);
  const bool wrote = buffer.use == Use::kWriting;
  --self.in_flight_;
  if (!io.status().ok()) {
    self.fail_locked(io.status().error());
  } else {
    (wrote ? self.stats_.bytes_written : self.stats_.bytes_read) += buffer.memory.size();
  }
  if (!wrote) {
    buffer.use = Use::kRead;
  } else if (self.is_wanted_next_locked(buffer.piece)) {
    ++self.begun_;
    buffer.use = Use::kWritten;
  } else {
    self.vacate_locked(buffer);
  }
  self.changed_.notify_all();
  self.read_ahead(lock);
}

// ---- reading ------------------------------------------------------------------------------------

void InputSpill::expect(std::span<const int> pieces) {
  Lock lock(mutex_);
  SLUICE_CHECK(expected_.empty(), "all that was expected has been taken");
  expected_ = pieces;
  begun_ = 0;
  read_ahead(lock);
}

bool InputSpill::is_wanted_next_locked(int index) const {
  return begun_ < expected_.size() && expected_[begun_] == index;
}

// A piece that is still being written keeps its buffer if it is the next one expected; the pieces
// after it wait until then.
void InputSpill::read_ahead(Lock& lock) noexcept {
  while (failure_.ok() && begun_ < expected_.size()) {
    const int index = expected_[begun_];
    if (piece(index).buffer != kNone) return;
    Buffer* const buffer = free_buffer_locked();
    if (buffer == nullptr) return;
    occupy_locked(*buffer, index, Use::kReading);
    ++begun_;
    ++in_flight_;
    ++starting_;
    lock.unlock();
    store_->read(buffer->io, static_cast<swap::RecordId>(index), buffer->memory);
    lock.lock();
    --starting_;
    changed_.notify_all();
  }
}

bool InputSpill::is_here(int index) const {
  const Lock lock(mutex_);
  if (!failure_.ok()) return true;
  const int buffer = piece(index).buffer;
  if (buffer == kNone) return false;
  const Use use = buffers_[static_cast<std::size_t>(buffer)].use;
  return use == Use::kRead || use == Use::kWritten;
}

Result<std::span<const std::byte>> InputSpill::take(int index) {
  Lock lock(mutex_);
  SLUICE_CHECK(!expected_.empty() && expected_.front() == index, "pieces are taken as expected");
  SLUICE_RETURN_IF_ERROR(wait(lock, [&] {
    if (piece(index).buffer == kNone) return false;
    const Use use = buffer_of(index).use;
    return use == Use::kRead || use == Use::kWritten;
  }));
  Buffer& buffer = buffer_of(index);
  const bool was_read = std::exchange(buffer.use, Use::kTaken) == Use::kRead;
  const std::uint64_t generation = piece(index).generation;
  expected_ = expected_.subspan(1);
  --begun_;
  lock.unlock();
  const auto record = static_cast<swap::RecordId>(index);
  swap::RecordImage image(store_->shape(record), buffer.memory);
  if (was_read) {
    swap::CallersThread alone;
    Status intact =
        swap::work_on_record(alone, image, {.check = generation, .seal = {}, .work = {}});
    if (!intact.ok()) {
      Error error =
          std::move(intact).error().with_context("checking record " + store_->name(record));
      lock.lock();
      fail_locked(error);
      return error;
    }
  }
  return std::span<const std::byte>(image.payload());
}

void InputSpill::release(int index) noexcept {
  Lock lock(mutex_);
  Buffer& buffer = buffer_of(index);
  SLUICE_CHECK(buffer.use == Use::kTaken, "a piece that was taken");
  vacate_locked(buffer);
  read_ahead(lock);
}

// ---- waiting ------------------------------------------------------------------------------------

void InputSpill::fail_locked(Error error) {
  if (failure_.ok()) failure_ = std::move(error);
  changed_.notify_all();
}

// Waits for `done` or a failure. Also works with a backend in virtual time.
template <typename Done>
Status InputSpill::wait(Lock& lock, const Done& done) {
  while (failure_.ok() && !done()) {
    lock.unlock();
    const aio::PumpResult pumped = store_->pump();
    lock.lock();
    if (!failure_.ok() || done()) break;
    SLUICE_CHECK(pumped != aio::PumpResult::kIdle, "virtual time ran out of events: a deadlock");
    if (pumped == aio::PumpResult::kThreaded)
      changed_.wait(lock, [&] { return !failure_.ok() || done(); });
  }
  return failure_;
}

Status InputSpill::drain() {
  if (store_ == nullptr) return {};
  Lock lock(mutex_);
  const auto quiet = [this] { return in_flight_ == 0 && starting_ == 0; };
  while (!quiet()) {
    lock.unlock();
    const aio::PumpResult pumped = store_->pump();
    lock.lock();
    if (pumped == aio::PumpResult::kThreaded) changed_.wait(lock, quiet);
  }
  return failure_;
}

InputSpill::Stats InputSpill::stats() const {
  const Lock lock(mutex_);
  return stats_;
}

}  // namespace sluice::offload
