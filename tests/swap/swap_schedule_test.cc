// Random users of a schedule, checked against its promises. No IO: transfers end when the test says
// so, in any order.
#include "swap/swap_schedule.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <random>
#include <vector>

namespace sluice::swap {
namespace {

using State = SwapSchedule::State;

class RandomUser {
 public:
  RandomUser(std::uint64_t seed, int burst_records)
      : random_(seed),
        burst_records_(burst_records),
        buffers_(2 + draw(5)),
        records_(1 + draw(8)),
        schedule_({.buffers = buffers_,
                   .records = static_cast<std::size_t>(records_),
                   .burst_records = burst_records}) {}

  void run(int events) {
    for (int i = 0; i < events && !testing::Test::HasFailure(); ++i) {
      act(draw(10));
      start_all();
    }
    finish();
  }

 private:
  int draw(int below) { return static_cast<int>(random_() % static_cast<unsigned>(below)); }

  void act(int what) {
    if (what < 2) {
      for (int count = 1 + draw(4); count > 0; --count) {
        const auto record = static_cast<RecordId>(draw(records_));
        schedule_.expect({&record, 1});
        sequence_.push_back(record);
      }
    } else if (what < 5) {
      take();
    } else if (what < 7 && !loans_.empty()) {
      put_back(static_cast<std::size_t>(draw(static_cast<int>(loans_.size()))), draw(3) > 0);
    } else if (!in_flight_.empty()) {
      end(static_cast<std::size_t>(draw(static_cast<int>(in_flight_.size()))));
    }
  }
  bool take() {
    if (schedule_.due_state() != State::kReady || schedule_.on_loan() == buffers_) return false;
    const auto given = schedule_.give_due();
    EXPECT_EQ(given.record, sequence_.front());
    sequence_.pop_front();
    loans_.push_back(given);
    return true;
  }
  void put_back(std::size_t index, bool write) {
    const auto loan = loans_[index];
    loans_.erase(loans_.begin() + static_cast<std::ptrdiff_t>(index));
    write ? schedule_.write(loan.buffer) : schedule_.drop(loan.buffer);
  }
  void end(std::size_t index) {
    const auto transfer = in_flight_[index];
    in_flight_.erase(in_flight_.begin() + static_cast<std::ptrdiff_t>(index));
    schedule_.ended(transfer.buffer);
  }
  void start_all() {
    while (const auto started = schedule_.start_next()) {
      for (const auto& other : in_flight_) {
        EXPECT_NE(other.record, started->record) << "two transfers of one record";
        EXPECT_NE(other.buffer, started->buffer) << "two transfers of one buffer";
        if (burst_records_ > 0) {
          EXPECT_EQ(other.is_write, started->is_write) << "a burst of both";
        }
      }
      for (const auto& loan : loans_) {
        EXPECT_NE(loan.record, started->record) << "a transfer of a record on loan";
      }
      in_flight_.push_back(*started);
    }
    int waiting = 0;
    for (int i = 0; i < buffers_; ++i) {
      const State state = schedule_.state(i);
      waiting += state == State::kToRead || state == State::kToWrite ? 1 : 0;
    }
    EXPECT_TRUE(waiting == 0 || !in_flight_.empty()) << "idle while there is work";
  }
  // Returns every loan; then every expected record is lent.
  void finish() {
    while (!testing::Test::HasFailure()) {
      while (!loans_.empty()) put_back(0, true);
      start_all();
      if (sequence_.empty() && in_flight_.empty()) break;
      if (take()) continue;
      ASSERT_FALSE(in_flight_.empty()) << "a deadlock: " << sequence_.size() << " expected";
      end(static_cast<std::size_t>(draw(static_cast<int>(in_flight_.size()))));
    }
    EXPECT_EQ(schedule_.expected(), 0U);
    for (int i = 0; i < buffers_; ++i) EXPECT_EQ(schedule_.state(i), State::kFree);
  }

  std::mt19937_64 random_;
  const int burst_records_;
  const int buffers_;
  const int records_;
  SwapSchedule schedule_;
  std::deque<RecordId> sequence_;
  std::vector<SwapSchedule::Given> loans_;
  std::vector<SwapSchedule::Transfer> in_flight_;
};

TEST(SwapSchedule, NeverBreaksItsRulesNorDeadlocksWhateverTheOrderOfEvents) {
  for (std::uint64_t seed = 1; seed <= 20'000 && !HasFailure(); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    RandomUser(seed, static_cast<int>(seed % 4)).run(150);
  }
}

// With both reads and writes pending, the direction changes after the quota, not before and not
// much later.
TEST(SwapSchedule, ChangesTheDirectionWhenABurstHadItsRecords) {
  SwapSchedule schedule({.buffers = 6, .records = 100, .burst_records = 2});
  std::vector<RecordId> all(100);
  for (RecordId id = 0; id < 100; ++id) all[id] = id;
  schedule.expect(all);
  std::deque<SwapSchedule::Transfer> in_flight;
  std::vector<int> bursts;
  bool writing = true;
  while (schedule.expected() > 0) {
    while (const auto started = schedule.start_next()) {
      if (bursts.empty() || started->is_write != writing) bursts.push_back(0);
      writing = started->is_write;
      ++bursts.back();
      in_flight.push_back(*started);
    }
    ASSERT_FALSE(in_flight.empty());
    schedule.ended(in_flight.front().buffer);
    in_flight.pop_front();
    while (schedule.due_state() == State::kReady) schedule.write(schedule.give_due().buffer);
  }
  ASSERT_GT(bursts.size(), 20U);
  EXPECT_EQ(bursts.front(), 6);  // no other work
  for (std::size_t i = 1; i + 2 < bursts.size(); ++i) {
    EXPECT_GE(bursts[i], 2) << "burst " << i;
    EXPECT_LE(bursts[i], 6) << "burst " << i;
  }
}

TEST(SwapSchedule, HandsABufferOnAfterItsWriteAndReadsOthersMeanwhile) {
  SwapSchedule schedule({.buffers = 2, .records = 3});
  const std::vector<RecordId> sequence = {0, 0, 1};
  schedule.expect(sequence);
  const auto first = schedule.start_next();
  ASSERT_TRUE(first && first->record == 0 && !first->is_write);
  const auto ahead = schedule.start_next();  // beyond the second use of 0
  ASSERT_TRUE(ahead && ahead->record == 1);
  schedule.ended(first->buffer);
  EXPECT_FALSE(schedule.give_due().forwarded);
  EXPECT_EQ(schedule.due_state(), State::kOnLoan);
  schedule.write(first->buffer);
  const auto write = schedule.start_next();
  ASSERT_TRUE(write && write->is_write);
  EXPECT_EQ(schedule.due_state(), State::kWriting);
  schedule.ended(write->buffer);
  EXPECT_FALSE(schedule.start_next());
  EXPECT_TRUE(schedule.give_due().forwarded);
}

TEST(SwapSchedule, ReadsAgainWhatWasDropped) {
  SwapSchedule schedule({.buffers = 2, .records = 1});
  const std::vector<RecordId> sequence = {0, 0};
  schedule.expect(sequence);
  const int buffer = schedule.start_next()->buffer;
  schedule.ended(buffer);
  schedule.give_due();
  schedule.drop(buffer);
  const auto again = schedule.start_next();
  ASSERT_TRUE(again && !again->is_write);
  schedule.ended(again->buffer);
  EXPECT_FALSE(schedule.give_due().forwarded);
}

}  // namespace
}  // namespace sluice::swap
