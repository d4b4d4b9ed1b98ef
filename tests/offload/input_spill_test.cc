// Passes of a model whose unit inputs go to the drives. The bytes return unchanged for any order of
// the drive's transfers. Each transfer also fails in turn, once and permanently.
#include "offload/inputs/input_spill.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "aio/fault_backend.h"
#include "aio/sim_drive.h"
#include "tests/aio/backends_under_test.h"
#include "tests/offload/fault_matrix.h"

namespace sluice::offload {
namespace {

using aio::FaultPlan;

constexpr int kSpilledUnits = 8;
constexpr int kSpillBuffers = 4;  // fewer than there are pieces
constexpr int kPiecesOfUnit = 3;

std::vector<std::string> unit_names() {
  std::vector<std::string> names;
  for (int unit = 0; unit < kSpilledUnits; ++unit) names.push_back("h." + std::to_string(unit));
  return names;
}

class SpillUnderTest {
 public:
  SpillUnderTest(aio::IoBackend& backend, const std::string& folder,
                 std::uint64_t piece_bytes = 5000)
      : piece_bytes_(piece_bytes),
        queue_(aio::make_queue_or_die(
            backend, {.block_bytes = 64 * kKiB, .queue_depth = 16, .max_retries = 2})) {
    options_ = {.units = unit_names(),
                .pieces_of_unit = kPiecesOfUnit,
                .piece_bytes = piece_bytes,
                .most_buffers = kSpillBuffers,
                .store = {.paths = {folder}, .run = "test-inputs"},
                .huge_pages = false,
                .lock = aio::MemoryLock::kNone,
                .hook = {}};
    auto made = InputSpill::create(options_, {*queue_, *queue_});
    if (!made.ok()) throw std::runtime_error(made.error().message());
    spill_ = *std::move(made);
    for (int unit = kSpilledUnits; unit-- > 0;)
      for (int m = 0; m < kPiecesOfUnit; ++m) back_.push_back(unit * kPiecesOfUnit + m);
  }
  ~SpillUnderTest() {
    if (spill_ != nullptr) {
      EXPECT_OK(spill_->remove());
    }
  }
  SpillUnderTest(const SpillUnderTest&) = delete;
  SpillUnderTest& operator=(const SpillUnderTest&) = delete;

  InputSpill& spill() { return *spill_; }
  const std::vector<int>& back() const { return back_; }
  int pieces() const { return kSpilledUnits * kPiecesOfUnit; }
  std::vector<std::byte> content(int piece, int pass) const {
    return aio::random_bytes(
        piece_bytes_, static_cast<std::uint64_t>(piece) + 1000 * static_cast<std::uint64_t>(pass));
  }

  Status out(int pass) {
    for (int piece = 0; piece < pieces(); ++piece) {
      SLUICE_ASSIGN_OR_RETURN(const auto place, spill_->begin(piece));
      const auto bytes = content(piece, pass);
      std::memcpy(place.data(), bytes.data(), bytes.size());
      spill_->write(piece);
    }
    return {};
  }
  Status back(int pass) {
    spill_->expect(back_);
    for (const int piece : back_) {
      SLUICE_ASSIGN_OR_RETURN(const auto data, spill_->take(piece));
      const auto bytes = content(piece, pass);
      EXPECT_TRUE(std::equal(data.begin(), data.end(), bytes.begin(), bytes.end()))
          << "piece " << piece << " of pass " << pass;
      spill_->release(piece);
    }
    return {};
  }
  Status passes(int count) {
    for (int pass = 0; pass < count; ++pass) {
      SLUICE_RETURN_IF_ERROR(out(pass));
      SLUICE_RETURN_IF_ERROR(back(pass));
    }
    return spill_->drain();
  }

