#include "engine/probe/host_probe.h"

#include <immintrin.h>

#include <algorithm>
#include <functional>
#include <vector>

#include "aio/check.h"
#include "aio/clock.h"
#include "aio/page_memory.h"
#include "aio/units.h"
#include "offload/adamw/adamw.h"
#include "offload/adamw/half.h"
#include "offload/state/state_tiles.h"

namespace sluice::engine {
namespace {

constexpr std::uint64_t kLine = 64;
constexpr std::uint64_t kPrefetchBytes = kKiB;

void copy_lines(std::byte* to, const std::byte* from, std::uint64_t bytes) {
  for (std::uint64_t at = 0; at < bytes; at += kLine) {
    // An integer, because it may be past the memory's end, where prefetching has no effect.
    const auto ahead = reinterpret_cast<std::uintptr_t>(from + at) + kPrefetchBytes;
    // NOLINTNEXTLINE(performance-no-int-to-ptr)
    _mm_prefetch(reinterpret_cast<const char*>(ahead), _MM_HINT_T0);
    const auto* source = reinterpret_cast<const __m128i*>(from + at);
    auto* target = reinterpret_cast<__m128i*>(to + at);
    const __m128i a = _mm_load_si128(source);
    const __m128i b = _mm_load_si128(source + 1);
    const __m128i c = _mm_load_si128(source + 2);
    const __m128i d = _mm_load_si128(source + 3);
    _mm_stream_si128(target, a);
    _mm_stream_si128(target + 1, b);
    _mm_stream_si128(target + 2, c);
    _mm_stream_si128(target + 3, d);
  }
  _mm_sfence();
}

}  // namespace

void copy_past_caches(aio::Executor& executor, std::byte* to, const std::byte* from,
                      std::uint64_t bytes) {
  SLUICE_CHECK(bytes % kLine == 0, "whole cache lines");
  const auto pieces = static_cast<std::uint64_t>(executor.threads());
  const std::uint64_t piece_bytes = align_up((bytes + pieces - 1) / pieces, 4 * kKiB);
  const auto work = [&](int piece) {
    const std::uint64_t begin = std::min(bytes, static_cast<std::uint64_t>(piece) * piece_bytes);
    copy_lines(to + begin, from + begin, std::min(bytes - begin, piece_bytes));
  };
  executor.run(static_cast<int>(pieces), std::cref(work));
}

namespace {

using offload::GradType;
using offload::kTileElements;

constexpr std::uint64_t kLeastBytes = 256 * kMiB;
constexpr std::uint64_t kMostBytes = 2 * kGiB;

double measure_copy(aio::Executor& executor, const HostProbeOptions& options,
                    const aio::PageMemory& memory) {
  const std::uint64_t half = align_down(memory.size_bytes() / 2, 4 * kKiB);
  const double pass_seconds = median_pass_seconds(
      SteadyClock(), options.copy_seconds,
      [&] { copy_past_caches(executor, memory.data(), memory.data() + half, half); },
      options.spread);
  return 2 * static_cast<double>(half) / pass_seconds;
}

// State, parameters and gradients in as many whole tiles as fit into the memory.
class TiledState {
 public:
  TiledState(const HostProbeOptions& options, const aio::PageMemory& memory)
      : options_(options),
        grad_bytes_(offload::element_bytes(options.grad_type)),
        param_bytes_(
            static_cast<std::uint64_t>(offload::param_bytes_per_element(options.form.param))),
        tiles_(memory.size_bytes() /
               (offload::tile_bytes(options.form) + kTileElements * (grad_bytes_ + param_bytes_))),
        state_(memory.data()),
        params_(state_ + tiles_ * offload::tile_bytes(options.form)),
        grads_(params_ + tiles_ * kTileElements * param_bytes_) {}

  std::uint64_t tiles() const { return tiles_; }
  std::uint64_t elements() const { return tiles_ * kTileElements; }

