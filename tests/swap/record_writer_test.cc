#include "swap/record_writer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "aio/fault_backend.h"
#include "aio/log.h"
#include "aio/sim_drive.h"
#include "tests/swap/swap_under_test.h"

namespace sluice::swap {
namespace {

using testing::ContainsRegex;
using testing::HasSubstr;

Status write_all(SwapUnderTest& swap, RecordWriter& writer, std::uint64_t version) {
  for (const RecordId id : swap.all_records()) {
    SLUICE_ASSIGN_OR_RETURN(const std::span<std::byte> payload, writer.begin(id));
    const auto content = StoreUser::content(swap.store(), id, version);
    EXPECT_EQ(payload.size(), content.size());
    std::ranges::copy(content, payload.begin());
    SLUICE_RETURN_IF_ERROR(writer.write(swap.executor()));
  }
  return writer.finish();
}

class RecordWriterOn : public aio::EveryBackend {};

TEST_P(RecordWriterOn, WritesEveryRecordWithItsNextGeneration) {
  const aio::TemporaryFolder folder;
  const auto backend = this->backend();
  for (const int buffers : {1, 2, 4}) {
    SwapUnderTest swap(*backend, folder.path(), {.pipeline = {.buffers = 4}, .threads = 2});
    swap.stop_pipeline();
    {
      auto writer = RecordWriter::create(swap.store(), swap.pool(), buffers);
      ASSERT_OK(writer);
      EXPECT_EQ(swap.pool().free_count(), 4 - buffers);
      ASSERT_OK(write_all(swap, **writer, 7));
      ASSERT_OK(write_all(swap, **writer, 8));
    }
    EXPECT_EQ(swap.pool().free_count(), 4);
    swap.user().expect_all(8);
    for (const RecordId id : swap.all_records()) EXPECT_EQ(swap.store().generation(id), 3U);
  }
}
SLUICE_TEST_EVERY_BACKEND(RecordWriterOn);

TEST(RecordWriter, KeepsTheDriveBusyWhileTheNextRecordIsMade) {
  aio::VirtualLoop loop;
  aio::SimDrive drive(loop, {});
  ASSERT_OK(drive.files().make_directories("/nvme"));
  SwapUnderTest swap(drive, "/nvme", {.pipeline = {.buffers = 3}});
  swap.stop_pipeline();
  const auto writer = RecordWriter::create(swap.store(), swap.pool(), 3);
  for (const RecordId id : {0U, 1U, 2U}) {
    ASSERT_OK((*writer)->begin(id));
    ASSERT_OK((*writer)->write(swap.executor()));
    EXPECT_GT(drive.ops_in_flight(), static_cast<int>(id));
  }
  ASSERT_OK((*writer)->finish());
  EXPECT_EQ(drive.ops_in_flight(), 0);
}

TEST(RecordWriter, EndsWithTheFirstErrorAndNamesItsRecord) {
  log::set_sink([](log::Level, std::string_view) {});
  aio::VirtualLoop loop;
  aio::SimDrive drive(loop, {});
  ASSERT_OK(drive.files().make_directories("/nvme"));
  aio::FaultBackend faults(drive, {});
  SwapUnderTest swap(faults, "/nvme", {.pipeline = {.buffers = 2}});
  swap.stop_pipeline();
  {
    const auto writer = RecordWriter::create(swap.store(), swap.pool(), 2);
    faults.set_plan(aio::FaultPlan::of({.fault = aio::FaultKind::kEio, .persistent = true}));
    const Status written = write_all(swap, **writer, 5);
    faults.set_plan({});
    ASSERT_FALSE(written.ok());
    EXPECT_THAT(written.error().message(), HasSubstr("writing record h.0[0..30000)"));
    EXPECT_EQ((*writer)->begin(4).status().error().message(), written.error().message());
  }
  EXPECT_EQ(swap.pool().free_count(), 2);
  log::set_sink({});
}

TEST(RecordWriter, TakesItsBuffersAtOnceOrNone) {
  aio::VirtualLoop loop;
  aio::SimDrive drive(loop, {});
  ASSERT_OK(drive.files().make_directories("/nvme"));
  SwapUnderTest swap(drive, "/nvme", {.pipeline = {.buffers = 2}, .spare_buffers = 1});
  const auto writer = RecordWriter::create(swap.store(), swap.pool(), 2);
  ASSERT_FALSE(writer.ok());
  EXPECT_THAT(writer.error().message(), ContainsRegex("2 buffers.*1 of the pool"));
  EXPECT_EQ(swap.pool().free_count(), 1);
}

}  // namespace
}  // namespace sluice::swap
