#include "swap/swap_schedule.h"

#include <algorithm>

#include "aio/check.h"

namespace sluice::swap {

void SwapSchedule::Sequence::push_back(RecordId record) {
  if (size_ == ring_.size()) {
    std::rotate(ring_.begin(), ring_.begin() + static_cast<std::ptrdiff_t>(first_), ring_.end());
    first_ = 0;
    ring_.resize(std::max<std::size_t>(16, 2 * ring_.size()));
  }
  ring_[(first_ + size_++) % ring_.size()] = record;
}

void SwapSchedule::Sequence::pop_front() {
  first_ = (first_ + 1) % ring_.size();
  --size_;
}

void SwapSchedule::Line::push_front(int buffer) {
  first_ = (first_ + ring_.size() - 1) % ring_.size();
  ring_[first_] = buffer;
  ++size_;
}

int SwapSchedule::Line::pop_front() {
  const int buffer = ring_[first_];
  first_ = (first_ + 1) % ring_.size();
  --size_;
  return buffer;
}

SwapSchedule::SwapSchedule(const Options& options)
    : burst_records_(options.burst_records),
      buffers_(static_cast<std::size_t>(options.buffers)),
      holder_(options.records, kNone),
      free_(options.buffers),
      lanes_{Lane(options.buffers), Lane(options.buffers)} {
  for (int buffer = 0; buffer < options.buffers; ++buffer) free_.push_back(buffer);
}

void SwapSchedule::expect(std::span<const RecordId> records) {
  for (const RecordId record : records) {
    SLUICE_CHECK(record < holder_.size(), "a record of the store was expected");
    expected_.push_back(record);
  }
}

void SwapSchedule::look_ahead() {
  for (; looked_at_ < expected_.size(); ++looked_at_) {
    const RecordId record = expected_[looked_at_];
    int buffer = holder_[record];
    if (buffer == kNone) {
      if (free_.empty()) return;
      buffer = free_.pop_front();
      buffers_[at(buffer)] = {.state = State::kToRead, .record = record};
      holder_[record] = static_cast<std::int16_t>(buffer);
      lanes_[kReads].waiting.push_back(buffer);
    }
    ++buffers_[at(buffer)].promises;
  }
}

// A turn should end when it has had its records or has none left, and the other lane has some. It
// ends only when nothing is in flight; the drive is never left idle for it.
void SwapSchedule::take_turns() {
  const Lane& here = lanes_[turn_];
  const Lane& other = lanes_[1 - turn_];
  const bool had_enough = here.waiting.empty() || started_ >= burst_records_;
  if (here.in_flight > 0 || other.waiting.empty() || !had_enough) return;
  turn_ = 1 - turn_;
  started_ = 0;
}

std::optional<SwapSchedule::Transfer> SwapSchedule::start_next() {
  if (stopped_) return std::nullopt;
  look_ahead();
  if (burst_records_ == 0) {
    // Writes first: they free buffers.
    if (!lanes_[kWrites].waiting.empty()) return start(kWrites);
    if (!lanes_[kReads].waiting.empty()) return start(kReads);
    return std::nullopt;
  }
  take_turns();
  const bool others_turn = started_ >= burst_records_ && !lanes_[1 - turn_].waiting.empty();
  if (lanes_[turn_].waiting.empty() || others_turn) return std::nullopt;
  ++started_;
  return start(turn_);
}

SwapSchedule::Transfer SwapSchedule::start(std::size_t lane) {
  const int index = lanes_[lane].waiting.pop_front();
  Buffer& buffer = buffers_[at(index)];
  buffer.state = lane == kWrites ? State::kWriting : State::kReading;
  ++lanes_[lane].in_flight;
  return {.is_write = lane == kWrites, .buffer = index, .record = buffer.record};
}

void SwapSchedule::ended(int buffer) {
  Buffer& it = buffers_[at(buffer)];
  const bool wrote = it.state == State::kWriting;
  SLUICE_CHECK(wrote || it.state == State::kReading, "a transfer that ended was in flight");
  --lanes_[wrote ? kWrites : kReads].in_flight;
  if (it.promises == 0) {
    free(buffer);
    return;
  }
  it.state = State::kReady;
  it.forwarded = wrote;
}

SwapSchedule::State SwapSchedule::due_state() const {
  if (expected_.empty()) return State::kFree;
  const int buffer = holder_[expected_.front()];
  return buffer == kNone ? State::kFree : state(buffer);
}

SwapSchedule::Given SwapSchedule::give_due() {
  SLUICE_CHECK(due_state() == State::kReady, "only a record that is ready is given out");
  const RecordId record = expected_.front();
  const int buffer = holder_[record];
  Buffer& it = buffers_[at(buffer)];
  expected_.pop_front();
  --looked_at_;
  --it.promises;
  it.state = State::kOnLoan;
  ++on_loan_;
  return {.buffer = buffer, .record = record, .forwarded = it.forwarded};
}

void SwapSchedule::write(int buffer) {
  Buffer& it = buffers_[at(buffer)];
  SLUICE_CHECK(it.state == State::kOnLoan, "only a record on loan is written");
  --on_loan_;
  if (stopped_) {
    free(buffer);
    return;
  }
  it.state = State::kToWrite;
  lanes_[kWrites].waiting.push_back(buffer);
}

void SwapSchedule::drop(int buffer) {
  Buffer& it = buffers_[at(buffer)];
  SLUICE_CHECK(it.state == State::kOnLoan, "only a record on loan is dropped");
  --on_loan_;
  if (stopped_ || it.promises == 0) {
    free(buffer);
    return;
  }
  it.state = State::kToRead;
  lanes_[kReads].waiting.push_front(buffer);  // it was due before the others
}

void SwapSchedule::stop() {
  stopped_ = true;
  for (Lane& lane : lanes_) {
    while (!lane.waiting.empty()) free(lane.waiting.pop_front());
  }
}

void SwapSchedule::free(int buffer) {
  Buffer& it = buffers_[at(buffer)];
  holder_[it.record] = kNone;
  it = {};
  free_.push_back(buffer);
}

}  // namespace sluice::swap
