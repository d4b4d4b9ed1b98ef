// A store with a pipeline over it, and a byte-for-byte model of its records.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "aio/pinned_pool.h"
#include "swap/state_store.h"
#include "swap/swap_pipeline.h"
#include "tests/aio/backends_under_test.h"
#include "tests/swap/store_under_test.h"

namespace sluice::swap {

inline std::vector<RecordSpec> equal_records(int count, std::uint64_t payload_bytes) {
  std::vector<RecordSpec> records;
  for (int i = 0; i < count; ++i)
    records.push_back({"r" + std::to_string(i), 0, payload_bytes, payload_bytes});
  return records;
}

struct SwapUnderTestOptions {
  SwapPipeline::Options pipeline;
  std::vector<RecordSpec> records = test_records();
  aio::IoQueue::Options queue{.block_bytes = 64 * kKiB, .queue_depth = 16};
  bool two_queues = true;
  int spare_buffers = 0;  // in the pool, in addition to the pipeline's
  int threads = 1;
};

class SwapUnderTest {
 public:
  using Options = SwapUnderTestOptions;

  // Every record holds version 1, in generation 1.
  SwapUnderTest(aio::IoBackend& backend, const std::string& folder, const Options& options)
      : reads_(aio::make_queue_or_die(backend, options.queue)),
        writes_(aio::make_queue_or_die(backend, options.queue)),
        executor_(std::move(aio::make_executor(options.threads)).value()),
        options_(options) {
    StateStore::Options store;
    store.paths = {folder};
    store.run = "test";
    store.chunk_bytes = 64 * kKiB;
    auto made = StateStore::create({*reads_, options.two_queues ? *writes_ : *reads_}, store,
                                   options.records);
    if (!made.ok()) throw std::runtime_error(made.error().message());
    store_ = std::move(*made);
    user_ = std::make_unique<StoreUser>(*store_, *executor_);
    for (RecordId id = 0; id < store_->record_count(); ++id) {
      user_->write(id, 1);
      content_.push_back(StoreUser::content(*store_, id, 1));
      generation_.push_back(1);
    }
    aio::PinnedPool::Options pool;
    pool.buffer_bytes = store_->layout().largest_image_bytes();
    pool.capacity = options.pipeline.buffers + options.spare_buffers;
    pool.huge_pages = false;
    pool.lock = aio::MemoryLock::kNone;
    pool_ = std::move(aio::PinnedPool::create(pool)).value();
    start_pipeline();
  }
  ~SwapUnderTest() {
    pipeline_.reset();
    EXPECT_TRUE(store_->remove().ok());
  }
  SwapUnderTest(const SwapUnderTest&) = delete;
  SwapUnderTest& operator=(const SwapUnderTest&) = delete;

  SwapPipeline& pipeline() { return *pipeline_; }
  StateStore& store() { return *store_; }
  StoreUser& user() { return *user_; }
  aio::PinnedPool& pool() { return *pool_; }
  aio::Executor& executor() { return *executor_; }
  aio::IoStats read_stats() const { return reads_->stats(); }
  aio::IoStats write_stats() const {
    return options_.two_queues ? writes_->stats() : reads_->stats();
  }

  void start_pipeline() {
    auto made = SwapPipeline::create(*store_, *pool_, options_.pipeline);
    if (!made.ok()) throw std::runtime_error(made.error().message());
    pipeline_ = std::move(*made);
    reads_->reset_stats();
    writes_->reset_stats();
  }
  void stop_pipeline() { pipeline_.reset(); }

  std::vector<RecordId> all_records() const {
    std::vector<RecordId> all(store_->record_count());
    for (RecordId id = 0; id < all.size(); ++id) all[id] = id;
    return all;
  }

  // The loan is for this record and has the model's content and generation.
  void expect_as_modelled(const SwapPipeline::Loan& loan, RecordId record) {
    ASSERT_EQ(loan.record(), record);
    const auto payload = loan.image().payload();
    ASSERT_TRUE(aio::same_bytes(payload, content_[record])) << store_->name(record);
    ASSERT_EQ(loan.next_generation(), generation_[record] + 1);
    if (loan.check_generation()) {
      ASSERT_EQ(*loan.check_generation(), generation_[record]);
    }
  }
  // Changes bytes like a kernel would. The change depends on old content, place and version, so a
  // change that is lost, doubled, or applied to other bytes shows.
  Status change(SwapPipeline::Loan& loan) {
    const std::uint64_t chunk_bytes = loan.image().shape().chunk_bytes;
    const std::uint64_t version = loan.next_generation();
    return loan.work(*executor_, [&](int chunk, std::span<std::byte> data) {
      const std::uint64_t first = static_cast<std::uint64_t>(chunk) * chunk_bytes;
      aio::change_bytes(data, first, version);
    });
  }
  // Changes the model as if the change of `record` had been written.
  void change_model(RecordId record) {
    const std::uint64_t version = ++generation_[record];
    aio::change_bytes(content_[record], 0, version);
  }
  std::uint64_t model_generation(RecordId record) const { return generation_[record]; }

  // next(), compare, change, write.
  Status step(RecordId record) {
    SLUICE_ASSIGN_OR_RETURN(SwapPipeline::Loan loan, pipeline_->next());
    expect_as_modelled(loan, record);
    SLUICE_RETURN_IF_ERROR(change(loan));
    change_model(record);
    pipeline_->write(std::move(loan));
    return {};
  }
  Status pass(std::span<const RecordId> records) {
    pipeline_->expect(records);
    for (const RecordId record : records) SLUICE_RETURN_IF_ERROR(step(record));
    return pipeline_->drain();
  }

  // Reads past the pipeline: the record on the disk is whole and equals the model.
  void expect_on_disk(RecordId id) {
    ASSERT_EQ(store_->generation(id), generation_[id]) << store_->name(id);
    ASSERT_OK(user_->read(id));
    const auto payload = user_->image(id).subspan(kRecordHeaderBytes, content_[id].size());
    ASSERT_TRUE(aio::same_bytes(payload, content_[id])) << store_->name(id);
  }
  // The same for an older generation.
  void expect_on_disk_as_of(RecordId id, std::uint64_t generation) {
    std::vector<std::byte> content = StoreUser::content(*store_, id, 1);
    for (std::uint64_t version = 2; version <= generation; ++version)
      aio::change_bytes(content, 0, version);
    ASSERT_LE(generation, generation_[id]) << store_->name(id);
    ASSERT_OK(user_->read(id));
    const auto payload = user_->image(id).subspan(kRecordHeaderBytes, content.size());
    ASSERT_TRUE(aio::same_bytes(payload, content)) << store_->name(id);
  }
  void expect_all_on_disk() {
    for (RecordId id = 0; id < store_->record_count(); ++id) expect_on_disk(id);
  }

 private:
  std::unique_ptr<aio::IoQueue> reads_;
  std::unique_ptr<aio::IoQueue> writes_;
  std::unique_ptr<aio::Executor> executor_;
  const Options options_;
  std::unique_ptr<StateStore> store_;
  std::unique_ptr<StoreUser> user_;
  std::unique_ptr<aio::PinnedPool> pool_;
  std::unique_ptr<SwapPipeline> pipeline_;
  std::vector<std::vector<std::byte>> content_;
  std::vector<std::uint64_t> generation_;
};

}  // namespace sluice::swap
