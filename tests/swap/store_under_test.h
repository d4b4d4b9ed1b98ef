// A small store's records, and a user that writes predictable content.
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <stdexcept>
#include <thread>
#include <vector>

#include "aio/page_memory.h"
#include "swap/record_work.h"
#include "swap/state_store.h"
#include "tests/aio/backends_under_test.h"

namespace sluice::swap {

// Several sizes: odd ones, one of less than a chunk, two equal ones.
inline std::vector<RecordSpec> test_records() {
  return {{"h.0", 0, 30'000, 300'000},
          {"h.0", 30'000, 1000, 10'001},
          {"h.1", 0, 20'000, 200'000},
          {"h.1", 20'000, 13'107, 131'072},
          {"ln_f", 0, 30'000, 300'000}};
}

class StoreUser {
 public:
  StoreUser(StateStore& store, aio::Executor& executor)
      : store_(store),
        executor_(executor),
        memory_(std::move(aio::PageMemory::map(store.layout().largest_image_bytes(),
                                               /*huge_pages=*/false))
                    .value()) {}

  static std::vector<std::byte> content(const StateStore& store, RecordId id,
                                        std::uint64_t version) {
    return aio::random_bytes(store.shape(id).payload_bytes, 1000 * version + id);
  }
  Status try_write(RecordId id, std::uint64_t version) {
    const auto bytes = content(store_, id, version);
    std::memcpy(image(id).data() + kRecordHeaderBytes, bytes.data(), bytes.size());
    const std::uint64_t next = store_.next_generation(id);
    RecordImage record(store_.shape(id), image(id));
    SLUICE_RETURN_IF_ERROR(work_on_record(executor_, record, {.seal = next}));
    return transfer([&](RecordIo& io) { store_.write(io, id, next, image(id)); });
  }
  void write(RecordId id, std::uint64_t version) { ASSERT_OK(try_write(id, version)); }
  void write_all(std::uint64_t version) {
    for (RecordId id = 0; id < store_.record_count(); ++id) write(id, version);
  }
  Status read(RecordId id) { return store_.read_checked(executor_, id, image(id)); }
  bool holds(RecordId id, std::uint64_t version) {
    const auto bytes = content(store_, id, version);
    return std::memcmp(image(id).data() + kRecordHeaderBytes, bytes.data(), bytes.size()) == 0;
  }
  void expect_all(std::uint64_t version) {
    for (RecordId id = 0; id < store_.record_count(); ++id) {
      ASSERT_OK(read(id));
      ASSERT_TRUE(holds(id, version)) << store_.name(id);
    }
  }

  // Bypasses the store, like a faulty drive.
  std::vector<std::byte> image_on_disk(RecordId id) {
    const Status done = transfer([&](RecordIo& io) { store_.read(io, id, image(id)); });
    EXPECT_TRUE(done.ok());
    return {image(id).begin(), image(id).end()};
  }
  void put_on_disk(RecordId id, const std::vector<std::byte>& bytes) {
    std::memcpy(image(id).data(), bytes.data(), bytes.size());
    const std::uint64_t next = store_.next_generation(id);
    ASSERT_OK(transfer([&](RecordIo& io) { store_.write(io, id, next, image(id)); }));
  }

  std::span<std::byte> image(RecordId id) {
    return memory_.bytes().first(store_.shape(id).image_bytes());
  }

 private:
  template <typename Start>
  Status transfer(const Start& start) {
    RecordIo io;
    std::atomic<bool> ended{false};
    io.set_callback(
        [](RecordIo&, void* context) noexcept {
          static_cast<std::atomic<bool>*>(context)->store(true);
        },
        &ended);
    start(io);
    while (!ended) {
      const aio::PumpResult pumped = store_.pump();
      if (pumped == aio::PumpResult::kThreaded) std::this_thread::yield();
      if (pumped == aio::PumpResult::kIdle && !ended)
        throw std::logic_error("virtual time ran out of events while a record was waited for");
    }
    return io.status();
  }

  StateStore& store_;
  aio::Executor& executor_;
  aio::PageMemory memory_;
};

}  // namespace sluice::swap
