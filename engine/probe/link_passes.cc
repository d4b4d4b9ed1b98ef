#include "engine/probe/link_passes.h"

#include <algorithm>
#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "aio/units.h"
#include "engine/probe/timed_passes.h"

namespace sluice::engine {
namespace {

constexpr std::uint64_t kSizes[] = {64 * kKiB, 4 * kMiB, 32 * kMiB, 128 * kMiB};
constexpr int kPasses = 5;
constexpr double kLongPassS = 0.3;

class LinkTimer {
 public:
  LinkTimer(Communicator& link, const LinkBuffers& buffers, const Clock& clock)
      : link_(link), buffers_(buffers), clock_(clock) {}

  Result<offload::LinkSpeeds> run() {
    offload::LinkSpeeds speeds;
    const auto world = static_cast<std::uint64_t>(link_.world_size());
    for (const std::uint64_t size : kSizes) {
      const std::uint64_t bytes =
          std::min<std::uint64_t>(size, buffers_.sent.size()) / world * world;
      SLUICE_ASSIGN_OR_RETURN(const double gather_s, seconds_of([&] { return gather(bytes); }));
      SLUICE_ASSIGN_OR_RETURN(const double exchange_s, seconds_of([&] { return exchange(bytes); }));
      if (size == kSizes[0]) {  // dominated by the cost of a call
        speeds.latency_s = std::max(gather_s, exchange_s);
        continue;
      }
      speeds.gather_bytes_per_s = rate(bytes, gather_s, speeds.latency_s);
      speeds.exchange_bytes_per_s = rate(bytes, exchange_s, speeds.latency_s);
      if (std::max(gather_s, exchange_s) > kLongPassS || bytes < size) break;
    }
    return speeds;
  }

 private:
  CollectiveOptions options() const {
    CollectiveOptions options;
    options.stream = buffers_.stream;
    return options;
  }
  Status gather(std::uint64_t bytes) {
    const std::uint64_t piece = bytes / static_cast<std::uint64_t>(link_.world_size());
    return link_.all_gather(buffers_.sent.first(piece), buffers_.received.first(bytes), options());
  }
  // In the hops of a run's reduction.
  Status exchange(std::uint64_t bytes) {
    const auto sent = buffers_.sent.first(bytes);
    const auto received = buffers_.received.first(bytes);
    const offload::Topology ranks = link_.topology();
    CollectiveOptions hop = options();
    if (!ranks.adds_by_host()) return link_.all_to_all(sent, received, hop);
    hop.group = ProcessGroup::kNode;
    hop.batches = static_cast<std::uint64_t>(ranks.hosts());
    SLUICE_RETURN_IF_ERROR(link_.all_to_all(sent, received, hop));
    const std::uint64_t added = bytes / static_cast<std::uint64_t>(ranks.local_world);
    hop.group = ProcessGroup::kPeers;
    hop.batches = 1;
    return link_.all_to_all(sent.first(added), received.first(added), hop);
  }

  // The median time of a pass on the slowest rank.
  Result<double> seconds_of(const std::function<Status()>& call) {
    std::vector<double> passes;
    for (int pass = -1; pass < kPasses; ++pass) {  // the first one warms up
      SLUICE_RETURN_IF_ERROR(link_.barrier());
      const std::int64_t begin_ns = clock_.now_ns();
      SLUICE_RETURN_IF_ERROR(call());
      if (buffers_.stream != nullptr) SLUICE_RETURN_IF_ERROR(link_.finish(buffers_.stream));
      if (pass >= 0) passes.push_back(1e-9 * static_cast<double>(clock_.now_ns() - begin_ns));
    }
    std::vector<double> all(static_cast<std::size_t>(link_.world_size()));
    SLUICE_RETURN_IF_ERROR(
        link_.all_gather_values(median_of(std::move(passes)), std::span<double>(all)));
    return *std::max_element(all.begin(), all.end());
  }

  // The rate of the bytes that a rank receives from the others.
  double rate(std::uint64_t bytes, double seconds, double latency_s) const {
    constexpr double kLeastPart = 0.1;  // of the time; the rest may be noise
    const double received =
        offload::received_bytes({.world = link_.world_size(), .local_world = link_.world_size()},
                                static_cast<double>(bytes));
    return received / std::max(seconds - latency_s, kLeastPart * seconds);
  }

  Communicator& link_;
  const LinkBuffers& buffers_;
  const Clock& clock_;
};

}  // namespace

Result<offload::LinkSpeeds> time_link(Communicator& link, const LinkBuffers& buffers,
                                      const Clock& clock) {
  return LinkTimer(link, buffers, clock).run();
}

}  // namespace sluice::engine
