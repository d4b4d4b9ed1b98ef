#include "offload/state/state_tiles.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <vector>

#include "aio/page_memory.h"
#include "offload/adamw/moment_rounding.h"
#include "tests/offload/adamw_case.h"

namespace sluice::offload {
namespace {

constexpr StateForm kForms[] = {{ParamForm::kSplit},
                                {ParamForm::kFp32AndFp16},
                                {ParamForm::kFp32},
                                {ParamForm::kSplit, ElementType::kBf16},
                                {ParamForm::kFp32AndFp16, ElementType::kBf16},
                                {ParamForm::kFp32, ElementType::kBf16}};

TEST(StateTiles, TakeTheBytesThatTheFormsNeed) {
  EXPECT_EQ(tile_bytes({ParamForm::kSplit}), 640U * 1024);
  EXPECT_EQ(tile_bytes({ParamForm::kFp32AndFp16}), 768U * 1024);
  EXPECT_EQ(tile_bytes({ParamForm::kFp32}), 512U * 1024);
  EXPECT_EQ(state_bytes({ParamForm::kSplit}, 2 * kTileElements), 2U * 640 * 1024);
  // One more element: a line of 64 bytes for each of its fields.
  EXPECT_EQ(state_bytes({ParamForm::kSplit}, kTileElements + 1), 640U * 1024 + 3 * 64);
  EXPECT_EQ(state_bytes({ParamForm::kFp32AndFp16}, 17), 3U * 128);
  EXPECT_EQ(state_bytes({ParamForm::kFp32}, 16), 2U * 64);
  constexpr StateForm kNarrow{ParamForm::kSplit, ElementType::kBf16};
  EXPECT_EQ(state_bytes_per_element(kNarrow), 6);
  EXPECT_EQ(tile_bytes(kNarrow), 384U * 1024);
  EXPECT_EQ(state_bytes(kNarrow, kTileElements + 33), 384U * 1024 + 3 * 128);
  EXPECT_EQ(tile_bytes({ParamForm::kFp32, ElementType::kBf16}), 256U * 1024);
  EXPECT_EQ(tile_bytes({ParamForm::kFp32AndFp16, ElementType::kBf16}), 512U * 1024);
}

TEST(StateTiles, LieFieldBehindFieldWithinTheirBytes) {
  const auto memory = aio::PageMemory::map(tile_bytes({ParamForm::kFp32AndFp16}), false);
  std::byte* const begin = memory->data();
  const StateTile whole = state_tile({ParamForm::kSplit}, begin, kTileElements);
  EXPECT_EQ(reinterpret_cast<std::byte*>(whole.lo), begin);
  EXPECT_EQ(reinterpret_cast<std::byte*>(whole.m), begin + 128 * 1024);
  EXPECT_EQ(reinterpret_cast<std::byte*>(whole.v), begin + 384 * 1024);
  EXPECT_EQ(whole.master, nullptr);
  const StateTile fp16 = state_tile({ParamForm::kFp32AndFp16}, begin, 100);
  EXPECT_EQ(reinterpret_cast<std::byte*>(fp16.master), begin);
  EXPECT_EQ(reinterpret_cast<std::byte*>(fp16.m), begin + 448);
  EXPECT_EQ(reinterpret_cast<std::byte*>(fp16.v), begin + 896);
  EXPECT_EQ(fp16.lo, nullptr);
  const StateTile fp32 = state_tile({ParamForm::kFp32}, begin, 100);
  EXPECT_EQ(reinterpret_cast<std::byte*>(fp32.m), begin);
  EXPECT_EQ(reinterpret_cast<std::byte*>(fp32.v), begin + 448);
  EXPECT_EQ(fp32.master, nullptr);
  const StateTile narrow = state_tile({ParamForm::kSplit, ElementType::kBf16}, begin, 100);
  EXPECT_EQ(reinterpret_cast<std::byte*>(narrow.m16), begin + 256);
  EXPECT_EQ(reinterpret_cast<std::byte*>(narrow.v16), begin + 512);
  EXPECT_EQ(narrow.m, nullptr);
}

// A value that a step may have stored.
std::uint16_t stored_as_bf16(float x) {
  const std::uint16_t half = bf16_from_float(x);
  return (half & 0x7FFF) < 0x0080 ? 0 : half;
}

// Packed values are restored, and are stored where a kernel expects them.
TEST(StateTiles, PackAndUnpackKeepEveryBit) {
  constexpr std::size_t kElements = 10'007;
  AdamwCase given(kElements);
  given.fill(3);
  for (float& x : given.master) x = join_master(split_master(x));  // canonical NaNs
  for (const StateForm form : kForms) {
    if (form.moments == ElementType::kBf16) {
      for (auto* array : {&given.m, &given.v})
        for (float& x : *array) x = float_from_bf16(stored_as_bf16(x));
    }
    auto memory = aio::PageMemory::map(state_bytes(form, kElements), false);
    std::vector<float> param(kElements);
    const AdamwArrays arrays =
        tile_arrays(form, state_tile(form, memory->data(), kElements), param.data());
    pack_state({.fields = {given.master, given.m, given.v}}, arrays);
    for (std::size_t i = 0; i < kElements; ++i) {
      const SplitMaster halves = split_master(given.master[i]);
      if (form.param == ParamForm::kSplit) {
        ASSERT_EQ(arrays.param16[i], halves.hi);
        ASSERT_EQ(arrays.lo[i], halves.lo);
      } else if (form.param == ParamForm::kFp32AndFp16) {
        ASSERT_EQ(arrays.param16[i], fp16_from_float(given.master[i]));
      }
    }
    std::vector<float> alone(kElements);
    pack_parameters(form.param, given.master, alone.data());
    const void* const packed =
        form.param == ParamForm::kFp32 ? static_cast<const void*>(arrays.master) : arrays.param16;
    EXPECT_EQ(
        0, std::memcmp(alone.data(), packed,
                       kElements * static_cast<std::size_t>(param_bytes_per_element(form.param))));
    AdamwCase back = given;
    for (auto* array : {&back.master, &back.m, &back.v}) std::fill(array->begin(), array->end(), 0);
    unpack_state(arrays, {.fields = {back.master, back.m, back.v}});
    EXPECT_EQ(given.difference(back), "");
  }
}

// Moments that bf16 cannot represent, from any element of the unit on: rounded like in a step.
TEST(StateTiles, RoundMomentsByTheirPlaceInTheUnit) {
  constexpr StateForm kForm{ParamForm::kSplit, ElementType::kBf16};
  constexpr std::size_t kElements = 4099;
  const MomentKeys keys = moment_keys({.run_seed = 5, .step = 9}, 2);
  AdamwCase given(kElements);
  given.fill(4);
  const auto pack = [&](std::size_t first) {
    auto memory = aio::PageMemory::map(state_bytes(kForm, kElements), false).value();
    std::vector<std::uint16_t> param(kElements), packed;
    AdamwArrays arrays =
        tile_arrays(kForm, state_tile(kForm, memory.data(), kElements - first), param.data());
    arrays.moment_keys = keys;
    arrays.first_element = first;
    const auto from = [first](std::vector<float>& all) { return std::span(all).subspan(first); };
    pack_state({.fields = {from(given.master), from(given.m), from(given.v)}}, arrays);
    packed.assign(arrays.m16, arrays.m16 + kElements - first);
    packed.insert(packed.end(), arrays.v16, arrays.v16 + kElements - first);
    return packed;
  };
  const auto whole = pack(0);
  int up = 0, down = 0;
  for (std::size_t i = 0; i < kElements; ++i) {
    if (!std::isfinite(given.m[i])) continue;
    const auto bits = std::bit_cast<std::uint32_t>(given.m[i]);
    const std::uint32_t stored = std::fabs(given.m[i]) < 0x1p-126F ? 0 : bits;
    const auto random = moment_bits(keys, i) & 0xFFFF;
    ASSERT_EQ(whole[i], round_moment(std::bit_cast<float>(stored), random)) << i;
    (whole[i] == stored >> 16 ? down : up) += 1;
  }
  EXPECT_GT(up, 1000);
  EXPECT_GT(down, 1000);
  for (const std::size_t first : {1U, 17U, 1024U}) {
    const auto part = pack(first);
    EXPECT_TRUE(std::equal(part.begin(), part.begin() + (kElements - first),
                           whole.begin() + static_cast<std::ptrdiff_t>(first)));
    EXPECT_TRUE(std::equal(part.end() - (kElements - first), part.end(),
                           whole.end() - static_cast<std::ptrdiff_t>(kElements - first)));
  }
}

}  // namespace
}  // namespace sluice::offload
