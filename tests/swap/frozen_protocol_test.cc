// The protocol of a store with two places, as a model that is explored in full. It has every order
// of writes, of naming a generation and of giving it up. Crashes come at any point, with any of the
// writes that were not durable, and a drive loses a write. RecordPlaces is the real one.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "swap/frozen_store.h"

namespace sluice::swap {
namespace {

constexpr std::size_t kRecords = 2;

// `write`: which write of the whole history it came from; 0: none, or a torn one.
struct Content {
  std::uint64_t generation = 0;
  int write = 0;

  friend bool operator==(const Content&, const Content&) = default;
};

// What a manifest names, and what must be there.
struct Named {
  std::array<FrozenRecord, kRecords> records;
  std::array<Content, kRecords> contents;
};

// The bugs that the model must be able to find.
struct Variant {
  bool overwrites_frozen = false;   // A store with one place does that.
  bool keeps_early = false;         // The old generation may go before the new manifest is durable.
  bool shares_generations = false;  // A process that continues counts on from the frozen one.
};

class Model {
 public:
  explicit Model(const Variant& variant) : variant_(variant) {}

  // False: a manifest on the disk names what is not there.
  bool explore(int steps) {
    if (!is_sound()) return false;
    ++states_;
    if (steps == 0) return true;
    bool sound = true;
    const auto branch = [&](auto&& change) {
      if (!sound) return;
      Model next = *this;
      change(next);
      sound = next.explore(steps - 1);
      states_ = next.states_;
    };
    for (RecordId id = 0; id < kRecords && may_write(); ++id) {
      branch([&](Model& m) { m.write(id, /*is_lost=*/false); });
      if (!has_lost_) branch([&](Model& m) { m.write(id, /*is_lost=*/true); });
    }
    if (!candidate_ && is_written()) branch([](Model& m) { m.freeze(); });
    if (candidate_ && !is_begun_) branch([](Model& m) { m.drop(); });
    if (candidate_ && !is_begun_) branch([](Model& m) { m.is_begun_ = true; });
    if (is_begun_) branch([](Model& m) { m.finish(); });
    if (crashes_ < 2) crash(branch);
    return sound;
  }
  std::int64_t states() const { return states_; }

 private:
  bool may_write() const { return places_.may_write() || variant_.keeps_early; }
  bool is_written() const { return generations_[0] > 0 && generations_[1] > 0; }

  void write(RecordId id, bool is_lost) {
    const int place = variant_.overwrites_frozen ? places_.newest(id) : places_.write(id);
    newest_[id] = {.generation = generations_[id] = next_generation(id), .write = ++writes_};
    if (is_lost) {
      has_lost_ = true;
      return;
    }
    pending_[id][static_cast<std::size_t>(place)].push_back(newest_[id]);
  }
  std::uint64_t next_generation(RecordId id) const {
    return std::max(generations_[id] + 1, first_generation_);
  }

  void freeze() {
    for (RecordId id = 0; id < kRecords; ++id)
      for (std::size_t place = 0; place < 2; ++place) {
        if (!pending_[id][place].empty()) durable_[id][place] = pending_[id][place].back();
        pending_[id][place].clear();
      }
    Named named;
    for (RecordId id = 0; id < kRecords; ++id) {
      named.records[id] = {.generation = generations_[id], .place = places_.newest(id)};
      named.contents[id] = newest_[id];
    }
    candidate_ = named;
    places_.freeze();
    if (variant_.keeps_early) places_.keep();
  }
  void drop() {
    candidate_.reset();
    if (!variant_.keeps_early) places_.drop();
  }
  // The manifest is durable, and then the older one goes.
  void finish() {
    named_ = candidate_;
    candidate_.reset();
    is_begun_ = false;
    if (!variant_.keeps_early) places_.keep();
  }

  // Each place with writes that are not durable keeps what it had, has any of them, or is torn.
  template <typename Branch>
  void crash(const Branch& branch) {
    std::vector<Model> after = {*this};
    for (RecordId id = 0; id < kRecords; ++id)
      for (std::size_t place = 0; place < 2; ++place) {
        if (pending_[id][place].empty()) continue;
        std::vector<Content> outcomes = pending_[id][place];
        outcomes.push_back(durable_[id][place]);
        outcomes.push_back({});
        std::vector<Model> more;
        for (const Model& model : after)
          for (const Content& outcome : outcomes) {
            more.push_back(model);
            more.back().durable_[id][place] = outcome;
          }
        after = std::move(more);
      }
    for (const Model& model : after) {
      if (named_)
        branch([&](Model& m) {
          m = model;
          m.open(*named_);
        });
      if (is_begun_)
        branch([&](Model& m) {
          m = model;
          m.open(*candidate_);
        });
    }
  }
  void open(const Named& named) {
    ++crashes_;
    named_ = named;
    candidate_.reset();
    is_begun_ = false;
    pending_ = {};
    places_ = RecordPlaces(named.records);
    newest_ = named.contents;
    for (RecordId id = 0; id < kRecords; ++id) generations_[id] = named.records[id].generation;
    if (!variant_.shares_generations) first_generation_ += 1000;
  }

  // Everything that a manifest on the disk may name is there, whatever a crash would leave. A lost
  // write is noticed.
  bool is_sound() const {
    return (!named_ || holds(*named_)) && (!is_begun_ || holds(*candidate_));
  }
  bool holds(const Named& named) const {
    for (RecordId id = 0; id < kRecords; ++id) {
      const auto place = static_cast<std::size_t>(named.records[id].place);
      if (!pending_[id][place].empty()) return false;
      const Content& there = durable_[id][place];
      if (there == named.contents[id]) continue;
      const bool is_noticed = there.generation != named.records[id].generation;
      if (!has_lost_ || !is_noticed) return false;
    }
    return true;
  }

  template <typename T>
  using PerRecord = std::array<T, kRecords>;

  Variant variant_;
  PerRecord<std::array<Content, 2>> durable_;
  PerRecord<std::array<std::vector<Content>, 2>> pending_;  // not durable, in their order
  std::optional<Named> named_;                              // by a durable manifest
  std::optional<Named> candidate_;
  bool is_begun_ = false;  // the candidate's manifest may be on the disk
  bool has_lost_ = false;
  int crashes_ = 0;
  int writes_ = 0;
  // The process:
  RecordPlaces places_{kRecords, 2};
  PerRecord<Content> newest_;
  PerRecord<std::uint64_t> generations_ = {};
  std::uint64_t first_generation_ = 1;
  std::int64_t states_ = 0;
};

TEST(FrozenStoreModel, NoCrashTakesWhatAManifestNames) {
  Model model({});
  EXPECT_TRUE(model.explore(11));
  EXPECT_GT(model.states(), 100'000);
}

TEST(LongFrozenStoreModel, NoCrashTakesWhatAManifestNames) { EXPECT_TRUE(Model({}).explore(14)); }

TEST(FrozenStoreModel, FindsWhatWouldBreakTheProtocol) {
  EXPECT_FALSE(Model({.overwrites_frozen = true}).explore(9));
  EXPECT_FALSE(Model({.keeps_early = true}).explore(9));
  EXPECT_FALSE(Model({.shares_generations = true}).explore(11));
}

}  // namespace
}  // namespace sluice::swap
