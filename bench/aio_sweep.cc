#include "bench/aio_sweep.h"

#include <algorithm>
#include <cstdio>
#include <iterator>
#include <numeric>
#include <optional>
#include <set>
#include <utility>

#include "aio/check.h"
#include "aio/io_queue.h"
#include "aio/units.h"
#include "bench/random.h"

namespace sluice::bench {
namespace {

constexpr double kTie = 0.02;

void shuffle(std::vector<std::size_t>& order, Random& random) {
  for (std::size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[random.below(i)]);
}

template <typename T, typename Key>
std::vector<T> distinct(const std::vector<SweepPoint>& points, Key key) {
  std::set<T> values;
  for (const SweepPoint& point : points) values.insert(key(point.shape));
  return {values.begin(), values.end()};
}

}  // namespace

std::vector<AioSession::Options> sweep_grid(const AioOptions& options, int cores,
                                            std::uint64_t ram_bytes) {
  std::vector<std::uint64_t> blocks{options.block_bytes};
  std::vector<int> depths{options.queue_depth};
  std::set<int> threads{options.threads};
  if (options.sweep_block)
    blocks = {64 * kKiB, 128 * kKiB, 256 * kKiB, 512 * kKiB, kMiB, 2 * kMiB, 4 * kMiB};
  if (options.sweep_depth) depths = {4, 8, 16, 32, 64};
  if (options.sweep_threads) threads = {1, std::min(2, cores), std::min(cores, 64)};

  std::vector<AioSession::Options> grid;
  for (const int thread_count : threads) {
    for (const std::uint64_t block : blocks) {
      for (const int depth : depths) {
        const AioSession::Options shape{.backend = options.backend,
                                        .block_bytes = block,
                                        .queue_depth = depth,
                                        .threads = thread_count,
                                        .single_submit = options.single_submit,
                                        .writable = options.writes_to_file()};
        if (shape.blocks_in_flight() > aio::IoQueue::kMaxQueueDepth) continue;
        if (shape.bytes_in_flight() > ram_bytes / 4) continue;
        // Overlapping blocks in flight would measure something else.
        if (shape.bytes_in_flight() > options.size_bytes) continue;
        grid.push_back(shape);
      }
    }
  }
  return grid;
}

const SweepPoint& best_point(const std::vector<SweepPoint>& points) {
  double fastest = 0;
  for (const SweepPoint& point : points) fastest = std::max(fastest, point.mean().value_or(0));
  const SweepPoint* best = nullptr;
  for (const SweepPoint& point : points) {
    if (!point.mean() || *point.mean() < (1 - kTie) * fastest) continue;
    const auto cost = [](const SweepPoint& of) {
      return std::pair(of.shape.bytes_in_flight(), of.shape.threads);
    };
    if (best == nullptr || cost(point) < cost(*best) ||
        (cost(point) == cost(*best) && point.mean() > best->mean()))
      best = &point;
  }
  SLUICE_CHECK(best != nullptr, "a sweep has at least one point with a mean");
  return *best;
}

std::string sweep_tables(const std::vector<SweepPoint>& points, const SweepPoint& best) {
  const auto blocks = distinct<std::uint64_t>(points, [](const auto& s) { return s.block_bytes; });
  const auto depths = distinct<int>(points, [](const auto& s) { return s.queue_depth; });
  const auto threads = distinct<int>(points, [](const auto& s) { return s.threads; });
  char cell[64];
  std::string text;
  for (const int thread_count : threads) {
    text += (text.empty() ? "" : "\n") + std::to_string(thread_count) +
            (thread_count == 1 ? " thread" : " threads") + ", GB/s\n  block \\ depth";
    for (const int depth : depths) {
      std::snprintf(cell, sizeof cell, "%9d ", depth);
      text += cell;
    }
    text += '\n';
    for (const std::uint64_t block : blocks) {
      std::snprintf(cell, sizeof cell, "  %13s", format_bytes(block).c_str());
      text += cell;
      for (const int depth : depths) {
        const auto point = std::find_if(points.begin(), points.end(), [&](const SweepPoint& p) {
          return p.shape.threads == thread_count && p.shape.block_bytes == block &&
                 p.shape.queue_depth == depth;
        });
        if (point == points.end() || !point->mean()) {
          text += "        - ";
          continue;
        }
        const bool is_best = &*point == &best;
        std::snprintf(cell, sizeof cell, is_best ? "[%.3f]" : "%.3f ", *point->mean());
        char padded[64];
        std::snprintf(padded, sizeof padded, "%10s", cell);
        text += padded;
      }
      text += '\n';
    }
  }
  return text;
}

Result<std::vector<SweepPoint>> run_sweep(const BenchTarget& target, const AioOptions& options,
                                          const std::vector<AioSession::Options>& grid,
                                          const tools::Interrupt& interrupt,
                                          tools::ProgressLine& progress) {
  std::vector<SweepPoint> points;
  points.reserve(grid.size());
  for (const AioSession::Options& shape : grid) points.push_back({.shape = shape, .gb_per_s = {}});
  std::vector<std::size_t> order(points.size());
  std::iota(order.begin(), order.end(), 0);
  Random random(options.seed);
  const double total = static_cast<double>(points.size()) * options.runs;
  const double seconds_each = options.seconds + options.ramp_seconds;
  double tried = 0;
  bool any_completed = false;
  RunResult last;
  for (int time = 0; time < options.runs; ++time) {
    shuffle(order, random);
    for (const std::size_t index : order) {
      SweepPoint& point = points[index];
      SLUICE_ASSIGN_OR_RETURN(const auto session, AioSession::open(target, point.shape));
      const RunPlan plan{.mode = options.modes[0],
                         .range_bytes = options.size_bytes,
                         .seconds = options.seconds,
                         .ramp_seconds = options.ramp_seconds,
                         .pattern_seed = std::nullopt,
                         .random_seed = random.next()};
      const std::string what = "sweep: block " + format_bytes(point.shape.block_bytes) +
                               ", depth " + std::to_string(point.shape.queue_depth) + ", threads " +
                               std::to_string(point.shape.threads);
      SLUICE_ASSIGN_OR_RETURN(
          last, run_measured(*session, plan, interrupt, [&](double fraction, double gb_per_s) {
            progress.update(what, {.fraction = (tried + fraction) / total,
                                   .gb_per_s = gb_per_s,
                                   .seconds_left = (total - tried - fraction) * seconds_each});
          }));
      if (interrupt.requested()) {
        if (!any_completed) return Error(ErrorCode::kCancelled, "interrupted");
        return points;
      }
      // A shape with which nothing completed is slow, which is no error unless it holds for all
      // shapes.
      const bool completed = last.has_every_kind();
      any_completed |= completed;
      point.gb_per_s.push_back(completed ? std::optional(last.gb_per_s()) : std::nullopt);
      ++tried;
    }
  }
  if (!any_completed) return nothing_completed(last, options.seconds);
  return points;
}

}  // namespace sluice::bench
