// CountingCommunicator: wraps a communicator and counts the bytes that this rank sends to ranks of
// other hosts and to other ranks of its own. The hosts are regular (offload::Topology).
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

#include "engine/comm/communicator.h"

namespace sluice::engine {

class CountingCommunicator final : public Communicator {
 public:
  // `inner` must outlive it.
  explicit CountingCommunicator(Communicator& inner) : inner_(inner) {}

  std::uint64_t to_hosts_bytes = 0;
  std::uint64_t in_host_bytes = 0;

  int rank(ProcessGroup group) const override { return inner_.rank(group); }
  int world_size(ProcessGroup group) const override { return inner_.world_size(group); }
  offload::Topology topology() const override { return inner_.topology(); }
  Status finish(void* stream) override { return inner_.finish(stream); }
  void abort(std::string_view reason) noexcept override { inner_.abort(reason); }
  Status health() const override { return inner_.health(); }

 private:
  Status do_all_gather(std::span<const std::byte> mine, std::span<std::byte> all,
                       const CollectiveOptions& options) override {
    return inner_.all_gather(mine, all, options);
  }
  Status do_broadcast(std::span<std::byte> bytes, int root,
                      const CollectiveOptions& options) override {
    return inner_.broadcast(bytes, root, options);
  }
  Status do_all_to_all(std::span<const std::byte> sent, std::span<std::byte> received,
                       const CollectiveOptions& options) override {
    const auto of_group = [&](ProcessGroup group) {
      return static_cast<std::uint64_t>(inner_.world_size(group));
    };
    const std::uint64_t piece = received.size() / of_group(options.group);  // to each rank
    const std::uint64_t others = of_group(options.group) - 1;
    const std::uint64_t neighbours =
        options.group == ProcessGroup::kPeers ? 0 : of_group(ProcessGroup::kNode) - 1;
    in_host_bytes += neighbours * piece;
    to_hosts_bytes += (others - neighbours) * piece;
    return inner_.all_to_all(sent, received, options);
  }
  Status do_send_receive(const Messages& messages, const CollectiveOptions& options) override {
    return inner_.send_receive(messages, options);
  }
  Status do_barrier(ProcessGroup group) override { return inner_.barrier(group); }
  Result<std::unique_ptr<Communicator>> do_part(std::span<const int> ranks) override {
    return inner_.part(ranks);
  }

  Communicator& inner_;
};

}  // namespace sluice::engine
