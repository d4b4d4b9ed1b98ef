#include "engine/probe/drive_probe.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <mutex>
#include <numeric>
#include <optional>
#include <span>
#include <thread>
#include <utility>
#include <vector>

#include "aio/check.h"
#include "aio/io_queue.h"
#include "aio/io_request.h"
#include "aio/io_target.h"
#include "aio/io_watchdog.h"
#include "aio/pinned_pool.h"
#include "aio/split_mix.h"
#include "aio/striped_file.h"

namespace sluice::engine {

// DriveLoad: reads or writes of one block each, consecutive over a range of a target and repeated,
// with the queue always full.
//
// Memory:  the buffers are the caller's, one per request. With fewer than twice the queue's depth
//          the queue sometimes runs dry; with fewer than the depth it is never full.
// Threads: one owner; completions arrive on the backend's threads. On a backend in virtual time the
//          owner pumps (wait_until() and drain() do).
// Errors:  the first failure ends the load; drain() returns it.
class DriveLoad {
 public:
  struct Options {
    aio::IoKind kind = aio::IoKind::kRead;
    std::uint64_t first_byte = 0;  // of the range; offset and length are multiples of the block
    std::uint64_t range_bytes = 0;
    bool once = false;  // one pass over the range, not repeated
  };
  // Blocks have the queue's size; each buffer has room for one.
  DriveLoad(aio::IoQueue& queue, const aio::IoTarget& target,
            std::span<const std::span<std::byte>> buffers, const Options& options);
  ~DriveLoad();
  DriveLoad(const DriveLoad&) = delete;
  DriveLoad& operator=(const DriveLoad&) = delete;

  void start();
  void stop() { stopping_ = true; }  // starts no further request
  bool ended() const;
  Status drain();  // waits until no request is in flight

  std::uint64_t done_bytes() const { return done_bytes_; }
  // The number of blocks submitted in one pass over the range, from its beginning.
  std::uint64_t issued_blocks() const;

 private:
  struct Slot {
    DriveLoad* load = nullptr;
    std::span<std::byte> buffer;
    aio::IoRequest request;
  };

  static void on_done(aio::IoRequest& request, void* context) noexcept;
  bool issue(Slot& slot) noexcept;
  void retire() noexcept;

  aio::IoQueue& queue_;
  const aio::IoTarget& target_;
  const Options options_;
  const std::uint64_t block_count_;
  std::vector<Slot> slots_;
  std::atomic<std::uint64_t> next_block_{0};
  std::atomic<std::uint64_t> done_bytes_{0};
  std::atomic<bool> stopping_{false};

  mutable std::mutex mutex_;  // guards everything below
  std::condition_variable ended_;
  int active_ = 0;
  Status first_error_;
};

// Twice the number in flight, so that the queue never waits for this loop.
constexpr std::size_t kRequestsPerBlock = 2;

DriveLoad::DriveLoad(aio::IoQueue& queue, const aio::IoTarget& target,
                     std::span<const std::span<std::byte>> buffers, const Options& options)
    : queue_(queue),
      target_(target),
      options_(options),
      block_count_(options.range_bytes / queue.options().block_bytes),
      slots_(std::min(buffers.size(),
                      kRequestsPerBlock * static_cast<std::size_t>(queue.options().queue_depth))) {
  SLUICE_CHECK(block_count_ > 0 && !buffers.empty(), "a load needs a block and a buffer");
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    slots_[i].load = this;
    slots_[i].buffer = buffers[i].first(queue.options().block_bytes);
    slots_[i].request.set_callback(&DriveLoad::on_done, &slots_[i]);
  }
}

DriveLoad::~DriveLoad() {
  stop();
  static_cast<void>(drain());
}

void DriveLoad::start() {
  {
    const std::lock_guard lock(mutex_);
    active_ = static_cast<int>(slots_.size());
  }
  for (Slot& slot : slots_)
    if (!issue(slot)) retire();
}

bool DriveLoad::ended() const {
  const std::lock_guard lock(mutex_);
  return active_ == 0;
}

Status DriveLoad::drain() {
  // In virtual time requests complete only inside pump().
  while (!ended() && queue_.backend().pump() == aio::PumpResult::kProgressed) continue;
  std::unique_lock lock(mutex_);
  ended_.wait(lock, [this] { return active_ == 0; });
  return first_error_;
}

std::uint64_t DriveLoad::issued_blocks() const {
  return std::min(next_block_.load(), block_count_);
}