  // Fills the tile with ordinary numbers: uninitialised memory may have denormals or NaNs.
  void fill(std::uint64_t tile) const {
    const offload::AdamwArrays arrays = arrays_of(tile);
    constexpr float kFirstMoment = 1e-4F;
    constexpr float kSecondMoment = 1e-6F;
    if (options_.form.moments == offload::ElementType::kFp32) {
      std::fill_n(arrays.m, kTileElements, kFirstMoment);
      std::fill_n(arrays.v, kTileElements, kSecondMoment);
    } else {
      std::fill_n(arrays.m16, kTileElements, offload::bf16_from_float(kFirstMoment));
      std::fill_n(arrays.v16, kTileElements, offload::bf16_from_float(kSecondMoment));
    }
    if (arrays.master != nullptr) std::fill_n(arrays.master, kTileElements, 0.05F);
    if (arrays.lo != nullptr) std::fill_n(arrays.lo, kTileElements, std::uint16_t{0});
    constexpr std::uint16_t kSmall = 0x2000;  // 1e-19 as bf16, 0.008 as fp16
    if (arrays.param16 != nullptr) std::fill_n(arrays.param16, kTileElements, kSmall);
    std::byte* const grad = grads_ + tile * kTileElements * grad_bytes_;
    if (options_.grad_type == GradType::kFp32)
      std::fill_n(reinterpret_cast<float*>(grad), kTileElements, 1e-3F);
    else
      std::fill_n(reinterpret_cast<std::uint16_t*>(grad), kTileElements, kSmall);
  }

  void step(std::uint64_t tile, const offload::AdamwScalars& scalars) const {
    offload::adamw_range(options_.isa, scalars, arrays_of(tile), 0, kTileElements);
  }

 private:
  offload::AdamwArrays arrays_of(std::uint64_t tile) const {
    const offload::StateTile fields = offload::state_tile(
        options_.form, state_ + tile * offload::tile_bytes(options_.form), kTileElements);
    offload::AdamwArrays arrays =
        offload::tile_arrays(options_.form, fields, params_ + tile * kTileElements * param_bytes_);
    arrays.grad_type = options_.grad_type;
    arrays.grad = grads_ + tile * kTileElements * grad_bytes_;
    return arrays;
  }

  const HostProbeOptions& options_;
  const std::uint64_t grad_bytes_;
  const std::uint64_t param_bytes_;
  const std::uint64_t tiles_;
  std::byte* const state_;
  std::byte* const params_;
  std::byte* const grads_;
};

double measure_adamw(aio::Executor& executor, const HostProbeOptions& options,
                     const aio::PageMemory& memory) {
  const TiledState state(options, memory);
  const auto over_tiles = [&](const std::function<void(std::uint64_t tile)>& work) {
    const auto pieces = static_cast<std::uint64_t>(executor.threads());
    executor.run(executor.threads(), [&](int piece) {
      const auto at = static_cast<std::uint64_t>(piece);
      for (std::uint64_t tile = state.tiles() * at / pieces;
           tile < state.tiles() * (at + 1) / pieces; ++tile)
        work(tile);
    });
  };
  over_tiles([&](std::uint64_t tile) { state.fill(tile); });
  const offload::AdamwScalars scalars = probe_scalars();
  const double pass_seconds = median_pass_seconds(
      SteadyClock(), options.adamw_seconds,
      [&] { over_tiles([&](std::uint64_t tile) { state.step(tile, scalars); }); }, options.spread);
  return static_cast<double>(state.elements()) / pass_seconds;
}

}  // namespace

std::uint64_t host_probe_bytes(std::uint64_t cache_bytes, std::uint64_t free_bytes) {
  const std::uint64_t wanted = std::clamp(4 * cache_bytes, kLeastBytes, kMostBytes);
  return align_down(std::max(std::min(wanted, free_bytes / 4), kLeastBytes / 4), 2 * kMiB);
}

offload::AdamwScalars probe_scalars() {
  return offload::make_adamw_scalars({.learning_rate = 1e-4,
                                      .weight_decay = 0.01,
                                      .step = 1000,
                                      .grad_norm = 2,
                                      .clip_norm = 1})
      .value();
}

Result<HostSpeeds> probe_host(aio::Executor& executor, const HostProbeOptions& options) {
  SLUICE_ASSIGN_OR_RETURN(const aio::PageMemory memory,
                          aio::PageMemory::map(options.memory_bytes, true, &executor));
  HostSpeeds speeds;
  speeds.copy_bytes_per_s = measure_copy(executor, options, memory);
  speeds.adamw_elements_per_s = measure_adamw(executor, options, memory);
  return speeds;
}

}  // namespace sluice::engine
