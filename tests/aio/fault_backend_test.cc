#include "aio/fault_backend.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <deque>
#include <map>
#include <set>

#include "tests/aio/fault_backend_under_test.h"

namespace sluice::aio {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr FaultKind kErrors[] = {FaultKind::kEio, FaultKind::kEnospc, FaultKind::kEintr,
                                 FaultKind::kEagain};

// ---- what each fault does ---------------------------------------------------------------------

TEST_F(FaultBackendTest, PassesEverythingThroughWithoutAPlan) {
  EXPECT_EQ(backend_.name(), "fault");
  EXPECT_EQ(&backend_.clock(), &drive_.clock());
  EXPECT_EQ(write(4096, 4096, 2), 4096);
  EXPECT_EQ(read_at(backend_, *file_, 4096, 8192), runs({{4096, 2}, {4096, 1}}));
  EXPECT_EQ(sync_file(backend_, *file_), 0);
  EXPECT_EQ(drive_.content("/f", SimDrive::View::kDurable).has_value(), false);
  ASSERT_OK(backend_.files().sync_directory("/"));
  EXPECT_EQ(drive_.content("/f", SimDrive::View::kDurable), content());
  EXPECT_EQ(run_op(backend_, TestOp(IoKind::kNop, nullptr)), 0);
  EXPECT_EQ(backend_.injected(), 0U);
  EXPECT_EQ(backend_.operations(), 4U);  // write, read, sync, sync of folder; no no-ops
  EXPECT_EQ(backend_.operations(FaultTarget::kWrite), 1U);
  EXPECT_EQ(backend_.operations(FaultTarget::kSyncDirectory), 1U);
}

TEST_F(FaultBackendTest, AnErrorIsToldAndNothingIsDone) {
  const std::map<FaultKind, int> numbers = {{FaultKind::kEio, EIO},
                                            {FaultKind::kEnospc, ENOSPC},
                                            {FaultKind::kEintr, EINTR},
                                            {FaultKind::kEagain, EAGAIN}};
  for (const auto& [fault, number] : numbers) {
    SCOPED_TRACE(std::string(to_string(fault)));
    const auto before = drive_.stats();
    plan(once(fault));
    EXPECT_EQ(write(0, 8192, 9), -number);
    EXPECT_EQ(content(), untouched());
    EXPECT_EQ(drive_.stats().write.ops, before.write.ops);
    EXPECT_EQ(backend_.injected(fault), 1U);
    EXPECT_EQ(backend_.injected(), 1U);
    if (fault == FaultKind::kEnospc) continue;  // only writes meet it
    plan(once(fault));
    const AlignedBytes buffer(4096, std::byte{0xEE});
    EXPECT_EQ(run_op(backend_, TestOp(IoKind::kRead, file_.get(), 0, buffer.data(), 4096)),
              -number);
    EXPECT_EQ(buffer.copy(), filled(4096, 0xEE));
    plan(once(fault));
    EXPECT_EQ(sync_file(backend_, *file_), -number);
    EXPECT_EQ(drive_.stats().syncs, before.syncs);
  }
}

TEST_F(FaultBackendTest, ZeroMovesNothing) {
  plan(once(FaultKind::kZero));
  EXPECT_EQ(write(0, 4096, 9), 0);
  EXPECT_EQ(content(), untouched());
  plan({.fault = FaultKind::kZero, .targets = {FaultTarget::kRead}});
  EXPECT_TRUE(read_at(backend_, *file_, 0, 4096).empty());
  EXPECT_EQ(backend_.injected(FaultKind::kZero), 1U);
}

TEST_F(FaultBackendTest, AShortTransferTellsFewerBytesAndHasMovedAtLeastThose) {
  // On a direct file: the given count, but whole sectors around it are transferred.
  plan({.fault = FaultKind::kShort, .short_bytes = 5000});
  EXPECT_EQ(write(0, 16'384, 2), 5000);
  EXPECT_EQ(content(), runs({{8192, 2}, {56 * kKiB, 1}}));
  plan({.fault = FaultKind::kShort, .short_bytes = 8192});
  EXPECT_EQ(write(16'384, 16'384, 3), 8192);
  EXPECT_EQ(content(), runs({{8192, 2}, {8192, 1}, {8192, 3}, {40 * kKiB, 1}}));
  plan({.fault = FaultKind::kShort, .short_bytes = 100'000});  // all but one byte, at most
  EXPECT_EQ(read_at(backend_, *file_, 0, 8192), filled(8191, 2));
  // On a buffered file: exactly the count.
  const auto buffered = open_file(backend_, "/f", false);
  plan({.fault = FaultKind::kShort, .short_bytes = 5});
  EXPECT_EQ(write_at(backend_, *buffered, 10, filled(100, 7)), 5);
  EXPECT_EQ(content(), runs({{10, 2}, {5, 7}, {8177, 2}, {8192, 1}, {8192, 3}, {40 * kKiB, 1}}));
  EXPECT_EQ(drive_.stats().failed_ops, 0U) << "the drive saw only legal transfers";
}

TEST_F(FaultBackendTest, DrawsShortCountsInsideAndAtTheEndsOfSectors) {
  std::set<std::int64_t> counts;
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    FaultPlan drawn = FaultPlan::of(once(FaultKind::kShort));
    drawn.seed = seed;
    backend_.set_plan(drawn);
    const std::int64_t count = write(0, 8192, 2);
    ASSERT_GT(count, 0);
    ASSERT_LT(count, 8192);
    counts.insert(count);
  }
  EXPECT_GT(counts.size(), 200U);
}

TEST_F(FaultBackendTest, AShortReadAtTheEndOfTheFileTellsWhatThereIs) {
  plan({.fault = FaultKind::kShort, .short_bytes = 6000});
  EXPECT_EQ(read_at(backend_, *file_, 60 * kKiB, 16'384), filled(4096, 1));
}

TEST_F(FaultBackendTest, ATornWriteLandsARunOfSectorsAndFails) {
  std::set<std::string> forms;
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    FaultPlan torn = FaultPlan::of(once(FaultKind::kTornWrite));
    torn.seed = seed;
    backend_.set_plan(torn);
    // Each sector carries its own number, so that a misplaced sector shows.
    const auto numbered = runs({{4096, 2}, {4096, 3}, {4096, 4}, {4096, 5}});
    ASSERT_EQ(write_at(backend_, *file_, 8192, numbered), -EIO);
    const auto bytes = content();
    std::string form;
    for (std::size_t sector = 0; sector < 16; ++sector) {
      const int value = static_cast<int>(bytes[sector * 4096]);
      ASSERT_TRUE(value == 1 || value == static_cast<int>(sector));
      form += value == 1 ? '.' : 'X';
      for (std::size_t i = 0; i < 4096; ++i) {
        ASSERT_EQ(static_cast<int>(bytes[sector * 4096 + i]), value);
      }
    }
    ASSERT_EQ(form.substr(0, 2) + form.substr(6), "............");
    forms.insert(form.substr(2, 4));
    backend_.set_plan({});
    ASSERT_EQ(write(0, 64 * kKiB, 1), 64 * kKiB);
  }
  EXPECT_THAT(forms, ElementsAre("....", "...X", "..X.", "..XX", ".X..", ".XX.", ".XXX", "X...",
                                 "XX..", "XXX.", "XXXX"));
  plan(always(FaultKind::kTornWrite));  // not a fault of reads
  EXPECT_EQ(read_at(backend_, *file_, 0, 4096), filled(4096, 1));
  EXPECT_EQ(backend_.injected(), 0U);
}

TEST_F(FaultBackendTest, ADelayedOpIsDoneInTimeAndToldLater) {
  FaultPlan slow = FaultPlan::of(once(FaultKind::kDelay));
  slow.delay_ns = 50'000'000;
  backend_.set_plan(slow);
  const std::int64_t start_ns = loop_.now_ns();
  const AlignedBytes data(filled(4096, 2));
  TestOp late(IoKind::kWrite, file_.get(), 0, data.data(), 4096);
  TestOp next(IoKind::kWrite, file_.get(), 4096, data.data(), 4096);
  late.submit(backend_);
  next.submit(backend_);
  ASSERT_TRUE(loop_.run_until([&] { return next.result.has_value(); }));
  EXPECT_LT(next.done_ns - start_ns, 1'000'000);
  EXPECT_FALSE(late.result.has_value());
  EXPECT_EQ(content(), runs({{8192, 2}, {56 * kKiB, 1}}));
  loop_.run();
  EXPECT_EQ(late.result, 4096);
  EXPECT_GE(late.done_ns - start_ns, 50'000'000);
  EXPECT_LT(late.done_ns - start_ns, 51'000'000);
}

TEST_F(FaultBackendTest, ReorderTellsHeldOpsAfterLaterOnesAndInAnotherOrder) {
  SimDrive::Options options;
  options.depth = 1;  // so that the drive itself keeps the order
  SimDrive drive(loop_, options);
  FaultBackend backend(drive, {});
  const auto file = open_file(backend, "/f");
  const auto order_of = [&](const FaultPlan& by, int count) {
    backend.set_plan(by);
    const AlignedBytes data(4096);
    std::vector<int> order;
    std::deque<TestOp> ops;
    for (int i = 0; i < count; ++i) {
      TestOp& op = ops.emplace_back(IoKind::kWrite, file.get(), 0, data.data(), 4096);
      op.order = &order;
      op.id = i;
      op.submit(backend);
    }
    loop_.run();
    EXPECT_EQ(order.size(), static_cast<std::size_t>(count)) << "the last ones were kept";
    for (const TestOp& op : ops) EXPECT_EQ(op.result, 4096);
    return order;
  };
  EXPECT_THAT(order_of({}, 4), ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(order_of(FaultPlan::of(once(FaultKind::kReorder, 2)), 4), ElementsAre(0, 2, 3, 1));
  EXPECT_THAT(order_of(FaultPlan::of(always(FaultKind::kReorder)), 1), ElementsAre(0));
  EXPECT_THAT(order_of(FaultPlan::of(always(FaultKind::kReorder)), 2), ElementsAre(1, 0));
  FaultPlan windowed = FaultPlan::of(always(FaultKind::kReorder));
  windowed.reorder_window = 3;
  const auto order = order_of(windowed, 9);
  EXPECT_FALSE(std::is_sorted(order.begin(), order.end()));
  for (std::size_t i = 0; i < 9; ++i) {
    EXPECT_EQ(static_cast<std::size_t>(order[i]) / 3, i / 3) << "each window is told by itself";
  }
  EXPECT_EQ(backend.injected(FaultKind::kReorder), 9U);
}

TEST_F(FaultBackendTest, NeverCompletesAnOpInsideSubmitAndKeepsItsDelay) {
  for (std::size_t i = 0; i < kFaultKinds; ++i) {
    const auto fault = static_cast<FaultKind>(i);
    SCOPED_TRACE(std::string(to_string(fault)));
    plan(always(fault));
    const AlignedBytes data(filled(8192, 1));
    TestOp op(IoKind::kWrite, file_.get(), 0, data.data(), 8192);
    op.delay_ns = 3'000'000;
    const std::int64_t start_ns = loop_.now_ns();
    op.submit(backend_);
    EXPECT_FALSE(op.result.has_value());
    loop_.run();
    ASSERT_TRUE(op.result.has_value());
    EXPECT_GE(op.done_ns - start_ns, 3'000'000);
    EXPECT_EQ(backend_.injected(fault), 1U);
  }
}

// ---- which operations -------------------------------------------------------------------------

TEST_F(FaultBackendTest, HarmsTheNthMatchingOperationOnceOrAllFromThere) {
  for (const bool persistent : {false, true}) {
    plan({.fault = FaultKind::kEio, .nth = 3, .persistent = persistent});
    std::string results;
    for (int i = 0; i < 6; ++i) results += write(0, 4096, 1) == -EIO ? 'E' : '.';
    EXPECT_EQ(results, persistent ? "..EEEE" : "..E...");
    EXPECT_EQ(backend_.injected(), persistent ? 4U : 1U);
    EXPECT_EQ(backend_.operations(), 6U);
  }
}

TEST_F(FaultBackendTest, CountsOnlyOperationsTheRuleAppliesTo) {
  plan({.fault = FaultKind::kEio, .nth = 2, .targets = {FaultTarget::kSync}});
  EXPECT_EQ(write(0, 4096, 1), 4096);
  EXPECT_EQ(sync_file(backend_, *file_), 0);
  EXPECT_EQ(write(0, 4096, 1), 4096);
  EXPECT_EQ(sync_file(backend_, *file_), -EIO);
  EXPECT_EQ(sync_file(backend_, *file_), 0);

  // Reads and syncs cannot run out of space, so they are not counted.
  plan(once(FaultKind::kEnospc, 2));
  read_at(backend_, *file_, 0, 4096);
  EXPECT_EQ(write(0, 4096, 1), 4096);
  EXPECT_EQ(write(0, 4096, 1), -ENOSPC);

  const auto other = open_file(backend_, "/other");
  plan({.fault = FaultKind::kEio, .persistent = true, .path_contains = "oth"});
  EXPECT_EQ(write(0, 4096, 1), 4096);
  EXPECT_EQ(write_at(backend_, *other, 0, filled(4096, 1)), -EIO);
}

TEST_F(FaultBackendTest, TheFirstRuleWinsAndEachCountsForItself) {
  FaultPlan two;
  two.rules = {once(FaultKind::kEio, 2),
               {.fault = FaultKind::kEintr, .nth = 2, .persistent = true}};
  backend_.set_plan(two);
  EXPECT_EQ(write(0, 4096, 1), 4096);
  EXPECT_EQ(write(0, 4096, 1), -EIO);
  EXPECT_EQ(write(0, 4096, 1), -EINTR);
}

TEST_F(FaultBackendTest, RandomFaultsComeAtTheirRateAndRepeatFromTheSeed) {
  const auto history = [&](std::uint64_t seed) {
    FaultPlan random;
    random.probability[static_cast<std::size_t>(FaultKind::kEio)] = 0.2;
    random.probability[static_cast<std::size_t>(FaultKind::kZero)] = 0.1;
    random.seed = seed;
    backend_.set_plan(random);
    std::vector<std::int64_t> results;
    for (int i = 0; i < 1000; ++i) results.push_back(write(0, 4096, 1));
    return results;
  };
  const auto first = history(7);
  EXPECT_NEAR(static_cast<double>(backend_.injected(FaultKind::kEio)), 200, 50);
  EXPECT_NEAR(static_cast<double>(backend_.injected(FaultKind::kZero)), 80, 35);
  EXPECT_EQ(std::count(first.begin(), first.end(), -EIO),
            static_cast<std::ptrdiff_t>(backend_.injected(FaultKind::kEio)));
  EXPECT_EQ(first, history(7));
  EXPECT_NE(first, history(8));
}

TEST(FaultPlan, KnowsWhatCanHappenToWhat) {
  int possible = 0;
  std::set<std::string_view> names;
  for (const FaultTarget target : all_fault_targets()) {
    names.insert(to_string(target));
    for (std::size_t i = 0; i < kFaultKinds; ++i) {
      if (can_happen(static_cast<FaultKind>(i), target)) ++possible;
    }
  }
  EXPECT_EQ(names.size(), kFaultTargets);
  EXPECT_FALSE(can_happen(FaultKind::kZero, FaultTarget::kSync)) << "0 is a sync's success";
  EXPECT_FALSE(can_happen(FaultKind::kShort, FaultTarget::kOpen));
  // 7 reads, 9 writes, 6 syncs, 3 of each call, and 4 of calls that take space
  EXPECT_EQ(possible, 7 + 9 + 6 + 3 * 8 + 6);
}

// ---- calls of files() -------------------------------------------------------------------------

TEST_F(FaultBackendTest, EveryCallOfTheFileSystemCanFailAndThenDoesNothing) {
  FileSystem& files = backend_.files();
  ASSERT_OK(files.make_directories("/d"));
  const std::vector<std::pair<FaultTarget, std::function<Status()>>> calls = {
      {FaultTarget::kOpen,
       [&] {
         return files
             .open("/new", {.access = OpenOptions::Access::kReadWrite,
                            .create = OpenOptions::Create::kIfMissing})
             .status();
       }},
      {FaultTarget::kOpen, [&] { return files.lock("/new").status(); }},
      {FaultTarget::kRemove, [&] { return files.remove("/d"); }},
      {FaultTarget::kRename, [&] { return files.rename("/f", "/moved"); }},
      {FaultTarget::kMakeDirectories, [&] { return files.make_directories("/e"); }},
      {FaultTarget::kSyncDirectory, [&] { return files.sync_directory("/"); }},
      {FaultTarget::kAllocate, [&] { return file_->allocate(kMiB); }},
      {FaultTarget::kTruncate, [&] { return file_->truncate(10); }},
      {FaultTarget::kLookUp, [&] { return file_->size_bytes().status(); }},
      {FaultTarget::kLookUp, [&] { return files.exists("/f").status(); }},
      {FaultTarget::kLookUp, [&] { return files.list("/").status(); }},
      {FaultTarget::kLookUp, [&] { return files.free_bytes("/").status(); }}};
  for (const auto& [target, call] : calls) {
    for (const FaultKind fault : kErrors) {
      SCOPED_TRACE(std::string(to_string(target)) + " " + std::string(to_string(fault)));
      plan({.fault = fault, .persistent = true, .targets = {target}});
      const Status status = call();
      ASSERT_EQ(status.ok(), !can_happen(fault, target));
      if (status.ok()) continue;
      EXPECT_EQ(status.error().error_number(), errno_of(fault));
      EXPECT_THAT(status.error().message(), HasSubstr(std::string(to_string(target)) + " /"));
      EXPECT_EQ(backend_.injected(), 1U);
    }
    plan(always(FaultKind::kEio));  // by default calls are spared
    if (target == FaultTarget::kLookUp) {
      EXPECT_OK(call());
    }
    EXPECT_EQ(backend_.injected(), 0U);
  }
  // The folder was removed once, under kEnospc; nothing else has happened.
  EXPECT_THAT(*drive_.files().list("/"), ElementsAre("f"));
  EXPECT_EQ(content(), untouched());
  EXPECT_FALSE(drive_.content("/f", SimDrive::View::kDurable).has_value());
}

TEST_F(FaultBackendTest, AttachesTheFileBehindTheWrapper) {
  struct Recorder final : IoBackend {
    explicit Recorder(SimDrive& inner) : drive(inner) {}
    std::string_view name() const override { return "recorder"; }
    FileSystem& files() override { return drive.files(); }
    const Clock& clock() const override { return drive.clock(); }
    void submit(std::span<IoOp* const> ops) noexcept override {
      for (const IoOp* op : ops) submitted = op->file;
      drive.submit(ops);
    }
    PumpResult pump() override { return drive.pump(); }
    void attach(File& file) override {
      attached = &file;
      file.backend_slot = 5;
    }
    void detach(File& file) override {
      EXPECT_EQ(&file, attached);
      attached = nullptr;
    }
    bool attach_memory(std::span<std::byte> memory) override {
      registered = memory.size();
      return true;
    }
    void detach_memory(std::span<std::byte>) override { registered = 0; }
    SimDrive& drive;
    File* attached = nullptr;
    File* submitted = nullptr;
    std::size_t registered = 0;
  };
  Recorder recorder(drive_);
  FaultBackend backend(recorder, {});
  const auto file = open_file(backend, "/f");
  EXPECT_EQ(file->path(), "/f");
  EXPECT_EQ(file->offset_alignment_bytes(), 4096U);
  backend.attach(*file);
  EXPECT_EQ(file->backend_slot, -1);
  ASSERT_NE(recorder.attached, nullptr);
  EXPECT_NE(recorder.attached, file.get());
  EXPECT_EQ(sync_file(backend, *file), 0);
  EXPECT_EQ(recorder.submitted, recorder.attached);
  backend.detach(*file);
  EXPECT_EQ(recorder.attached, nullptr);
  std::byte memory[16];
  EXPECT_TRUE(backend.attach_memory(memory));
  EXPECT_EQ(recorder.registered, 16U);
  backend.detach_memory(memory);
  EXPECT_EQ(recorder.registered, 0U);
  // A file of the inner backend is used as it is.
  const auto plain = open_file(drive_, "/f");
  EXPECT_EQ(sync_file(backend, *plain), 0);
}

}  // namespace
}  // namespace sluice::aio