void DriveLoad::on_done(aio::IoRequest& request, void* context) noexcept {
  Slot& slot = *static_cast<Slot*>(context);
  DriveLoad& load = *slot.load;
  if (request.status().ok()) {
    load.done_bytes_ += request.length_bytes();
    if (!load.stopping_ && load.issue(slot)) return;
  } else {
    load.stop();
    const std::lock_guard lock(load.mutex_);
    if (load.first_error_.ok()) load.first_error_ = request.status();
  }
  load.retire();
}

bool DriveLoad::issue(Slot& slot) noexcept {
  const std::uint64_t turn = next_block_++;
  if (options_.once && turn >= block_count_) return false;
  const std::uint64_t at = options_.first_byte + turn % block_count_ * queue_.options().block_bytes;
  if (options_.kind == aio::IoKind::kRead)
    slot.request.prepare_read(target_, at, slot.buffer);
  else
    slot.request.prepare_write(target_, at, slot.buffer);
  queue_.submit(slot.request);
  return true;
}

void DriveLoad::retire() noexcept {
  const std::lock_guard lock(mutex_);
  if (--active_ == 0) ended_.notify_all();
}

// Sleeps, or advances virtual time, until the deadline on the backend's clock or the end of `load`.
void wait_until(aio::IoBackend& backend, std::int64_t deadline_ns, const DriveLoad& load) {
  constexpr std::int64_t kNapNs = 5'000'000;
  for (;;) {
    const std::int64_t left_ns = deadline_ns - backend.clock().now_ns();
    if (left_ns <= 0 || load.ended()) return;
    if (backend.pump() == aio::PumpResult::kThreaded)
      std::this_thread::sleep_for(std::chrono::nanoseconds(std::min(left_ns, kNapNs)));
  }
}

namespace {

constexpr std::uint64_t kLeastFileBytes = 16 * kMiB;  // on the path with the largest part
constexpr std::uint64_t kLeastBlocks = 4;
constexpr std::uint64_t kFreePart = 4;  // a quarter of the free space
constexpr double kRampShare = 0.2;      // fraction of a measurement's time that is not counted
constexpr int kParts = 8;               // of the counted time, compared with each other

// The size of the scratch file in whole blocks. Its part in each folder is at most a quarter of the
// free space there.
Result<std::uint64_t> file_bytes(aio::FileSystem& files, const DriveProbeOptions& options) {
  const std::size_t paths = options.folders.size();
  const std::vector<int> weights =
      options.weights.empty() ? std::vector<int>(paths, 1) : options.weights;
  SLUICE_CHECK(weights.size() == paths, "each folder has a weight");
  const auto all = static_cast<std::uint64_t>(std::accumulate(weights.begin(), weights.end(), 0));
  const auto heaviest =
      static_cast<std::uint64_t>(*std::max_element(weights.begin(), weights.end()));
  const std::uint64_t least = std::max(kLeastFileBytes * all / heaviest,
                                       align_up(kLeastBlocks * options.block_bytes, paths));
  std::uint64_t size_bytes = std::max(options.most_file_bytes, least);
  for (std::size_t i = 0; i < paths; ++i) {
    const std::string& folder = options.folders[i];
    SLUICE_ASSIGN_OR_RETURN(const std::uint64_t free, files.free_bytes(folder));
    const auto weight = static_cast<std::uint64_t>(weights[i]);
    size_bytes = std::min(size_bytes, free / kFreePart * all / weight);
    if (size_bytes < least) {
      return Error(
          ErrorCode::kNoSpace,
          "measuring the drive of " + folder + " writes a scratch file of " +
              format_bytes(least * weight / all) +
              " into at most a quarter of the free space, but only " + format_bytes(free) +
              " are free: free some space there, or use another folder in budget.nvme_paths");
    }
  }
  return align_down(size_bytes, options.block_bytes);
}

class DriveProbe {
 public:
  static Result<std::unique_ptr<DriveProbe>> create(aio::IoBackend& backend,
                                                    const DriveProbeOptions& options);

  // Writes until the file is full or the time is over. Only the written part is measured.
  Status fill() {
    DriveLoad load(*writes_, *file_, buffers_,
                   {.kind = aio::IoKind::kWrite, .range_bytes = file_->size_bytes(), .once = true});
    load.start();
    const std::int64_t begin_ns = backend_.clock().now_ns();
    wait_until(backend_, begin_ns + in_ns(options_.fill_seconds), load);
    // A few blocks are measured even on a very slow or remote drive.
    while (!load.ended() && load.done_bytes() < kLeastBlocks * options_.block_bytes)
      wait_until(backend_, backend_.clock().now_ns() + in_ns(options_.fill_seconds), load);
    load.stop();
    SLUICE_RETURN_IF_ERROR(load.drain());
    written_blocks_ = load.issued_blocks();
    return {};
  }

