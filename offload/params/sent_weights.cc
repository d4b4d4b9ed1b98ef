#include "offload/params/sent_weights.h"

#include <array>
#include <cmath>
#include <cstring>
#include <limits>

#include "offload/adamw/split_master.h"
#include "offload/params/block_codec.h"

namespace sluice::offload {
namespace {

using Values = std::array<float, kSentGroup>;

void unpack(ParamForm form, const std::byte* from, Values& values) {
  if (form == ParamForm::kFp32) {
    std::memcpy(values.data(), from, sizeof(values));
    return;
  }
  std::array<std::uint16_t, kSentGroup> halves;
  std::memcpy(halves.data(), from, sizeof(halves));
  for (std::size_t i = 0; i < halves.size(); ++i) {
    values[i] = form == ParamForm::kSplit ? float_from_bf16(halves[i]) : float_from_fp16(halves[i]);
  }
}

// The same as pack_parameters().
void pack(ParamForm form, const Values& values, std::byte* to) {
  if (form == ParamForm::kFp32) {
    std::memcpy(to, values.data(), sizeof(values));
    return;
  }
  std::array<std::uint16_t, kSentGroup> halves;
  for (std::size_t i = 0; i < halves.size(); ++i) {
    halves[i] = form == ParamForm::kSplit ? split_master(values[i]).hi : fp16_from_float(values[i]);
  }
  std::memcpy(to, halves.data(), sizeof(halves));
}

}  // namespace

void encode_groups(const SentUnit& unit, int rank, std::span<const std::byte> shard,
                   std::uint64_t first, std::uint64_t end, std::byte* to) {
  const SentUnit::Piece piece = unit.piece(rank);
  const std::uint64_t group_bytes = kSentGroup * unit.width();
  const std::uint64_t encoded = piece.encoded / kSentGroup;
  std::byte* const scales = to + piece.scales_offset();
  Values values;
  for (std::uint64_t group = first; group < end; ++group) {
    const std::byte* const from = shard.data() + group * group_bytes;
    if (group >= encoded) {
      std::memcpy(to + piece.plain_offset() + (group - encoded) * group_bytes, from, group_bytes);
      continue;
    }
    unpack(unit.form, from, values);
    std::byte* const codes = to + group * kSentGroup;
    std::byte* const scale = scales + group * sizeof(float);
    if (encode(BlockCodec::kInt8, values, {}, {codes, scale, nullptr})) continue;
    constexpr float kNone = std::numeric_limits<float>::quiet_NaN();
    std::memset(codes, 0, kSentGroup);
    std::memcpy(scale, &kNone, sizeof(kNone));
  }
}

void decode_groups(const SentUnit& unit, const std::byte* pieces, std::uint64_t first,
                   std::uint64_t end, std::byte* to) {
  const std::uint64_t group_bytes = kSentGroup * unit.width();
  const std::uint64_t of_piece = unit.piece_elements() / kSentGroup;
  const std::uint64_t piece_bytes = unit.piece_bytes();
  Values values;
  for (std::uint64_t group = first; group < end; ++group) {
    const std::uint64_t rank = group / of_piece;
    const SentUnit::Piece piece = unit.piece(static_cast<int>(rank));
    const std::byte* const from = pieces + rank * piece_bytes;
    const std::uint64_t at = group - rank * of_piece;
    std::byte* const out = to + group * group_bytes;
    const std::uint64_t encoded = piece.encoded / kSentGroup;
    if (at >= encoded) {
      std::memcpy(out, from + piece.plain_offset() + (at - encoded) * group_bytes, group_bytes);
      continue;
    }
    float scale = 0;
    std::memcpy(&scale, from + piece.scales_offset() + at * sizeof(scale), sizeof(scale));
    if (std::isnan(scale)) {
      values.fill(std::numeric_limits<float>::quiet_NaN());
    } else {
      decode(BlockCodec::kInt8, {from, from + piece.scales_offset(), nullptr}, at, values);
    }
    pack(unit.form, values, out);
  }
}

}  // namespace sluice::offload
