#include "offload/state/state_tiles.h"

#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "aio/page_memory.h"
#include "tests/offload/adamw_case.h"

namespace sluice::offload {
namespace {

constexpr ParamForm kForms[] = {ParamForm::kSplit, ParamForm::kFp32AndFp16, ParamForm::kFp32};

TEST(StateTiles, TakeTheBytesThatTheFormsNeed) {
  EXPECT_EQ(tile_bytes(ParamForm::kSplit), 640U * 1024);
  EXPECT_EQ(tile_bytes(ParamForm::kFp32AndFp16), 768U * 1024);
  EXPECT_EQ(tile_bytes(ParamForm::kFp32), 512U * 1024);
  EXPECT_EQ(state_bytes(ParamForm::kSplit, 2 * kTileElements), 2U * 640 * 1024);
  // One element more: a line of 64 bytes for each of its fields.
  EXPECT_EQ(state_bytes(ParamForm::kSplit, kTileElements + 1), 640U * 1024 + 3 * 64);
  EXPECT_EQ(state_bytes(ParamForm::kFp32AndFp16, 17), 3U * 128);
  EXPECT_EQ(state_bytes(ParamForm::kFp32, 16), 2U * 64);
}

TEST(StateTiles, LieFieldBehindFieldWithinTheirBytes) {
  const auto memory = aio::PageMemory::map(tile_bytes(ParamForm::kFp32AndFp16), false);
  std::byte* const begin = memory->data();
  const StateTile whole = state_tile(ParamForm::kSplit, begin, kTileElements);
  EXPECT_EQ(reinterpret_cast<std::byte*>(whole.lo), begin);
  EXPECT_EQ(reinterpret_cast<std::byte*>(whole.m), begin + 128 * 1024);
  EXPECT_EQ(reinterpret_cast<std::byte*>(whole.v), begin + 384 * 1024);
  EXPECT_EQ(whole.master, nullptr);
  const StateTile fp16 = state_tile(ParamForm::kFp32AndFp16, begin, 100);
  EXPECT_EQ(reinterpret_cast<std::byte*>(fp16.master), begin);
  EXPECT_EQ(reinterpret_cast<std::byte*>(fp16.m), begin + 448);
  EXPECT_EQ(reinterpret_cast<std::byte*>(fp16.v), begin + 896);
  EXPECT_EQ(fp16.lo, nullptr);
  const StateTile fp32 = state_tile(ParamForm::kFp32, begin, 100);
  EXPECT_EQ(reinterpret_cast<std::byte*>(fp32.m), begin);
  EXPECT_EQ(reinterpret_cast<std::byte*>(fp32.v), begin + 448);
  EXPECT_EQ(fp32.master, nullptr);
}

// Whatever is packed comes back, and lies where a kernel looks for it.
TEST(StateTiles, PackAndUnpackKeepEveryBit) {
  constexpr std::size_t kElements = 10'007;
  AdamwCase given(kElements);
  given.fill(3);
  for (float& x : given.master) x = join_master(split_master(x));  // canonical NaNs
  for (const ParamForm form : kForms) {
    auto memory = aio::PageMemory::map(state_bytes(form, kElements), false);
    std::vector<float> param(kElements);
    const AdamwArrays arrays =
        tile_arrays(form, state_tile(form, memory->data(), kElements), param.data());
    pack_state({.master = given.master, .m = given.m, .v = given.v}, arrays);
    for (std::size_t i = 0; i < kElements; ++i) {
      const SplitMaster halves = split_master(given.master[i]);
      if (form == ParamForm::kSplit) {
        ASSERT_EQ(arrays.param16[i], halves.hi);
        ASSERT_EQ(arrays.lo[i], halves.lo);
      } else if (form == ParamForm::kFp32AndFp16) {
        ASSERT_EQ(arrays.param16[i], fp16_from_float(given.master[i]));
      }
    }
    std::vector<float> alone(kElements);
    pack_parameters(form, given.master, alone.data());
    const void* const packed =
        form == ParamForm::kFp32 ? static_cast<const void*>(arrays.master) : arrays.param16;
    EXPECT_EQ(0, std::memcmp(alone.data(), packed,
                             kElements * static_cast<std::size_t>(param_bytes_per_element(form))));
    AdamwCase back = given;
    for (auto* array : {&back.master, &back.m, &back.v}) std::fill(array->begin(), array->end(), 0);
    unpack_state(arrays, {.master = back.master, .m = back.m, .v = back.v});
    EXPECT_EQ(given.difference(back), "");
  }
}

}  // namespace
}  // namespace sluice::offload