  Result<double> alone(aio::IoKind kind) {
    SLUICE_ASSIGN_OR_RETURN(
        const Rates rates,
        measure(kind == aio::IoKind::kRead ? range(0, written_blocks_) : std::nullopt,
                kind == aio::IoKind::kWrite ? range(0, written_blocks_) : std::nullopt));
    return kind == aio::IoKind::kRead ? rates.read : rates.write;
  }

  struct Rates {
    double read = 0;
    double write = 0;
  };
  // Reads and writes use different halves, so that no block is read while it is written.
  Result<Rates> together() {
    const std::uint64_t half = written_blocks_ / 2;
    return measure(range(0, half), range(half, written_blocks_ - half));
  }

 private:
  struct Range {
    std::uint64_t first_byte = 0;
    std::uint64_t bytes = 0;
  };

  DriveProbe(aio::IoBackend& backend, const DriveProbeOptions& options)
      : backend_(backend), options_(options) {}

  static std::int64_t in_ns(double seconds) { return static_cast<std::int64_t>(1e9 * seconds); }

  std::optional<Range> range(std::uint64_t first_block, std::uint64_t blocks) const {
    return Range{.first_byte = first_block * options_.block_bytes,
                 .bytes = blocks * options_.block_bytes};
  }

  Result<Rates> measure(std::optional<Range> reads, std::optional<Range> writes) {
    std::optional<DriveLoad> reading;
    std::optional<DriveLoad> writing;
    const std::span<const std::span<std::byte>> all = buffers_;
    if (reads) {
      reading.emplace(*reads_, *file_, writes ? all.first(all.size() / 2) : all,
                      DriveLoad::Options{.kind = aio::IoKind::kRead,
                                         .first_byte = reads->first_byte,
                                         .range_bytes = reads->bytes});
    }
    if (writes) {
      writing.emplace(*writes_, *file_, reads ? all.last(all.size() / 2) : all,
                      DriveLoad::Options{.kind = aio::IoKind::kWrite,
                                         .first_byte = writes->first_byte,
                                         .range_bytes = writes->bytes});
    }
    if (reading) reading->start();
    if (writing) writing->start();
    return count(reading ? &*reading : nullptr, writing ? &*writing : nullptr);
  }

  Result<Rates> count(DriveLoad* reading, DriveLoad* writing) {
    SLUICE_CHECK(reading != nullptr || writing != nullptr, "something is measured");
    const DriveLoad& either = reading != nullptr ? *reading : *writing;
    const auto bytes = [](const DriveLoad* load) {
      return load == nullptr ? 0.0 : static_cast<double>(load->done_bytes());
    };
    const Clock& clock = backend_.clock();
    wait_until(backend_, clock.now_ns() + in_ns(kRampShare * options_.seconds), either);
    const std::int64_t begin_ns = clock.now_ns();
    const Rates before{.read = bytes(reading), .write = bytes(writing)};
    const double counted_seconds = (1 - kRampShare) * options_.seconds;
    std::vector<double> parts;  // seconds per byte in each part
    double last_bytes = before.read + before.write;
    std::int64_t last_ns = begin_ns;
    for (int part = 1; part <= kParts; ++part) {
      wait_until(backend_, begin_ns + in_ns(counted_seconds * part / kParts), either);
      const double now_bytes = bytes(reading) + bytes(writing);
      const std::int64_t now_ns = clock.now_ns();
      if (now_bytes <= last_bytes) continue;
      parts.push_back(static_cast<double>(now_ns - last_ns) / (now_bytes - last_bytes));
      last_bytes = now_bytes;
      last_ns = now_ns;
    }
    if (options_.spread != nullptr) options_.spread->add(std::move(parts));
    const Rates after{.read = bytes(reading), .write = bytes(writing)};
    const double seconds = 1e-9 * static_cast<double>(clock.now_ns() - begin_ns);
    for (DriveLoad* load : {reading, writing})
      if (load != nullptr) load->stop();
    for (DriveLoad* load : {reading, writing})
      if (load != nullptr) SLUICE_RETURN_IF_ERROR(load->drain());
    return Rates{.read = (after.read - before.read) / seconds,
                 .write = (after.write - before.write) / seconds};
  }

