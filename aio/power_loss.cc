#include "aio/power_loss.h"

#include <algorithm>
#include <utility>

#include "aio/split_mix.h"
#include "aio/units.h"

namespace sluice::aio {
namespace {

constexpr std::uint64_t kTearBytes = 512;  // a drive writes a whole sector or none of it
constexpr std::uint64_t kAfterAll = UINT64_MAX;

}  // namespace

PowerLossModel::PowerLossModel(PowerLoss policy, std::uint64_t seed, Scene scene)
    : policy_(policy), seed_(seed), last_write_(scene.last_write) {
  SplitMix random(seed_);
  std::vector<std::uint64_t>& metadata = scene.metadata;
  std::sort(metadata.begin(), metadata.end());
  const std::uint64_t kept = random.below(metadata.size() + 1);
  ordered_end_ = kept == metadata.size() ? kAfterAll : metadata[kept];
  // A long chain of dependent operations survives only if most operations do.
  constexpr double kChances[] = {0.25, 0.5, 0.75, 0.95};
  metadata_chance_ = kChances[random.below(4)];
}

bool PowerLossModel::metadata_survives(std::uint64_t sequence) const {
  switch (policy_) {
    case PowerLoss::kOrdered:
      return sequence < ordered_end_;
    case PowerLoss::kAny:
      return SplitMix(seed_, sequence).chance(metadata_chance_);
    case PowerLoss::kDropUnsynced:
      return false;
    case PowerLoss::kKeepAll:
    case PowerLoss::kTearLast:
      break;
  }
  return true;
}

std::vector<PowerLossModel::Range> PowerLossModel::landing(std::uint64_t sequence,
                                                           Range write) const {
  switch (policy_) {
    case PowerLoss::kDropUnsynced:
      return {};
    case PowerLoss::kKeepAll:
      return {write};
    case PowerLoss::kTearLast:
      if (sequence == last_write_) return torn(sequence, write, true);
      return {write};
    case PowerLoss::kOrdered:
    case PowerLoss::kAny:
      break;
  }
  switch (SplitMix(seed_, sequence).below(3)) {
    case 0:
      return {write};
    case 1:
      return {};
    default:
      return torn(sequence, write, false);
  }
}

// `surely`: if the write has two or more sectors, at least one survives and at least one does not.
std::vector<PowerLossModel::Range> PowerLossModel::torn(std::uint64_t sequence, Range write,
                                                        bool surely) const {
  SplitMix random(seed_ + 1, sequence);
  const std::uint64_t first = write.begin_bytes / kTearBytes;
  const std::uint64_t count = (write.end_bytes + kTearBytes - 1) / kTearBytes - first;
  const auto piece = [&](std::uint64_t from, std::uint64_t to) {
    return Range{std::max(write.begin_bytes, (first + from) * kTearBytes),
                 std::min(write.end_bytes, (first + to) * kTearBytes)};
  };
  if (count < 2) return random.chance(0.5) ? std::vector<Range>{write} : std::vector<Range>{};
  const std::uint64_t split = 1 + random.below(count - 1);
  switch (random.below(3)) {
    case 0:
      return {piece(0, split)};
    case 1:
      return {piece(split, count)};
    default:
      break;
  }
  std::vector<Range> pieces;
  for (std::uint64_t i = 0; i < count; ++i) {
    if (random.chance(0.5)) pieces.push_back(piece(i, i + 1));
  }
  if (surely && (pieces.empty() || pieces.size() == count)) return {piece(0, split)};
  return pieces;
}

}  // namespace sluice::aio
