// SwapSchedule: which record is in which buffer, and which transfer starts next. It makes
// SwapPipeline's decisions, without its IO, threads and time.
//
// A record is in at most one buffer. Look-ahead goes through the expected records in order. Each
// record is promised the buffer that already holds it, or else a free one to be read into. A buffer
// that is still promised is kept when its record has been written (the next user gets it from
// there), and read again when its record was dropped.
//
// No deadlock: the promises cover the first records of the sequence, so the buffer of the next
// record will become ready, unless it is on loan. If no buffer is promised to it, none is promised
// to any record: all are on loan or on their way to the disk. With fewer loans than buffers, one of
// them will become free. A transfer can start whenever none is in flight.
//
// Memory:  fixed, except for the sequence.
// Threads: protected by the caller's lock.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "swap/store_layout.h"

namespace sluice::swap {

class SwapSchedule {
 public:
  enum class State : std::uint8_t {
    kFree,     // holds nothing
    kToRead,   // its read has not started
    kReading,  // in flight
    kReady,    // for the next user of its record
    kOnLoan,
    kToWrite,  // its write has not started
    kWriting,  // in flight
  };
  struct Options {
    int buffers = 0;
    std::size_t records = 0;  // in the store
    int burst_records = 0;    // 0: reads and writes do not take turns
  };
  struct Transfer {
    bool is_write;
    int buffer;
    RecordId record;
  };
  struct Given {
    int buffer;
    RecordId record;
    bool forwarded;  // still in the buffer from its write, not read
  };

  explicit SwapSchedule(const Options& options);

  void expect(std::span<const RecordId> records);
  std::size_t expected() const { return expected_.size(); }

  // The next transfer to start, in flight from now on; empty: none may start. Call it after each
  // change until it returns none.
  std::optional<Transfer> start_next();
  void ended(int buffer);

  // The state of the next record's buffer; kFree: no buffer is promised to it.
  State due_state() const;
  Given give_due();  // must be kReady
  void write(int buffer);
  void drop(int buffer);

  // No more transfers start; transfers in flight still end.
  void stop();

  State state(int buffer) const { return buffers_[at(buffer)].state; }
  int on_loan() const { return on_loan_; }
  int reading() const { return lanes_[kReads].in_flight; }
  int writing() const { return lanes_[kWrites].in_flight; }
  int unwritten() const { return writing() + lanes_[kWrites].waiting.size(); }

 private:
  static constexpr std::size_t kReads = 0;
  static constexpr std::size_t kWrites = 1;
  static constexpr int kNone = -1;

  // A FIFO of at most `capacity` buffers.
  class Line {
   public:
    explicit Line(int capacity) : ring_(static_cast<std::size_t>(capacity)) {}
    int size() const { return static_cast<int>(size_); }
    bool empty() const { return size_ == 0; }
    void push_back(int buffer) { ring_[(first_ + size_++) % ring_.size()] = buffer; }
    void push_front(int buffer);
    int pop_front();

   private:
    std::vector<int> ring_;
    std::size_t first_ = 0;
    std::size_t size_ = 0;
  };
  // A FIFO of any number of records. Allocates only when it holds more than ever before.
  class Sequence {
   public:
    std::size_t size() const { return size_; }
    bool empty() const { return size_ == 0; }
    RecordId operator[](std::size_t index) const { return ring_[(first_ + index) % ring_.size()]; }
    RecordId front() const { return ring_[first_]; }
    void push_back(RecordId record);
    void pop_front();

   private:
    std::vector<RecordId> ring_;
    std::size_t first_ = 0;
    std::size_t size_ = 0;
  };
  struct Lane {
    explicit Lane(int buffers) : waiting(buffers) {}
    Line waiting;
    int in_flight = 0;
  };
  struct Buffer {
    State state = State::kFree;
    bool forwarded = false;
    RecordId record = 0;
    std::size_t promises = 0;  // number of expected records that are promised this buffer
  };

  static std::size_t at(int buffer) { return static_cast<std::size_t>(buffer); }
  void look_ahead();
  void take_turns();
  Transfer start(std::size_t lane);
  void free(int buffer);

  const int burst_records_;
  Sequence expected_;
  std::size_t looked_at_ = 0;  // expected records, from the front, that are promised a buffer
  std::vector<Buffer> buffers_;
  std::vector<std::int16_t> holder_;  // by record: a buffer, or kNone
  Line free_;
  std::array<Lane, 2> lanes_;
  std::size_t turn_ = kReads;  // bursts: the lane that may start
  int started_ = 0;            // transfers in this turn
  int on_loan_ = 0;
  bool stopped_ = false;
};

}  // namespace sluice::swap
