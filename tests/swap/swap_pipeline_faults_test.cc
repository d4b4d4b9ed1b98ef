// One pass of a pipeline with each transfer failing in turn, once and permanently. Afterwards each
// record is compared with the model. Records not passed to write() are unchanged, written ones are
// as computed, and only a failed write may leave an unreadable record.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <iostream>

#include "aio/fault_backend.h"
#include "aio/log.h"
#include "aio/sim_drive.h"
#include "tests/sanitized.h"
#include "tests/swap/swap_under_test.h"

namespace sluice::swap {
namespace {

using aio::FaultKind;
using aio::FaultPlan;
using aio::FaultTarget;
using testing::HasSubstr;

constexpr std::uint64_t kSimStride = sweep_stride(7);
constexpr std::uint64_t kRealStride = 11;

constexpr SwapPipeline::Order kOrders[] = {SwapPipeline::Order::kMixed,
                                           SwapPipeline::Order::kBursts};

struct Tally {
  int runs = 0;
  int errors = 0;
  int unreadable = 0;  // records whose write failed
};

class FaultyPass {
 public:
  FaultyPass(aio::IoBackend& inner, const std::string& folder, SwapPipeline::Order order)
      : faults_(inner, {}),
        swap_(faults_, folder,
              {.pipeline = {.buffers = 3, .order = order},
               .records = {{"h.0", 0, 30'000, 30'000},
                           {"h.0", 30'000, 1000, 1001},
                           {"h.1", 0, 40'960, 40'960},
                           {"h.1", 40'960, 70'000, 70'000},
                           {"ln_f", 0, 30'000, 30'000}},
               .queue = {.block_bytes = 16 * kKiB, .queue_depth = 8, .max_retries = 2}}) {}

  // False if the plan's fault did not happen.
  bool run(const FaultPlan& plan, bool persistent, Tally& tally) {
    const std::vector<RecordId> sequence = {0, 1, 2, 3, 4, 4, 0, 3, 2, 1, 0};
    faults_.set_plan(plan);
    const Status ended = pass(sequence);
    const bool met = faults_.injected() > 0;
    faults_.set_plan({});
    if (!ended.ok()) {
      EXPECT_TRUE(persistent) << ended.error().message();
      expect_names_its_record(ended.error());
      EXPECT_EQ(swap_.pipeline().drain().error().message(), ended.error().message());
      ++tally.errors;
    }
    swap_.stop_pipeline();
    EXPECT_EQ(swap_.pool().free_count(), swap_.pool().capacity());
    expect_old_or_new(ended.ok(), tally);
    ++tally.runs;
    return met;
  }

 private:
  Status pass(std::span<const RecordId> sequence) {
    swap_.pipeline().expect(sequence);
    for (const RecordId record : sequence) SLUICE_RETURN_IF_ERROR(swap_.step(record));
    return swap_.pipeline().drain();
  }
  void expect_names_its_record(const Error& error) {
    const std::string& text = error.message();
    bool named = false;
    for (const RecordId id : swap_.all_records())
      named |= text.find("ing record " + swap_.store().name(id) + ": ") != std::string::npos;
    EXPECT_TRUE(named) << text;
    EXPECT_NE(error.code(), ErrorCode::kCancelled) << text;
  }
  void expect_old_or_new(bool all_ok, Tally& tally) {
    for (const RecordId id : swap_.all_records()) {
      const auto on_disk = swap_.store().generation(id);
      if (!on_disk) {
        EXPECT_FALSE(all_ok);
        EXPECT_GT(swap_.model_generation(id), 1U) << "a record that was never written";
        ++tally.unreadable;
        continue;
      }
      swap_.expect_on_disk_as_of(id, *on_disk);
      if (all_ok) {
        EXPECT_EQ(*on_disk, swap_.model_generation(id));
      }
    }
  }

  aio::FaultBackend faults_;
  SwapUnderTest swap_;
};

Tally run_matrix(aio::IoBackend& inner, const std::string& folder, std::uint64_t stride) {
  Tally tally;
  log::set_sink([](log::Level, std::string_view) {});  // warnings about retries
  for (const FaultKind fault : {FaultKind::kEio, FaultKind::kShort, FaultKind::kTornWrite}) {
    for (const SwapPipeline::Order order : kOrders) {
      for (const bool persistent : {false, true}) {
        for (std::uint64_t nth = 1;; nth += stride) {
          SCOPED_TRACE(std::string(to_string(fault)) + " at operation " + std::to_string(nth) +
                       (persistent ? " and from there on" : ""));
          FaultyPass pass(inner, folder, order);
          const FaultPlan plan = FaultPlan::of(
              {.fault = fault, .nth = nth, .persistent = persistent, .path_contains = "/records"});
          if (!pass.run(plan, persistent, tally) || testing::Test::HasFailure()) break;
        }
      }
    }
  }
  log::set_sink({});
  std::cout << "swap faults (" << inner.name() << "): " << tally.runs << " passes, " << tally.errors
            << " ended in an error, 0 hung; " << tally.unreadable
            << " records could not be read, each after its write had failed\n";
  return tally;
}

TEST(SwapPipelineFaults, EveryTransferOfAPassMayFailOnASimulatedDrive) {
  aio::VirtualLoop loop;
  aio::SimDrive drive(loop, {.half_duplex = false, .latency_jitter = 0.5});
  ASSERT_OK(drive.files().make_directories("/d"));
  const Tally tally = run_matrix(drive, "/d", kSimStride);
  EXPECT_GT(tally.errors, kSimStride == 1 ? 20 : 4);
  EXPECT_GT(tally.unreadable, kSimStride == 1 ? 5 : 0);
}

class SwapPipelineFaultsOn : public aio::EveryBackend {};

TEST_P(SwapPipelineFaultsOn, EveryTransferOfAPassMayFailOnRealFiles) {
  aio::TemporaryFolder folder;
  const auto inner = backend(2, 8);
  const Tally tally = run_matrix(*inner, folder.path(), kRealStride);
  EXPECT_GT(tally.errors, 5);
}

SLUICE_TEST_EVERY_BACKEND(SwapPipelineFaultsOn);

// A read fails while another record is on loan, and further ones are ready.
TEST(SwapPipelineFaults, AfterAnErrorNothingIsWrittenAnyMore) {
  aio::VirtualLoop loop;
  aio::SimDrive drive(loop, {});
  ASSERT_OK(drive.files().make_directories("/d"));
  aio::FaultBackend faults(drive, {});
  SwapUnderTest swap(faults, "/d",
                     {.pipeline = {.buffers = 4},
                      .records = equal_records(6, 50'000),
                      .queue = {.max_retries = 0}});
  swap.pipeline().expect(swap.all_records());
  auto loan = swap.pipeline().next();
  ASSERT_OK(loan.status());
  ASSERT_OK(swap.change(*loan));
  ASSERT_OK(swap.step(1));
  faults.set_plan(FaultPlan::of(
      {.fault = FaultKind::kEio, .persistent = true, .targets = {FaultTarget::kRead}}));
  ASSERT_OK(swap.pipeline().next().status());  // frees its buffer, so 4 or 5 is read
  Status failed;
  while (failed.ok() && swap.pipeline().expected() > 0) failed = swap.pipeline().next().status();
  ASSERT_FALSE(failed.ok());
  EXPECT_THAT(failed.error().message(), HasSubstr("reading record r"));
  swap.pipeline().write(std::move(*loan));
  EXPECT_EQ(swap.pipeline().drain().error().message(), failed.error().message());
  EXPECT_EQ(swap.pipeline().next().status().error().message(), failed.error().message());
  faults.set_plan({});
  swap.stop_pipeline();
  EXPECT_EQ(swap.store().generation(0), 1U);
  swap.expect_on_disk(0);
}

}  // namespace
}  // namespace sluice::swap
