// The offloader takes the memory that memory_plan() predicts, as measured in the process itself.
#include <gtest/gtest.h>

#include <fstream>
#include <utility>

#include "offload/adamw/adamw.h"
#include "offload/state/optimizer_offloader.h"
#include "tests/aio/backends_under_test.h"
#include "tests/offload/count_allocations.h"

namespace sluice::offload {
namespace {

// In addition to the two mappings: the lists of units, sub-groups and records (some 100 bytes
// each), the pipeline's slots, file names, and pages that the allocator reserves for them.
constexpr std::int64_t kMetadataBytes = 512 * 1024;

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kSanitized = true;
#else
constexpr bool kSanitized = false;
#endif

struct ProcessMemory {
  std::int64_t resident_bytes = 0;  // anonymous; includes huge pages of the machine's reserve
  std::int64_t locked_bytes = 0;
  std::int64_t pinned_bytes = 0;

  static ProcessMemory now() {
    return {read("RssAnon:") + read("HugetlbPages:"), read("VmLck:"), read("VmPin:")};
  }

 private:
  static std::int64_t read(const std::string& key) {
    std::ifstream status("/proc/self/status");
    std::string word;
    while (status >> word) {
      std::int64_t kib = 0;
      if (word == key && status >> kib) return kib * 1024;
    }
    return 0;
  }
};

// Parameters and gradients, touched before anything is measured.
class PlainSource final : public UnitSource {
 public:
  explicit PlainSource(std::uint64_t elements) : param_(elements, 1), grad_(elements, 1) {}
  Result<UnitArrays> begin(int) override { return UnitArrays{param_.data(), grad_.data()}; }
  void ready(int) noexcept override {}

 private:
  std::vector<std::uint16_t> param_, grad_;
};

class OptimizerOffloaderMemory : public aio::EveryBackend {
 protected:
  OptimizerOffloader::Options options_for(bool huge_pages, bool in_place) const {
    OptimizerOffloader::Options options;
    options.isa = best_isa();
    options.units = {{"h.0", {{0, kElements}}}};
    options.placement =
        place_by_fractions(options.units, 100'001, {.gpu = 0, .cpu = 0.5, .nvme = 0.5}).value();
    options.swap.buffers = 5;
    options.record_elements = kTileElements;
    options.store.paths = {folder_.path()};
    options.store.run = "memory";
    options.huge_pages = huge_pages;
    options.in_place = in_place;
    return options;
  }

  static constexpr std::uint64_t kElements = 6'000'000;
  aio::TemporaryFolder folder_;
};

TEST_P(OptimizerOffloaderMemory, IsWhatThePlanSaysAndDoesNotGrow) {
  if (kSanitized) GTEST_SKIP() << "a sanitizer keeps memory of its own and makes mlock do nothing";
  const auto backend = this->backend();
  const auto queue = aio::make_queue_or_die(*backend, {});
  const auto executor = aio::make_executor(2).value();
  PlainSource source(kElements);
  executor->run(2, [](int) {});  // its threads have allocated their stacks by now
  const AdamwScalars scalars = make_adamw_scalars({}).value();

  for (const auto& [huge_pages, in_place] :
       {std::pair{false, false}, std::pair{true, false}, std::pair{false, true}}) {
    const OptimizerOffloader::Options options = options_for(huge_pages, in_place);
    const auto plan = OptimizerOffloader::memory_plan(options);
    ASSERT_OK(plan);
    EXPECT_EQ(plan->swap_buffer_bytes, 5U * (4096 + tile_bytes({ParamForm::kSplit})) +
                                           (in_place ? 2U * (4096 + 2 * kTileElements) : 0));
    EXPECT_GT(plan->cpu_state_bytes, kElements / 2 * 9);
    const auto planned = static_cast<std::int64_t>(plan->cpu_state_bytes + plan->swap_buffer_bytes);
    const auto buffers = static_cast<std::int64_t>(plan->swap_buffer_bytes);

    const ProcessMemory before = ProcessMemory::now();
    auto offloader =
        OptimizerOffloader::create(options, {queue.get(), queue.get(), executor.get()});
    ASSERT_OK(offloader);
    const ProcessMemory made = ProcessMemory::now();
    EXPECT_GE(made.resident_bytes - before.resident_bytes, planned);
    EXPECT_LE(made.resident_bytes - before.resident_bytes, planned + kMetadataBytes);
    EXPECT_EQ(made.locked_bytes - before.locked_bytes, buffers);
    const bool registered = GetParam() == aio::BackendKind::kUring;
    EXPECT_EQ(made.pinned_bytes - before.pinned_bytes, registered ? buffers : 0);

    ASSERT_OK((*offloader)->restore(source, [](int, const StateSlice&) { return Status(); }));
    const ProcessMemory restored = ProcessMemory::now();
    for (int step = 0; step < 5; ++step) {
      ASSERT_OK((*offloader)->prefetch());
      ASSERT_OK((*offloader)
                    ->step({.groups = {&scalars, 1},
                            .source = &source,
                            .background = true,
                            .keeps_parameters = in_place}));
    }
    ASSERT_OK((*offloader)->drain());
    const ProcessMemory stepped = ProcessMemory::now();
    EXPECT_LE(restored.resident_bytes - made.resident_bytes, 2 << 20);
    EXPECT_LE(stepped.resident_bytes - restored.resident_bytes, kMetadataBytes);
    EXPECT_EQ(stepped.locked_bytes, made.locked_bytes);
    EXPECT_EQ(stepped.pinned_bytes, made.pinned_bytes);
    EXPECT_OK((*offloader)->remove());
    offloader->reset();
    EXPECT_LE(ProcessMemory::now().resident_bytes - before.resident_bytes, 2 << 20);
  }
}

// After a first step, in which the list of expected records grows to its size. One thread, since
// TBB's own allocations do not count.
TEST_P(OptimizerOffloaderMemory, IsNotAllocatedByAStep) {
  if (kSanitized) GTEST_SKIP() << "a sanitizer allocates by itself";
  const auto backend = this->backend();
  const auto queue = aio::make_queue_or_die(*backend, {});
  const auto executor = aio::make_executor(1).value();
  PlainSource source(kElements);
  const AdamwScalars scalars = make_adamw_scalars({}).value();
  auto offloader = OptimizerOffloader::create(options_for(false, true),
                                              {queue.get(), queue.get(), executor.get()});
  ASSERT_OK(offloader);
  ASSERT_OK((*offloader)->restore(source, [](int, const StateSlice&) { return Status(); }));
  const auto whole_step = [&](bool background) -> Status {
    SLUICE_RETURN_IF_ERROR((*offloader)->prefetch());
    SLUICE_RETURN_IF_ERROR((*offloader)
                               ->step({.groups = {&scalars, 1},
                                       .source = &source,
                                       .background = background,
                                       .keeps_parameters = background}));
    SLUICE_RETURN_IF_ERROR((*offloader)->wait_ready(0));
    return (*offloader)->drain();
  };
  for (const bool background : {false, true}) {
    ASSERT_OK(whole_step(background));
    const CountAllocations allocations;
    ASSERT_OK(whole_step(background));
    EXPECT_EQ(allocations.count(), 0) << (background ? "background" : "foreground");
    // A snapshot does allocate, and would be detected.
    ASSERT_OK((*offloader)->snapshot(source, [](int, const StateSlice&) { return Status(); }));
    EXPECT_GT(allocations.count(), 0);
  }
  EXPECT_OK((*offloader)->remove());
}

SLUICE_TEST_EVERY_BACKEND(OptimizerOffloaderMemory);

}  // namespace
}  // namespace sluice::offload
