// memory_plan()'s promises, measured in the process and the file system.
#include <gtest/gtest.h>
#include <malloc.h>

#include <fstream>
#include <string>

#include "tests/offload/params_under_test.h"

namespace sluice::offload {
namespace {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kSanitized = true;
#else
constexpr bool kSanitized = false;
#endif

std::uint64_t status_bytes(const std::string& field) {
  std::ifstream status("/proc/self/status");
  std::string word;
  while (status >> word) {
    if (word != field + ":") continue;
    std::uint64_t kib = 0;
    status >> kib;
    return kib * kKiB;
  }
  ADD_FAILURE() << "no " << field << " in /proc/self/status";
  return 0;
}

class ParamMemoryOn : public aio::EveryBackend {};

TEST_P(ParamMemoryOn, IsWhatThePlanSays) {
  if (kSanitized) GTEST_SKIP() << "sanitizers have memory of their own";
  // Otherwise each thread that allocates maps 64 MiB of addresses for its own heap.
  ASSERT_EQ(::mallopt(M_ARENA_MAX, 1), 1);
  aio::TemporaryFolder folder;
  const auto drive = backend(1, 16);
  const auto queue = aio::make_queue_or_die(*drive, {});
  ParamOffloader::Options options;
  options.units = equal_units(12, 5'000'000);
  for (int i = 0; i < 4; ++i)
    options.units.push_back({"host" + std::to_string(i), 4'000'000, Tier::kCpu});
  options.store.paths = {folder.path()};
  options.store.run = "memory";
  options.lock = aio::MemoryLock::kNone;
  std::uint64_t hooked_bytes = 0;
  options.hook.pin = [&](std::span<std::byte> memory) -> Status {
    hooked_bytes += memory.size();
    return {};
  };
  options.hook.unpin = [&](std::span<std::byte> memory) { hooked_bytes -= memory.size(); };

  const auto plan = ParamOffloader::memory_plan(options);
  ASSERT_OK(plan.status());
  const std::uint64_t image_bytes = 4096 + align_up(5'000'000, 4096);
  EXPECT_EQ(plan->cpu_bytes, 4 * align_up(8'000'000, 4096));
  EXPECT_EQ(plan->buffer_bytes, 3 * image_bytes);
  EXPECT_EQ(plan->nvme_bytes, 12 * image_bytes);

  const std::uint64_t mapped_before = status_bytes("VmSize");
  const std::uint64_t resident_before = status_bytes("VmRSS");
  auto params = std::move(ParamOffloader::create(options, {queue.get(), queue.get()})).value();
  const std::uint64_t promised = plan->cpu_bytes + plan->buffer_bytes;
  EXPECT_EQ(hooked_bytes, promised);
  constexpr std::uint64_t kOther = kMiB;  // the heap, and 2 MiB pages at the ends
  EXPECT_GE(status_bytes("VmSize"), mapped_before + promised);
  EXPECT_LE(status_bytes("VmSize"), mapped_before + promised + kOther);
  EXPECT_GE(status_bytes("VmRSS"), resident_before + promised);
  EXPECT_LE(status_bytes("VmRSS"), resident_before + promised + kOther);

  const std::uint64_t resident_made = status_bytes("VmRSS");
  std::vector<int> order = ascending(16);
  for (int pass = 0; pass < 3; ++pass) {
    params->expect(order);
    for (const int unit : order) {
      const auto lease = params->acquire(unit, pass == 0 ? Access::kReplace : Access::kUpdate);
      ASSERT_OK(lease.status());
      std::ranges::fill(lease->bytes(), std::byte{7});
    }
  }
  ASSERT_OK(params->drain());
  EXPECT_LE(status_bytes("VmRSS"), resident_made + kOther);
  EXPECT_EQ(std::filesystem::file_size(folder.file("sluice-memory/records")), plan->nvme_bytes);
  ASSERT_OK(params->remove());
  params.reset();
  EXPECT_EQ(hooked_bytes, 0U);
  EXPECT_LE(status_bytes("VmSize"), mapped_before + kOther);
}

SLUICE_TEST_EVERY_BACKEND(ParamMemoryOn);

TEST(ParamMemory, SaysWhatItWasTakenFor) {
  ParamOffloader::Options options;
  options.units = equal_units(1, 100, Tier::kCpu);
  options.hook.pin = [](std::span<std::byte>) -> Status {
    return Error(ErrorCode::kOutOfMemory, "the GPU's driver takes no more");
  };
  const auto made = ParamOffloader::create(options, {});
  ASSERT_FALSE(made.ok());
  EXPECT_EQ(made.error().code(), ErrorCode::kOutOfMemory);
  EXPECT_NE(made.error().message().find("parameters of tier cpu"), std::string::npos);
}

}  // namespace
}  // namespace sluice::offload