  // Ordered by dependency; destroyed in reverse.
  aio::IoBackend& backend_;
  const DriveProbeOptions options_;
  std::unique_ptr<aio::IoQueue> reads_;
  std::unique_ptr<aio::IoQueue> writes_;
  std::optional<aio::IoWatchdog> watchdog_;
  std::unique_ptr<aio::PinnedPool> pool_;
  std::vector<aio::PinnedPool::Lease> leases_;
  std::vector<std::span<std::byte>> buffers_;
  std::unique_ptr<aio::StripedFile> file_;
  std::uint64_t written_blocks_ = 0;
};

Result<std::unique_ptr<DriveProbe>> DriveProbe::create(aio::IoBackend& backend,
                                                       const DriveProbeOptions& options) {
  std::unique_ptr<DriveProbe> probe(new DriveProbe(backend, options));
  SLUICE_ASSIGN_OR_RETURN(const std::uint64_t size_bytes, file_bytes(backend.files(), options));
  const aio::IoQueue::Options queue{.block_bytes = options.block_bytes,
                                    .queue_depth = options.queue_depth};
  SLUICE_ASSIGN_OR_RETURN(probe->reads_, aio::IoQueue::create(backend, queue));
  SLUICE_ASSIGN_OR_RETURN(probe->writes_, aio::IoQueue::create(backend, queue));
  probe->watchdog_.emplace(
      std::vector<const aio::IoQueue*>{probe->reads_.get(), probe->writes_.get()},
      aio::IoWatchdog::Options{.limit_ns = static_cast<std::int64_t>(options.io_watchdog_s * 1e9)});
  const std::uint64_t most = std::max<std::uint64_t>(kMostBufferBytes / options.block_bytes, 2);
  aio::PinnedPool::Options pool{.buffer_bytes = options.block_bytes,
                                .capacity = static_cast<int>(std::min<std::uint64_t>(
                                    most, 4 * static_cast<std::uint64_t>(options.queue_depth))),
                                .backend = &backend,
                                .hook = {}};
  SLUICE_ASSIGN_OR_RETURN(probe->pool_, aio::PinnedPool::create(pool));
  probe->leases_.resize(static_cast<std::size_t>(probe->pool_->capacity()));
  probe->pool_->acquire_all(probe->leases_);
  aio::SplitMix noise(1);  // some drives and file systems store zeros cheaply
  for (const aio::PinnedPool::Lease& lease : probe->leases_) {
    const std::span<std::byte> bytes = lease.bytes();
    for (std::size_t at = 0; at + sizeof(std::uint64_t) <= bytes.size();
         at += sizeof(std::uint64_t)) {
      const std::uint64_t word = noise.next();
      std::memcpy(bytes.data() + at, &word, sizeof word);
    }
    probe->buffers_.push_back(bytes);
  }
  SLUICE_ASSIGN_OR_RETURN(
      probe->file_,
      aio::StripedFile::open(*probe->writes_, options.folders,
                             {.stripe_bytes = options.stripe_bytes,
                              .weights = options.weights,
                              .file = {.open = {.access = aio::OpenOptions::Access::kReadWrite,
                                                .create = aio::OpenOptions::Create::kAnonymous},
                                       .size_bytes = size_bytes}}));
  return probe;
}

}  // namespace

Result<offload::DuplexRates> probe_drives(aio::IoBackend& backend, const DriveProbeOptions& options,
                                          const std::function<void(double)>& on_progress) {
  const auto tell = [&](double fraction) {
    if (on_progress) on_progress(fraction);
  };
  tell(0);
  SLUICE_ASSIGN_OR_RETURN(const auto probe, DriveProbe::create(backend, options));
  SLUICE_RETURN_IF_ERROR(probe->fill());
  tell(0.25);
  offload::DuplexRates rates;
  SLUICE_ASSIGN_OR_RETURN(rates.out_bytes_per_s, probe->alone(aio::IoKind::kWrite));
  tell(0.5);
  SLUICE_ASSIGN_OR_RETURN(rates.in_bytes_per_s, probe->alone(aio::IoKind::kRead));
  tell(0.75);
  SLUICE_ASSIGN_OR_RETURN(const auto both, probe->together());
  rates.in_both_bytes_per_s = both.read;
  rates.out_both_bytes_per_s = both.write;
  tell(1);
  return rates;
}

}  // namespace sluice::engine
