#include "swap/state_store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "aio/log.h"
#include "aio/page_memory.h"
#include "swap/record_work.h"
#include "swap/sealed_json.h"
#include "swap/store_inventory.h"
#include "tests/aio/backends_under_test.h"
#include "tests/swap/store_under_test.h"

namespace sluice::swap {
namespace {

using testing::HasSubstr;
using testing::SizeIs;

class StateStoreOn : public aio::EveryBackend {
 protected:
  void SetUp() override {
    backend_ = backend(1, 16);
    queue_ = aio::make_queue_or_die(*backend_, {.block_bytes = 64 * kKiB, .queue_depth = 16});
    for (const char* drive : {"a", "b"}) {
      std::filesystem::create_directory(folder_.file(drive));
      options_.paths.push_back(folder_.file(drive));
    }
    options_.run = "test";
    options_.weights = {2, 1};
    options_.stripe_bytes = 32 * kKiB;
    options_.chunk_bytes = 64 * kKiB;
  }

  StateStore::Queues queues() { return {*queue_, *queue_}; }
  std::unique_ptr<StateStore> create() {
    auto store = StateStore::create(queues(), options_, test_records());
    EXPECT_TRUE(store.ok()) << (store.ok() ? "" : store.error().message());
    return store.ok() ? std::move(*store) : nullptr;
  }
  Error create_error() {
    const auto store = StateStore::create(queues(), options_, test_records());
    return store.ok() ? Error(ErrorCode::kInternal, "it was made") : store.error();
  }
  Result<ScrubReport> scrub_all() {
    return scrub(*queue_, *executor_, options_.paths, options_.run);
  }
  StoreCondition condition_on(std::size_t path) {
    const auto found = find_runs(*queue_, options_.paths[path]);
    EXPECT_OK(found.status());
    return found.ok() && found->size() == 1 ? found->front().condition : StoreCondition::kInUse;
  }
  // Every file in the folders of all paths, and its content.
  std::map<std::string, std::string> contents() const {
    std::map<std::string, std::string> files;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(folder_.path())) {
      if (!entry.is_regular_file()) continue;
      std::ifstream in(entry.path(), std::ios::binary);
      files[entry.path()] = std::string(std::istreambuf_iterator<char>(in), {});
    }
    return files;
  }
  // Flips a byte of a record in its file, located by the layout alone.
  void flip_on_disk(const StoreLayout& layout, RecordId id, std::uint64_t offset_in_record) {
    const std::uint64_t at = layout.offset_bytes(id) + offset_in_record;
    // Stripes of 32 KiB in the cycle a, b, a (weights 2 and 1, spread evenly).
    const std::uint64_t stripe = at / (32 * kKiB);
    const std::uint64_t turn = stripe % 3;
    const bool on_b = turn == 1;
    const std::uint64_t file_stripe = on_b ? stripe / 3 : stripe / 3 * 2 + (turn == 2 ? 1 : 0);
    std::fstream file(options_.paths[on_b ? 1 : 0] + "/sluice-test/records",
                      std::ios::in | std::ios::out | std::ios::binary);
    const auto position = static_cast<std::streamoff>(file_stripe * 32 * kKiB + at % (32 * kKiB));
    file.seekg(position);
    const char byte = static_cast<char>(file.get() ^ 0x10);
    file.seekp(position);
    file.put(byte);
    ASSERT_TRUE(file.good());
  }