 private:
  const std::uint64_t piece_bytes_;
  std::unique_ptr<aio::IoQueue> queue_;
  InputSpill::Options options_;
  std::unique_ptr<InputSpill> spill_;
  std::vector<int> back_;
};

TEST(InputSpill, TakesWhatItsFootprintSays) {
  const InputSpill::Footprint small = InputSpill::footprint(1, 100);
  EXPECT_EQ(small.buffers, 2);
  EXPECT_EQ(small.nvme_bytes, 8192U);
  EXPECT_EQ(small.buffer_bytes, 2 * 8192U);
  const InputSpill::Footprint large = InputSpill::footprint(1000, std::uint64_t{1} << 30);
  EXPECT_EQ(large.buffers, 4);
  EXPECT_EQ(large.nvme_bytes, 1000 * ((std::uint64_t{1} << 30) + 4096));
  EXPECT_EQ(InputSpill::footprint(0, 100).buffer_bytes, 0U);
  const InputSpill::Footprint usual = InputSpill::footprint(224, 8 * 1024 * 3584 * 2);
  EXPECT_GE(usual.buffers, 8);
  EXPECT_LE(usual.buffer_bytes, 520 * kMiB);
}

TEST(InputSpill, RefusesPiecesThatNoRecordHolds) {
  InputSpill::Options options{.units = {"h.0"},
                              .pieces_of_unit = 1,
                              .piece_bytes = std::uint64_t{9} << 30,
                              .store = {.paths = {"/d"}, .run = "inputs"},
                              .hook = {}};
  EXPECT_EQ(InputSpill::check(options).error().code(), ErrorCode::kInvalidArgument);
  options.piece_bytes = std::uint64_t{7} << 30;
  EXPECT_OK(InputSpill::check(options));
}

// Everything is written to the drive and, except for data still in a buffer, read once per pass.
TEST(InputSpill, WritesOnceAndReadsOnce) {
  aio::VirtualLoop loop;
  aio::SimDrive drive(loop, {.half_duplex = false, .latency_jitter = 0.5});
  ASSERT_OK(drive.files().make_directories("/d"));
  SpillUnderTest test(drive, "/d");
  ASSERT_OK(test.passes(3));
  const std::uint64_t image = InputSpill::footprint(1, 5000).nvme_bytes;
  const auto pieces = static_cast<std::uint64_t>(test.pieces());
  constexpr std::uint64_t kBuffers = kSpillBuffers;
  const InputSpill::Stats stats = test.spill().stats();
  EXPECT_EQ(stats.bytes_written, 3 * pieces * image);
  EXPECT_LE(stats.bytes_read, 3 * pieces * image);
  EXPECT_GE(stats.bytes_read, 3 * (pieces - kBuffers) * image);
}

// The order of a run on a GPU: copies fill buffers later, in order, and still use the data when
// more is requested; both end on another thread.
TEST(InputSpill, IsFilledAndReadByAnotherThread) {
  aio::TemporaryFolder folder;
  const auto backend = aio::make_backend_or_die(aio::BackendKind::kPosix);
  SpillUnderTest test(*backend, folder.path(), /*piece_bytes=*/40'000);
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<std::function<void()>> jobs;
  bool over = false;
  std::thread copies([&] {
    std::unique_lock lock(mutex);
    for (std::size_t next = 0;; ++next) {
      changed.wait(lock, [&] { return next < jobs.size() || over; });
      if (next == jobs.size()) return;
      const auto job = jobs[next];
      lock.unlock();
      job();
      lock.lock();
    }
  });
  const auto later = [&](std::function<void()> job) {
    const std::lock_guard lock(mutex);
    jobs.push_back(std::move(job));
    changed.notify_one();
  };
  for (int pass = 0; pass < 3; ++pass) {
    for (int piece = 0; piece < test.pieces(); ++piece) {
      const auto place = test.spill().begin(piece);
      ASSERT_OK(place);
      later([&test, piece, pass, to = *place] {
        const auto bytes = test.content(piece, pass);
        std::memcpy(to.data(), bytes.data(), bytes.size());
        test.spill().write(piece);
      });
    }
    test.spill().expect(test.back());
    for (const int piece : test.back()) {
      const auto data = test.spill().take(piece);
      ASSERT_OK(data);
      later([&test, piece, pass, from = *data] {
        const auto bytes = test.content(piece, pass);
        EXPECT_TRUE(std::equal(from.begin(), from.end(), bytes.begin(), bytes.end()));
        test.spill().release(piece);
      });
    }
  }
  later([&] { over = true; });
  copies.join();
}

// ---- faults -------------------------------------------------------------------------------------

int run_spill_matrix(aio::IoBackend& inner, const std::string& folder, std::uint64_t stride) {
  const auto live = [&](const FaultPlan& plan, bool persistent) {
    aio::FaultBackend faults(inner, {});
    SpillUnderTest test(faults, folder);
    faults.set_plan(plan);
    const Status ended = test.passes(2);
    const FaultLife life{.met = faults.injected() > 0, .failed = !ended.ok()};
    faults.set_plan({});
    if (ended.ok()) return life;
    EXPECT_TRUE(persistent) << ended.error().message();
    EXPECT_THAT(ended.error().message(), testing::HasSubstr("ing record h."));
    EXPECT_THAT(ended.error().message(), testing::HasSubstr(" input["));
    // Even though the drive works again.
    EXPECT_EQ(test.spill().drain().error().message(), ended.error().message());
    return life;
  };
  return run_fault_matrix("faults of spilled inputs", inner.name(), stride, live);
}

TEST(InputSpillFaults, EveryTransferMayFailOnASimulatedDrive) {
  aio::VirtualLoop loop;
  aio::SimDrive drive(loop, {.half_duplex = false, .latency_jitter = 0.5});
  ASSERT_OK(drive.files().make_directories("/d"));
  EXPECT_GT(run_spill_matrix(drive, "/d", kFaultStrideSimulated),
            kFaultStrideSimulated == 1 ? 20 : 4);
}

class InputSpillFaultsOn : public aio::EveryBackend {};

TEST_P(InputSpillFaultsOn, EveryTransferMayFailOnRealFiles) {
  aio::TemporaryFolder folder;
  const auto inner = backend(2, 8);
  EXPECT_GT(run_spill_matrix(*inner, folder.path(), kFaultStrideReal), 3);
}

// A drive that returns other bytes than were written: the error names the piece, and the bytes are
// never used.
TEST_P(InputSpillFaultsOn, DamageIsAnErrorThatNamesThePiece) {
  aio::TemporaryFolder folder;
  const auto inner = backend(2, 8);
  SpillUnderTest test(*inner, folder.path());
  ASSERT_OK(test.out(0));
  ASSERT_OK(test.spill().drain());
  std::string records;
  for (const auto& it : std::filesystem::recursive_directory_iterator(folder.path()))
    if (it.path().filename().string().starts_with("records")) records = it.path().string();
  ASSERT_FALSE(records.empty());
  constexpr int kDamaged = 7;
  const std::uint64_t image = InputSpill::footprint(1, 5000).nvme_bytes;
  std::fstream file(records, std::ios::in | std::ios::out | std::ios::binary);
  file.seekg(static_cast<std::streamoff>(kDamaged * image + 4096 + 4999));
  const auto was = static_cast<char>(file.get());
  file.seekp(static_cast<std::streamoff>(kDamaged * image + 4096 + 4999));
  file.put(static_cast<char>(was ^ 1));
  file.close();
  test.spill().expect(test.back());
  Status ended;
  int taken = 0;
  for (const int piece : test.back()) {
    const auto data = test.spill().take(piece);
    if (!data.ok()) {
      ended = data.error();
      EXPECT_EQ(piece, kDamaged);
      break;
    }
    ++taken;
    test.spill().release(piece);
  }
  ASSERT_FALSE(ended.ok());
  EXPECT_GT(taken, 10);
  EXPECT_EQ(ended.error().code(), ErrorCode::kCorrupt);
  EXPECT_THAT(ended.error().message(), testing::HasSubstr("checking record h.2 input[5000.."));
}

SLUICE_TEST_EVERY_BACKEND(InputSpillFaultsOn);

}  // namespace
}  // namespace sluice::offload
