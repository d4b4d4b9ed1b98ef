// Stores with two places, on a drive that loses power, whose calls fail, or whose run is killed:
// what a durable manifest names is always there.
#include "swap/frozen_store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <utility>

#include "aio/fault_backend.h"
#include "aio/log.h"
#include "aio/sim_drive.h"
#include "aio/small_file.h"
#include "swap/frozen_records.h"
#include "swap/state_store.h"
#include "swap/store_files.h"
#include "swap/store_inventory.h"
#include "tests/aio/backends_under_test.h"
#include "tests/swap/store_directory_under_test.h"
#include "tests/swap/store_under_test.h"

namespace sluice::swap {
namespace {

using aio::FaultKind;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

constexpr const char* kManifest = "/nvme0/manifest";

std::vector<RecordSpec> small_records() {
  return {{"h.0", 0, 1000, 20'000}, {"h.0", 1000, 10, 77}, {"h.1", 0, 1000, 8192}};
}

// What a checkpoint's manifest would say, and the versions of its records' contents.
struct Saved {
  std::uint64_t number = 0;
  FrozenStore store;
  std::vector<std::uint64_t> versions;
};

std::string to_text(const Saved& saved) {
  nlohmann::json records = nlohmann::json::array();
  for (const FrozenRecord& record : saved.store.records)
    records.push_back({record.generation, record.place});
  return nlohmann::json{{"number", saved.number},
                        {"store_id", saved.store.store_id},
                        {"records", records},
                        {"versions", saved.versions}}
      .dump();
}

// A run that saves in place, on two folders of one drive.
class SavingRun {
 public:
  SavingRun(aio::IoBackend& backend, std::uint64_t seed)
      : queue_(aio::make_queue_or_die(backend, {.block_bytes = 8192, .queue_depth = 8})),
        random_(seed) {
    options_.paths = {"/nvme0", "/nvme1"};
    options_.run = "a";
    options_.stripe_bytes = 8192;
    options_.chunk_bytes = 8192;
    options_.places = 2;
  }

  // The newest manifest; none: no checkpoint was ever named.
  Result<std::optional<Saved>> newest() {
    const auto text = aio::read_small_file(*queue_, kManifest, 1 << 20);
    if (!text.ok() && text.error().code() == ErrorCode::kNotFound) return std::optional<Saved>();
    if (!text.ok()) return text.error();
    const nlohmann::json content = nlohmann::json::parse(*text);
    Saved saved{.number = content["number"],
                .store = {.run = "a", .paths = options_.paths, .store_id = content["store_id"]},
                .versions = content["versions"]};
    for (const auto& record : content["records"])
      saved.store.records.push_back({record[0].get<std::uint64_t>(), record[1].get<int>()});
    return std::optional(std::move(saved));
  }

  Status start() {
    SLUICE_ASSIGN_OR_RETURN(auto saved, newest());
    if (saved) {
      SLUICE_ASSIGN_OR_RETURN(
          store_, StateStore::open({*queue_, *queue_}, saved->store, small_records(), "records"));
      saved_ = *std::move(saved);
      return {};
    }
    auto made = StateStore::create({*queue_, *queue_}, options_, small_records());
    // A run that was killed while it named its first checkpoint: no manifest needs the store.
    if (!made.ok() && made.error().code() == ErrorCode::kAlreadyExists) {
      SLUICE_RETURN_IF_ERROR(remove_run(*queue_, options_.paths, "a").status());
      made = StateStore::create({*queue_, *queue_}, options_, small_records());
    }
    SLUICE_ASSIGN_OR_RETURN(store_, std::move(made));
    saved_.versions.assign(small_records().size(), 0);
    StoreUser user(*store_, *executor_);
    for (RecordId id = 0; id < store_->record_count(); ++id)
      SLUICE_RETURN_IF_ERROR(user.try_write(id, 0));
    return {};
  }

  // Each record has the content that the newest manifest names.
  Status check() {
    StoreUser user(*store_, *executor_);
    for (RecordId id = 0; id < store_->record_count(); ++id) {
      SLUICE_RETURN_IF_ERROR(user.read(id));
      EXPECT_TRUE(user.holds(id, saved_.versions[id]))
          << store_->name(id) << " of save " << saved_.number;
    }
    return {};
  }

  // Updates some records, and saves them as number() + 1.
  Status update_and_save() {
    SLUICE_RETURN_IF_ERROR(update());
    return save();
  }
  Status update_all() { return update(/*all=*/true); }
  Status update(bool all = false) {
    StoreUser user(*store_, *executor_);
    for (RecordId id = 0; id < store_->record_count(); ++id) {
      if (!all && random_() % 3 == 0) continue;
      saved_.versions[id] = ++version_ + (random_() % 1000 << 20);
      SLUICE_RETURN_IF_ERROR(user.try_write(id, saved_.versions[id]));
    }
    return {};
  }
  Status save() {
    Saved next = saved_;
    ++next.number;
    SLUICE_ASSIGN_OR_RETURN(next.store, store_->freeze("/run/checkpoints/step-1"));
    if (random_() % 5 == 0) return store_->drop_frozen();
    const Status named = aio::write_small_file(*queue_, kManifest, to_text(next));
    if (!named.ok()) {
      // A run does the same: what may be named stays.
      const auto there = newest();
      const bool is_named = there.ok() && there->has_value() && (*there)->number == next.number;
      static_cast<void>(is_named || !there.ok() ? store_->keep_frozen() : store_->drop_frozen());
      if (is_named) saved_ = std::move(next);
      return named;
    }
    saved_ = std::move(next);
    return store_->keep_frozen();
  }

  // The last save that has succeeded, or was found.
  std::uint64_t number() const { return saved_.number; }
  StateStore& store() { return *store_; }
  aio::IoQueue& queue() { return *queue_; }
  aio::Executor& executor() { return *executor_; }
  const StateStore::Options& options() const { return options_; }
  void end() { store_.reset(); }

 private:
  std::unique_ptr<aio::IoQueue> queue_;
  std::unique_ptr<aio::Executor> executor_ = std::move(aio::make_executor(1)).value();
  StateStore::Options options_;
  std::unique_ptr<StateStore> store_;
  Saved saved_;
  std::uint64_t version_ = 0;
  std::mt19937_64 random_;
};

class FrozenStoreOnSimDrive : public testing::Test {
 protected:
  void SetUp() override {
    log::set_sink([](log::Level, std::string_view) {});
    for (const char* path : {"/nvme0", "/nvme1"}) ASSERT_OK(drive_->files().make_directories(path));
    ASSERT_OK(drive_->files().sync_directory("/"));
  }
  void TearDown() override { log::set_sink({}); }
  void new_drive() {
    drive_ = std::make_unique<aio::SimDrive>(loop_, aio::SimDrive::Options{});
    SetUp();
  }
  // A run on the drive as it is: it finds at least save `least`, whole. Returns the save's number.
  void expect_resumable(std::uint64_t least, std::uint64_t seed) {
    SavingRun run(*drive_, seed);
    ASSERT_OK(run.start());
    ASSERT_GE(run.number(), least);
    ASSERT_OK(run.check());
    ASSERT_OK(run.update_and_save());
    ASSERT_OK(run.check());
  }

  aio::VirtualLoop loop_;
  std::unique_ptr<aio::SimDrive> drive_ =
      std::make_unique<aio::SimDrive>(loop_, aio::SimDrive::Options{});
};

// Two runs after each other, both cut.
TEST_F(FrozenStoreOnSimDrive, ResumesAfterAPowerLossAtAnyOperation) {
  int cuts = 0;
  for (const PowerLoss policy : kAllPolicies)
    for (std::uint64_t seed = 1; seed <= 3; ++seed)
      for (std::uint64_t nth = 1;; ++nth) {
        SCOPED_TRACE("policy " + std::to_string(static_cast<int>(policy)) + ", seed " +
                     std::to_string(seed) + ", operation " + std::to_string(nth));
        new_drive();
        std::uint64_t acknowledged = 0;
        bool was_cut = false;
        for (std::uint64_t life = 0; life < 2; ++life) {
          SavingRun run(*drive_, 100 * seed + life);
          drive_->fail_after_ops(life == 0 ? nth : 1 + (nth * 7 + seed) % 60, policy, seed + life);
          Status status = run.start();
          if (status.ok()) {
            ASSERT_GE(run.number(), acknowledged);
            acknowledged = run.number();
          }
          if (status.ok() && life > 0) status = run.check();
          for (int save = 0; save < 3 && status.ok(); ++save) {
            status = run.update_and_save();
            acknowledged = std::max(acknowledged, run.number());
          }
          run.end();
          was_cut = !drive_->powered();
          ASSERT_EQ(status.ok(), !was_cut) << (status.ok() ? "" : status.error().message());
          drive_->power_loss(policy, seed);
          loop_.run();
          drive_->restore_power();
          if (life == 0 && !was_cut) break;
          ++cuts;
        }
        expect_resumable(acknowledged, seed);
        if (HasFailure() || !was_cut) break;
      }
  EXPECT_GT(cuts, 1000);
}

// A call that fails costs at most the save in progress; the same process can go on.
TEST_F(FrozenStoreOnSimDrive, GoesOnAfterAnyCallThatFails) {
  int failed = 0;
  for (const bool persistent : {false, true})
    for (std::uint64_t nth = 1;; ++nth) {
      SCOPED_TRACE("call " + std::to_string(nth) + (persistent ? " and all later ones" : ""));
      new_drive();
      std::uint64_t acknowledged = 0;
      bool injected = false;
      {
        aio::FaultBackend faulty(*drive_, {});
        SavingRun run(faulty, nth);
        ASSERT_OK(run.start());
        ASSERT_OK(run.update_and_save());
        faulty.set_plan(aio::FaultPlan::of({.fault = FaultKind::kEio,
                                            .nth = nth,
                                            .persistent = persistent,
                                            .targets = aio::all_fault_targets()}));
        Status status;
        for (int save = 0; save < 3 && status.ok(); ++save) {
          status = run.update_and_save();
        }
        injected = faulty.injected() > 0;
        ASSERT_TRUE(status.ok() || injected) << status.error().message();
        faulty.set_plan({});
        if (!status.ok()) {
          ++failed;
          EXPECT_THAT(status.error().message(), HasSubstr("/nvme"));
          for (int save = 0; save < 2; ++save) {
            // A record whose write failed is written again before the next save.
            ASSERT_OK(run.update_all());
            ASSERT_OK(run.save());
          }
        }
        acknowledged = run.number();
        run.end();
      }
      expect_resumable(acknowledged, nth);
      if (HasFailure() || !injected) break;
    }
  EXPECT_GT(failed, 30);
}

// A drive reports a lost write in one sync, and not in the next.
TEST_F(FrozenStoreOnSimDrive, DoesNotTrustASyncAfterOneThatFailed) {
  aio::FaultBackend faulty(*drive_, {});
  SavingRun run(faulty, 3);
  ASSERT_OK(run.start());
  faulty.set_plan(aio::FaultPlan::of(
      {.fault = FaultKind::kEio, .persistent = true, .targets = {aio::FaultTarget::kSync}}));
  EXPECT_FALSE(run.store().freeze("/run").ok());
  faulty.set_plan({});
  const auto again = run.store().freeze("/run");
  ASSERT_FALSE(again.ok());
  EXPECT_THAT(again.error().message(), HasSubstr("sync of it has failed"));
  ASSERT_OK(run.update_all());
  ASSERT_OK(run.store().freeze("/run").status());
  ASSERT_OK(run.store().drop_frozen());
}

TEST_F(FrozenStoreOnSimDrive, IsNeverTakenForScratchAndGoesOnRequest) {
  SavingRun run(*drive_, 3);
  ASSERT_OK(run.start());
  while (run.number() == 0) ASSERT_OK(run.update_and_save());
  const auto kept = run.newest();
  ASSERT_OK(kept);
  run.end();

  const auto again = StateStore::create({run.queue(), run.queue()}, run.options(), small_records());
  ASSERT_FALSE(again.ok());
  EXPECT_THAT(again.error().message(), HasSubstr("/run/checkpoints/step-1"));
  const auto sweep = remove_leftovers(run.queue(), run.options().paths);
  ASSERT_OK(sweep.status());
  EXPECT_THAT(sweep->removed, IsEmpty());
  EXPECT_THAT(sweep->kept, SizeIs(2));
  const auto scrubbed = scrub(run.queue(), run.executor(), run.options().paths, "a");
  ASSERT_OK(scrubbed.status());
  EXPECT_EQ(scrubbed->records, small_records().size());
  EXPECT_THAT(scrubbed->bad, IsEmpty());

  auto others = small_records();
  others[1].elements = 11;
  const auto other =
      StateStore::open({run.queue(), run.queue()}, (*kept)->store, others, "records");
  ASSERT_FALSE(other.ok());
  EXPECT_EQ(other.error().code(), ErrorCode::kInvalidArgument);

  const auto held =
      StateStore::open({run.queue(), run.queue()}, (*kept)->store, small_records(), "records");
  ASSERT_OK(held.status());
  EXPECT_EQ(StateStore::open({run.queue(), run.queue()}, (*kept)->store, small_records(), "records")
                .status()
                .error()
                .code(),
            ErrorCode::kBusy);
  ASSERT_OK((*held)->remove());
  EXPECT_FALSE(*drive_->files().exists("/nvme0/sluice-a"));
  EXPECT_FALSE(*drive_->files().exists("/nvme1/sluice-a"));
}

// A later process lost a write. What a killed one left in its place is not taken for it.
TEST_F(FrozenStoreOnSimDrive, TellsALostWriteFromWhatAKilledProcessLeft) {
  SavingRun first(*drive_, 3);
  ASSERT_OK(first.start());
  while (first.number() == 0) ASSERT_OK(first.update_and_save());
  const auto frozen = first.newest();
  StoreUser of_first(first.store(), first.executor());
  of_first.write_all(77);  // and is killed
  const auto left = of_first.image_on_disk(0);
  first.end();

  SavingRun second(*drive_, 4);
  ASSERT_OK(second.start());
  StoreUser of_second(second.store(), second.executor());
  of_second.write_all(88);
  of_second.image_on_disk(0);
  // The drive still has the killed process' record: its write of the second's was lost.
  RecordImage image(second.store().shape(0), of_second.image(0));
  EXPECT_NE(*image.claimed_generation(), (*frozen)->store.records[0].generation + 1);
  std::copy(left.begin(), left.end(), of_second.image(0).begin());
  EXPECT_FALSE(image.check_header(*second.store().generation(0)).ok());
  second.end();
}

// A reader of a checkpoint needs no lock, and sees that the run has overwritten what it reads.
TEST_F(FrozenStoreOnSimDrive, IsReadWhileItsRunGoesOn) {
  SavingRun run(*drive_, 3);
  ASSERT_OK(run.start());
  while (run.number() == 0) ASSERT_OK(run.update_and_save());
  const auto frozen = run.newest();
  const auto reader = FrozenRecords::open(run.queue(), (*frozen)->store);
  ASSERT_OK(reader.status());
  std::vector<std::byte> bytes(77);
  ASSERT_OK(run.update());
  ASSERT_OK((*reader)->read_chunk(1, 0, bytes));
  const std::uint64_t number = run.number();
  while (run.number() < number + 2) ASSERT_OK(run.update_and_save());
  StoreUser(run.store(), run.executor()).write_all(5);
  std::vector<std::byte> whole(8192);
  EXPECT_EQ((*reader)->read_chunk(2, 0, whole).error().code(), ErrorCode::kCorrupt);
}

}  // namespace
}  // namespace sluice::swap