  aio::TemporaryFolder folder_;
  std::unique_ptr<aio::IoBackend> backend_;
  std::unique_ptr<aio::IoQueue> queue_;
  std::unique_ptr<aio::Executor> executor_ = std::move(aio::make_executor(2)).value();
  StateStore::Options options_;
};

TEST_P(StateStoreOn, ReadsBackWhatItWrote) {
  auto store = create();
  StoreUser user(*store, *executor_);
  user.write_all(1);
  user.write_all(2);
  user.expect_all(2);
  ASSERT_OK(store->remove());
  EXPECT_TRUE(std::filesystem::is_empty(folder_.file("a")));
  EXPECT_TRUE(std::filesystem::is_empty(folder_.file("b")));
}

TEST_P(StateStoreOn, RefusesPartsOfTwoStores) {
  for (const char* name : {"test", "other"}) {
    options_.run = name;
    create().reset();
  }
  const std::string from = options_.paths[1] + "/sluice-other";
  const std::string to = options_.paths[1] + "/sluice-test";
  std::filesystem::remove_all(to);
  std::filesystem::rename(from, to);
  options_.run = "test";
  EXPECT_THAT(scrub_all().status().error().message(), HasSubstr("run other"));
  EXPECT_THAT(create_error().message(), HasSubstr("another store"));
}

TEST_P(StateStoreOn, IsHeldByOneRunAtATime) {
  auto store = create();
  const auto second = StateStore::create(queues(), options_, test_records());
  ASSERT_FALSE(second.ok());
  EXPECT_EQ(second.error().code(), ErrorCode::kBusy);
  EXPECT_THAT(second.error().message(), HasSubstr(std::to_string(::getpid())));
  EXPECT_EQ(scrub_all().error().code(), ErrorCode::kBusy);
  // And the attempt does not disturb it.
  StoreUser user(*store, *executor_);
  user.write_all(1);
  user.expect_all(1);
}

// One mark suffices: an earlier version that was killed between two marks left a whole store.
TEST_P(StateStoreOn, KeepsWhatAnEarlierVersionClosed) {
  create().reset();
  std::ofstream(folder_.file("b/sluice-test/closed.json")) << "its mark";
  const auto before = contents();
  for (const std::size_t path : {0, 1}) EXPECT_EQ(condition_on(path), StoreCondition::kUnknown);
  EXPECT_EQ(create_error().code(), ErrorCode::kAlreadyExists);
  const std::string closed = create_error().message();
  EXPECT_THAT(closed, HasSubstr("b/sluice-test/closed.json"));
  EXPECT_THAT(closed, HasSubstr("remove the folder " + folder_.file("b/sluice-test") + " by hand"));
  EXPECT_THAT(remove_leftovers(*queue_, options_.paths)->removed, SizeIs(0));
  EXPECT_EQ(contents(), before);
  ASSERT_OK(remove_run(*queue_, options_.paths, options_.run).status());
  EXPECT_TRUE(contents().empty());
}

TEST_P(StateStoreOn, ReplacesWhatWasLeftAndSaysSo) {
  create().reset();
  std::string said;
  log::set_sink([&](log::Level, std::string_view message) { said += message; });
  auto store = create();
  log::set_sink({});
  EXPECT_THAT(said, HasSubstr("left incomplete by process " + std::to_string(::getpid())));
  StoreUser user(*store, *executor_);
  user.write_all(1);
  user.expect_all(1);
}

// A newer version may mark a store in another way, and a damaged manifest says nothing.
TEST_P(StateStoreOn, KeepsWhatCannotBeReadWhateverIsMadeOrRemoved) {
  create().reset();
  // On the second path, since the first would already be taken.
  const std::string manifest = folder_.file("b/sluice-test/store.json");
  const std::string whole = contents()[manifest];
  auto content = nlohmann::json::parse(whole)["content"];
  auto with_generations = content;
  content["version"] = 2;
  with_generations["generations"] = 3;
  std::string damaged = whole;
  damaged[damaged.size() / 2] ^= 1;
  const std::pair<std::string, ErrorCode> cases[] = {
      {to_sealed_text(content), ErrorCode::kNewerVersion},
      {to_sealed_text(with_generations), ErrorCode::kCorrupt},
      {damaged, ErrorCode::kCorrupt}};
  for (const auto& [text, code] : cases) {
    std::ofstream(manifest, std::ios::binary) << text;
    const auto before = contents();
    const Error refused = create_error();
    EXPECT_EQ(refused.code(), code);
    EXPECT_THAT(refused.message(), HasSubstr("store.json"));
    EXPECT_EQ(contents(), before) << "what is refused is not touched";
    const auto sweep = remove_leftovers(*queue_, options_.paths);
    ASSERT_OK(sweep.status());
    EXPECT_THAT(sweep->removed, SizeIs(0));
    ASSERT_THAT(sweep->kept, SizeIs(2));
    EXPECT_EQ(sweep->kept[1].condition, StoreCondition::kUnknown);
    EXPECT_THAT(describe(sweep->kept[1]), HasSubstr("store.json"));
    EXPECT_EQ(contents(), before);
  }
  std::ofstream(manifest, std::ios::binary) << whole;
  ASSERT_OK(StateStore::create(queues(), options_, test_records()).status());
}

TEST_P(StateStoreOn, RemovesOnlyLeftovers) {
  create().reset();
  options_.run = "closed";
  create().reset();
  std::ofstream(folder_.file("a/sluice-closed/closed.json")) << "its mark";
  options_.run = "alive";
  auto alive = create();
  std::filesystem::create_directory(folder_.file("a/sluice-of-somebody-else"));
  const auto of_another = [](const FoundRun& run) { return run.owner->pid != ::getpid(); };
  EXPECT_THAT(remove_leftovers(*queue_, options_.paths, of_another)->removed, SizeIs(0));
  const auto sweep = remove_leftovers(*queue_, {options_.paths[0]});
  ASSERT_OK(sweep.status());
  ASSERT_THAT(sweep->removed, SizeIs(2));  // one per path, also if only one path was given
  EXPECT_THAT(sweep->kept, SizeIs(2));
  EXPECT_EQ(sweep->removed[0].run, "test");
  EXPECT_THAT(describe(sweep->removed[0]), HasSubstr("left incomplete by process"));
  std::vector<std::string> left;
  for (const auto& entry : std::filesystem::directory_iterator(folder_.file("a")))
    left.push_back(entry.path().filename());
  EXPECT_THAT(left, testing::UnorderedElementsAre("sluice-closed", "sluice-alive",
                                                  "sluice-of-somebody-else"));
}

// For example if the second drive, which may have a mark of a whole store, is not mounted.
TEST_P(StateStoreOn, KeepsThePartsOfAStoreWhoseOtherPartIsMissing) {
  create().reset();
  std::filesystem::rename(folder_.file("b"), folder_.file("unmounted"));
  std::filesystem::create_directory(folder_.file("b"));
  const auto before = contents();
  EXPECT_EQ(condition_on(0), StoreCondition::kUnknown);
  EXPECT_THAT(remove_leftovers(*queue_, options_.paths)->removed, SizeIs(0));
  StateStore::Options one = options_;
  one.paths.pop_back();
  one.weights = {};
  for (const StateStore::Options& options : {options_, one}) {
    const auto again = StateStore::create(queues(), options, test_records());
    ASSERT_FALSE(again.ok());
    EXPECT_THAT(again.error().message(), HasSubstr("whose part in " + folder_.file("b")));
  }
  EXPECT_EQ(contents(), before);
  std::filesystem::remove(folder_.file("b"));
  std::filesystem::rename(folder_.file("unmounted"), folder_.file("b"));
  EXPECT_EQ(condition_on(0), StoreCondition::kLeftover);
  ASSERT_NE(create(), nullptr);
}

TEST_P(StateStoreOn, OfAnotherMachineIsKeptAndRemovedWhenItIsNamed) {
  create().reset();
  for (const char* drive : {"a", "b"}) {
    std::ofstream(folder_.file(drive) + "/sluice-test/owner.json")
        << R"({"pid": 1, "host": "pod", "started_utc": "then", "boot_id": "-", "machine_id": "-"})";
  }
  const auto before = contents();
  EXPECT_EQ(create_error().code(), ErrorCode::kBusy);
  const auto sweep = remove_leftovers(*queue_, options_.paths);
  ASSERT_OK(sweep.status());
  EXPECT_THAT(sweep->removed, SizeIs(0));
  ASSERT_THAT(sweep->kept, SizeIs(2));
  EXPECT_EQ(sweep->kept[0].condition, StoreCondition::kElsewhere);
  EXPECT_THAT(describe(sweep->kept[0]), HasSubstr("process 1 on pod"));
  EXPECT_EQ(contents(), before);
  options_.run = "alive";
  auto alive = create();
  EXPECT_EQ(remove_run(*queue_, options_.paths, "alive").status().error().code(), ErrorCode::kBusy);
  EXPECT_EQ(remove_run(*queue_, options_.paths, "none").status().error().code(),
            ErrorCode::kNotFound);
  const auto removed = remove_run(*queue_, options_.paths, "test");
  ASSERT_OK(removed.status());
  EXPECT_THAT(*removed, SizeIs(2));
  ASSERT_OK(alive->remove());
  EXPECT_TRUE(std::filesystem::is_empty(folder_.file("a")));
}

TEST_P(StateStoreOn, ScrubFindsNothingWrongWithPathsInAnyOrderAndWantsAll) {
  {
    auto store = create();
    StoreUser(*store, *executor_).write_all(4);
  }
  const auto before = contents();
  std::swap(options_.paths[0], options_.paths[1]);
  const auto report = scrub_all();
  ASSERT_OK(report.status());
  EXPECT_EQ(report->records, test_records().size());
  EXPECT_EQ(report->never_written, 0U);
  EXPECT_TRUE(report->bad.empty());
  options_.paths.pop_back();
  EXPECT_THAT(scrub_all().status().error().message(), HasSubstr("of 2 paths"));
  EXPECT_EQ(contents(), before);
}

TEST_P(StateStoreOn, ScrubNamesTheDamagedRecords) {
  std::optional<StoreLayout> layout;
  {
    auto store = create();
    StoreUser(*store, *executor_).write_all(4);
    layout = store->layout();
  }
  flip_on_disk(*layout, 1, 100);                          // header
  flip_on_disk(*layout, 3, kRecordHeaderBytes + 70'000);  // second chunk
  const auto report = scrub_all();
  ASSERT_OK(report.status());
  ASSERT_THAT(report->bad, SizeIs(2));
  EXPECT_EQ(report->bad[0].name, name_of(test_records()[1]));
  EXPECT_THAT(report->bad[0].problem, HasSubstr("header"));
  EXPECT_EQ(report->bad[1].name, name_of(test_records()[3]));
  EXPECT_THAT(report->bad[1].problem, HasSubstr("their checksum"));
}

TEST_P(StateStoreOn, ScrubOfALeftoverTellsWrittenRecordsFromOthers) {
  std::optional<StoreLayout> layout;
  {
    auto store = create();
    layout = store->layout();
    StoreUser user(*store, *executor_);
    user.write(0, 1);
    user.write(2, 1);
  }
  flip_on_disk(*layout, 2, kRecordHeaderBytes);
  const auto report = scrub_all();
  ASSERT_OK(report.status());
  EXPECT_EQ(report->never_written, test_records().size() - 2);
  ASSERT_THAT(report->bad, SizeIs(1));
  EXPECT_EQ(report->bad[0].name, name_of(test_records()[2]));
}

TEST_P(StateStoreOn, ReportsADamagedRecordByNameWhenItIsRead) {
  auto store = create();
  StoreUser user(*store, *executor_);
  user.write_all(1);
  flip_on_disk(store->layout(), 2, kRecordHeaderBytes + 5);
  const Status read = user.read(2);
  ASSERT_FALSE(read.ok());
  EXPECT_EQ(read.error().code(), ErrorCode::kCorrupt);
  EXPECT_THAT(read.error().message(), HasSubstr(name_of(test_records()[2])));
  ASSERT_OK(user.read(1));
}

// A write that the drive lost: the old record, whole, is not accepted as the new one.
TEST_P(StateStoreOn, ReportsAStaleAndASwappedRecord) {
  auto store = create();
  StoreUser user(*store, *executor_);
  user.write_all(1);
  const auto old = user.image_on_disk(2);
  user.write_all(2);
  user.put_on_disk(2, old);
  EXPECT_THAT(user.read(2).error().message(), HasSubstr("a write was lost"));
  user.put_on_disk(0, user.image_on_disk(4));  // equal in size
  EXPECT_THAT(user.read(0).error().message(), HasSubstr("record 4"));
}

TEST_P(StateStoreOn, SaysWhichOptionMakesNoSense) {
  const auto message = [&](StateStore::Options options, std::vector<RecordSpec> records) {
    const auto store = StateStore::create(queues(), options, std::move(records));
    return store.ok() ? "" : store.error().message();
  };
  EXPECT_THAT(message(options_, {}), HasSubstr("at least one record"));
  EXPECT_THAT(message(options_, {{"p", 0, 10, 40}, {"p", 0, 20, 80}}), HasSubstr("called p[0"));
  EXPECT_THAT(message(options_, {{"p", 0, 0, 0}}), HasSubstr("is empty"));
  EXPECT_THAT(message(options_, {{"p", 0, 1 << 30, std::uint64_t{1} << 32}}),
              HasSubstr("the most"));
  StateStore::Options wrong = options_;
  wrong.run = "../x";
  EXPECT_THAT(message(wrong, test_records()), HasSubstr("../x"));
  wrong = options_;
  wrong.weights = {1};
  EXPECT_THAT(message(wrong, test_records()), HasSubstr("weights"));
  wrong = options_;
  wrong.paths = {folder_.file("nowhere")};
  wrong.weights = {};
  EXPECT_THAT(message(wrong, test_records()), HasSubstr("nowhere"));
  wrong.paths = {options_.paths[0], options_.paths[0]};
  EXPECT_THAT(message(wrong, test_records()), HasSubstr("twice"));
}

SLUICE_TEST_EVERY_BACKEND(StateStoreOn);

}  // namespace
}  // namespace sluice::swap
