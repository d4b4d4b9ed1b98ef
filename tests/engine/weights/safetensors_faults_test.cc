// Weights are written and read with each operation failing in turn, and with power losses. A name
// holds the old file or the new one, whole, and reading gives the right values or an error.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "aio/fault_backend.h"
#include "aio/log.h"
#include "aio/sim_drive.h"
#include "aio/small_file.h"
#include "aio/virtual_loop.h"
#include "tests/engine/weights/weights_under_test.h"
#include "tests/sanitized.h"

namespace sluice::engine {
namespace {

using aio::FaultBackend;
using aio::FaultKind;
using aio::FaultPlan;

constexpr std::uint64_t kStride = sweep_stride(5);

const std::vector<TensorSpec> kTensors = {
    {"a", DType::kF32, {9000}}, {"b", DType::kBF16, {7001}}, {"c", DType::kF16, {5}}};
constexpr std::uint64_t kMaxFileBytes = 1 << 20;

struct Machine {
  Machine() {
    EXPECT_OK(drive.files().make_directories("/d"));
    EXPECT_OK(drive.files().sync_directory("/"));
    EXPECT_OK(aio::write_small_file(*queue, "/d/m.safetensors", "old"));
  }
  // The content that a reader finds at the name.
  std::string content() {
    const auto text = aio::read_small_file(*queue, "/d/m.safetensors", kMaxFileBytes);
    EXPECT_OK(text);
    return text.ok() ? *text : "";
  }
  aio::VirtualLoop loop;
  aio::SimDrive drive{loop, {}};
  std::unique_ptr<aio::IoQueue> queue = aio::make_queue_or_die(drive, {.block_bytes = 8192});
};

Status write_all(aio::IoQueue& queue) {
  SLUICE_ASSIGN_OR_RETURN(
      const auto writer,
      SafetensorsWriter::create(queue, {.path = "/d/m.safetensors", .staging_bytes = 1}, kTensors));
  return write_tensors(*writer, kTensors, 4000);
}

Status read_all(aio::IoQueue& queue) {
  SLUICE_ASSIGN_OR_RETURN(const auto reader,
                          SafetensorsReader::open(queue, "/d/m.safetensors", {.staging_bytes = 1}));
  return check_tensors(*reader, kTensors, 100'000);
}

class SafetensorsFaults : public testing::Test {
 protected:
  void SetUp() override {
    log::set_sink([](log::Level, std::string_view) {});  // retries cause warnings
  }
  void TearDown() override { log::set_sink({}); }
};

TEST_F(SafetensorsFaults, LeaveTheOldFileOrTheNewOneAndNothingBesides) {
  Machine undisturbed;
  ASSERT_OK(write_all(*undisturbed.queue));
  const std::string whole = undisturbed.content();
  int failed = 0;
  int written = 0;
  for (std::size_t kind = 0; kind < aio::kFaultKinds; ++kind) {
    for (const bool persistent : {false, true}) {
      for (std::uint64_t nth = 1;; nth += kStride) {
        const auto fault = static_cast<FaultKind>(kind);
        SCOPED_TRACE(std::string(to_string(fault)) + " at operation " + std::to_string(nth));
        Machine machine;
        FaultBackend faults(machine.drive, FaultPlan::of({.fault = fault,
                                                          .nth = nth,
                                                          .persistent = persistent,
                                                          .targets = aio::all_fault_targets()}));
        Status status;
        {
          const auto queue = aio::make_queue_or_die(faults, {.block_bytes = 8192});
          status = write_all(*queue);
        }
        const std::string content = machine.content();
        ASSERT_TRUE(content == whole || (!status.ok() && content == "old"));
        if (!status.ok()) {
          EXPECT_THAT(status.error().message(), testing::HasSubstr("/d"));
        }
        ++(status.ok() ? written : failed);
        ASSERT_OK(write_all(*machine.queue));  // the remains do not hinder a write
        ASSERT_EQ(machine.content(), whole);
        ASSERT_OK(read_all(*machine.queue));
        if (faults.injected() == 0) break;
      }
    }
  }
  EXPECT_GT(failed, static_cast<int>(100 / kStride));
  EXPECT_GT(written, static_cast<int>(50 / kStride));
}

TEST_F(SafetensorsFaults, LeaveTheOldFileOrTheNewOneWhenThePowerGoes) {
  Machine undisturbed;
  ASSERT_OK(write_all(*undisturbed.queue));
  const std::string whole = undisturbed.content();
  int kept_old = 0;
  int got_new = 0;
  for (const auto policy :
       {aio::PowerLoss::kOrdered, aio::PowerLoss::kAny, aio::PowerLoss::kDropUnsynced,
        aio::PowerLoss::kKeepAll, aio::PowerLoss::kTearLast}) {
    for (std::uint64_t seed = 1; seed <= 3; ++seed) {
      for (std::uint64_t nth = 1;; nth += kStride) {
        SCOPED_TRACE("seed " + std::to_string(seed) + ", operation " + std::to_string(nth));
        Machine machine;
        machine.drive.fail_after_ops(nth, policy, seed);
        const Status status = write_all(*machine.queue);
        const bool was_cut = !machine.drive.powered();
        machine.drive.power_loss(policy, seed);
        machine.loop.run();
        machine.drive.restore_power();
        const std::string content = machine.content();
        ASSERT_TRUE(content == whole || (!status.ok() && content == "old"));
        ++(content == whole ? got_new : kept_old);
        if (!was_cut) break;
      }
    }
  }
  EXPECT_GT(kept_old, static_cast<int>(100 / kStride));
  EXPECT_GT(got_new, 10);
}

TEST_F(SafetensorsFaults, NeverReadAWrongWeight) {
  int failed = 0;
  for (std::size_t kind = 0; kind < aio::kFaultKinds; ++kind) {
    for (const bool persistent : {false, true}) {
      for (std::uint64_t nth = 1;; nth += kStride) {
        Machine machine;
        ASSERT_OK(write_all(*machine.queue));
        FaultBackend faults(machine.drive, FaultPlan::of({.fault = static_cast<FaultKind>(kind),
                                                          .nth = nth,
                                                          .persistent = persistent,
                                                          .targets = aio::all_fault_targets()}));
        const auto queue = aio::make_queue_or_die(faults, {.block_bytes = 8192});
        const Status status = read_all(*queue);  // and the values read were compared
        failed += status.ok() ? 0 : 1;
        if (faults.injected() == 0) {
          ASSERT_OK(status);
          break;
        }
      }
    }
  }
  EXPECT_GT(failed, static_cast<int>(20 / kStride));
}

}  // namespace
}  // namespace sluice::engine
