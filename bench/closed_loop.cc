#include "bench/closed_loop.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <utility>

#include "aio/check.h"
#include "aio/units.h"
#include "bench/random.h"

namespace sluice::bench {

int LatencyHistogram::bucket_of(std::uint64_t value) {
  if (value < (1U << kSubBits)) return static_cast<int>(value);
  // The top kSubBits + 1 bits select the bucket: the power of two, then 64 equal parts of it.
  const int exponent = std::bit_width(value) - 1 - kSubBits;
  return (exponent << kSubBits) + static_cast<int>(value >> exponent);
}

std::int64_t LatencyHistogram::upper_end_of(int bucket) {
  if (bucket < (2 << kSubBits)) return bucket;
  const int exponent = (bucket >> kSubBits) - 1;
  const auto mantissa =
      static_cast<std::uint64_t>(bucket & ((1 << kSubBits) - 1)) + (1 << kSubBits);
  // Unsigned: one past the end of the last bucket is 2^63.
  return static_cast<std::int64_t>(((mantissa + 1) << exponent) - 1);
}

void LatencyHistogram::record(std::int64_t nanoseconds) {
  const std::int64_t value = std::max<std::int64_t>(nanoseconds, 0);
  ++buckets_[static_cast<std::size_t>(bucket_of(static_cast<std::uint64_t>(value)))];
  ++count_;
  max_ns_ = std::max(max_ns_, value);
}

void LatencyHistogram::merge(const LatencyHistogram& other) {
  for (std::size_t i = 0; i < buckets_.size(); ++i) buckets_[i] += other.buckets_[i];
  count_ += other.count_;
  max_ns_ = std::max(max_ns_, other.max_ns_);
}

std::int64_t LatencyHistogram::percentile_ns(double percent) const {
  if (count_ == 0) return 0;
  // The product of a round percentage and a count may be slightly above a whole number; the rank
  // must not become one too high.
  constexpr double kRounding = 1.0 - 1e-12;
  const auto rank = static_cast<std::uint64_t>(
      std::max(1.0, std::ceil(static_cast<double>(count_) * percent / 100.0 * kRounding)));
  std::uint64_t seen = 0;
  for (std::size_t i = 0; i < buckets_.size(); ++i) {
    seen += buckets_[i];
    if (seen >= rank) return std::min(upper_end_of(static_cast<int>(i)), max_ns_);
  }
  return max_ns_;
}

ClosedLoop::ClosedLoop(AioSession& session, const LoopJob& job)
    : session_(session),
      job_(job),
      block_bytes_(session.options().block_bytes),
      // A single pass includes a shorter last block; repeated passes cover whole blocks only.
      block_count_(job.one_pass ? (job.range_bytes + block_bytes_ - 1) / block_bytes_
                                : job.range_bytes / block_bytes_),
      lanes_(static_cast<std::size_t>(session.options().threads)),
      slots_(new Slot[session.buffers().size()]),
      next_read_(job.first_block),
      next_write_(job.first_block) {
  SLUICE_CHECK(block_count_ > 0, "a loop needs at least one block");
  SLUICE_CHECK(!job.one_pass || job.mode == Mode::kRead || job.mode == Mode::kWrite,
               "a pass reads or writes");
  for (std::size_t i = 0; i < session.buffers().size(); ++i) {
    Slot& slot = slots_[i];
    slot.loop = this;
    slot.buffer = session.buffers()[i].bytes().first(block_bytes_);
    slot.lane = static_cast<int>(i % lanes_.size());
    slot.random = Random(mix64(job.random_seed) + i);
    slot.request.set_callback(&ClosedLoop::on_done, &slot);
    if (writes(job.mode) && !job.pattern_seed)
      fill_pattern(slot.buffer, job.random_seed, i * block_bytes_);
  }
}

ClosedLoop::~ClosedLoop() {
  stop();
  static_cast<void>(drain());
}

void ClosedLoop::start() {
  const std::size_t count = session_.buffers().size();
  {
    const std::lock_guard lock(mutex_);
    active_ = static_cast<int>(count);
  }
  for (std::size_t i = 0; i < count; ++i)
    if (!issue(slots_[i])) retire();
}

bool ClosedLoop::ended() const {
  const std::lock_guard lock(mutex_);
  return active_ == 0;
}

Status ClosedLoop::drain() {
  std::unique_lock lock(mutex_);
  ended_.wait(lock, [this] { return active_ == 0; });
  return first_error_;
}

LoopCounts ClosedLoop::counts() const {
  LoopCounts sum;
  for (const Lane& lane : lanes_) {
    const std::lock_guard lock(lane.mutex);
    sum.reads += lane.counts.reads;
    sum.writes += lane.counts.writes;
    sum.read_bytes += lane.counts.read_bytes;
    sum.written_bytes += lane.counts.written_bytes;
    sum.latency.merge(lane.counts.latency);
  }
  return sum;
}

std::uint64_t ClosedLoop::counted_bytes() const {
  std::uint64_t sum = 0;
  for (const Lane& lane : lanes_) {
    const std::lock_guard lock(lane.mutex);
    sum += lane.counts.read_bytes + lane.counts.written_bytes;
  }
  return sum;
}

std::uint64_t ClosedLoop::issued_blocks() const {
  const auto& next = writes(job_.mode) ? next_write_ : next_read_;
  const std::uint64_t position = next.load(std::memory_order_relaxed);
  return job_.one_pass ? std::min(position, block_count_) : position;
}

void ClosedLoop::on_done(aio::IoRequest& /*request*/, void* context) noexcept {
  Slot& slot = *static_cast<Slot*>(context);
  slot.loop->complete(slot);
}

void ClosedLoop::complete(Slot& slot) noexcept {
  const aio::IoRequest& request = slot.request;
  if (!request.status().ok()) [[unlikely]] {
    fail(session_.shown(request.status().error()));
    return retire();
  }
  const bool is_read = request.kind() == aio::IoKind::kRead;
  if (counting_.load(std::memory_order_relaxed)) {
    Lane& lane = lanes_[static_cast<std::size_t>(slot.lane)];
    const std::lock_guard lock(lane.mutex);
    LoopCounts& counts = lane.counts;
    ++(is_read ? counts.reads : counts.writes);
    (is_read ? counts.read_bytes : counts.written_bytes) += request.length_bytes();
    counts.latency.record(request.latency_ns());
  }
  if (is_read && job_.pattern_seed && !check(slot)) return retire();
  if (stopping_.load(std::memory_order_relaxed) || !issue(slot)) retire();
}

bool ClosedLoop::issue(Slot& slot) noexcept {
  bool is_read = !writes(job_.mode);
  std::uint64_t block = 0;
  if (job_.mode == Mode::kMixed) is_read = slot.random.coin();
  if (job_.mode == Mode::kRandRead) {
    block = slot.random.below(block_count_);
  } else {
    block = (is_read ? next_read_ : next_write_).fetch_add(1, std::memory_order_relaxed);
    if (job_.one_pass && block >= block_count_) return false;
    block %= block_count_;
  }
  const std::uint64_t offset = block * block_bytes_;
  const std::span<std::byte> data =
      slot.buffer.first(std::min(block_bytes_, job_.range_bytes - offset));
  if (is_read) {
    slot.request.prepare_read(session_.target(), offset, data);
  } else {
    if (job_.pattern_seed) fill_pattern(data, *job_.pattern_seed, offset);
    slot.request.prepare_write(session_.target(), offset, data);
  }
  session_.queue().submit(slot.request);
  return true;
}

bool ClosedLoop::check(const Slot& slot) noexcept {
  const std::uint64_t offset = slot.request.offset_bytes();
  const std::uint64_t length = slot.request.length_bytes();
  const auto mismatch =
      find_mismatch(slot.buffer.first(length), *job_.pattern_seed, offset, job_.range_bytes);
  if (mismatch) [[unlikely]] {
    fail(Error(ErrorCode::kCorrupt, "wrong data in " + describe(*mismatch, session_.shown_path())));
    return false;
  }
  checked_bytes_.fetch_add(length, std::memory_order_relaxed);
  return true;
}

void ClosedLoop::fail(Error error) noexcept {
  stop();
  const std::lock_guard lock(mutex_);
  if (first_error_.ok()) first_error_ = std::move(error);
  failed_ = true;
}

void ClosedLoop::retire() noexcept {
  const std::lock_guard lock(mutex_);
  if (--active_ == 0) ended_.notify_all();
}

namespace {

constexpr std::uint64_t kWordBytes = 8;

// The inverse of an odd number modulo 2^64: Newton's iteration doubles the correct bits from 3.
constexpr std::uint64_t inverse_of(std::uint64_t odd) {
  std::uint64_t inverse = odd;
  for (int i = 0; i < 5; ++i) inverse *= 2 - odd * inverse;
  return inverse;
}

constexpr std::uint64_t undo_shift(std::uint64_t x, int shift) {
  std::uint64_t result = x;
  for (int done = shift; done < 64; done += shift) result = x ^ (result >> shift);
  return result;
}

constexpr std::uint64_t unmix64(std::uint64_t x) {
  x = undo_shift(x, 31) * inverse_of(0x94d049bb133111eb);
  x = undo_shift(x, 27) * inverse_of(0xbf58476d1ce4e5b9);
  return undo_shift(x, 30);
}
static_assert(unmix64(mix64(0x0123456789abcdef)) == 0x0123456789abcdef);

// Mixed, so that the patterns of neighbouring seeds are not shifts of each other.
std::uint64_t base_of(std::uint64_t seed) { return mix64(seed ^ kGolden); }

std::optional<std::uint64_t> offset_of(std::uint64_t word, std::uint64_t base) {
  const std::uint64_t index = (unmix64(word) - base) * inverse_of(kGolden);
  if (index > UINT64_MAX / kWordBytes) return std::nullopt;
  return index * kWordBytes;
}

}  // namespace

void fill_pattern(std::span<std::byte> data, std::uint64_t seed, std::uint64_t offset_bytes) {
  SLUICE_CHECK(data.size() % kWordBytes == 0 && offset_bytes % kWordBytes == 0,
               "the pattern consists of whole words");
  std::uint64_t counter = base_of(seed) + offset_bytes / kWordBytes * kGolden;
  for (std::size_t i = 0; i < data.size(); i += kWordBytes, counter += kGolden) {
    const std::uint64_t word = mix64(counter);
    std::memcpy(data.data() + i, &word, kWordBytes);
  }
}

std::optional<PatternMismatch> find_mismatch(std::span<const std::byte> data, std::uint64_t seed,
                                             std::uint64_t offset_bytes, std::uint64_t file_bytes) {
  SLUICE_CHECK(data.size() % kWordBytes == 0 && offset_bytes % kWordBytes == 0,
               "the pattern consists of whole words");
  const std::uint64_t base = base_of(seed);
  const auto word_at = [&](std::size_t i) {
    std::uint64_t word = 0;
    std::memcpy(&word, data.data() + i, kWordBytes);
    return word;
  };
  const auto expected_at = [&](std::size_t i) {
    return mix64(base + (offset_bytes + i) / kWordBytes * kGolden);
  };
  // Compares a stretch at a time without branches, and examines single words only in a stretch that
  // differs.
  constexpr std::size_t kStretchBytes = 64 * kWordBytes;
  for (std::size_t begin = 0; begin < data.size(); begin += kStretchBytes) {
    const std::size_t end = std::min(begin + kStretchBytes, data.size());
    std::uint64_t difference = 0;
    std::uint64_t counter = base + (offset_bytes + begin) / kWordBytes * kGolden;
    for (std::size_t i = begin; i < end; i += kWordBytes, counter += kGolden)
      difference |= word_at(i) ^ mix64(counter);
    if (difference == 0) [[likely]]
      continue;

    std::size_t i = begin;
    while (word_at(i) == expected_at(i)) i += kWordBytes;
    const std::uint64_t expected = expected_at(i);
    std::array<std::uint8_t, kWordBytes> expected_bytes{};
    std::memcpy(expected_bytes.data(), &expected, kWordBytes);
    std::size_t at = 0;
    while (std::to_integer<std::uint8_t>(data[i + at]) == expected_bytes[at]) ++at;
    PatternMismatch mismatch{.offset_bytes = offset_bytes + i + at,
                             .expected = expected_bytes[at],
                             .got = std::to_integer<std::uint8_t>(data[i + at]),
                             .belongs_to_bytes = offset_of(word_at(i), base)};
    if (mismatch.belongs_to_bytes.value_or(file_bytes) >= file_bytes)
      mismatch.belongs_to_bytes.reset();
    return mismatch;
  }
  return std::nullopt;
}

std::string describe(const PatternMismatch& mismatch, const std::string& path) {
  char bytes[64];
  std::snprintf(bytes, sizeof bytes, "expected byte 0x%02x, got 0x%02x", mismatch.expected,
                mismatch.got);
  std::string text = path + " at offset " + std::to_string(mismatch.offset_bytes) + ": " + bytes;
  if (mismatch.belongs_to_bytes)
    text += " (the data of offset " + std::to_string(*mismatch.belongs_to_bytes) + ")";
  return text;
}

}  // namespace sluice::bench
