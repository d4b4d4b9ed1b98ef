// CountingCommunicator: wraps a communicator and counts the bytes that this rank sends to ranks of
// other hosts and to other ranks of its own. The hosts are regular (offload::Topology).
#pragma once

#include <cstdint>
#include <span>

#include "tests/engine/comm/forwarding_communicator.h"

namespace sluice::engine {

class CountingCommunicator final : public ForwardingCommunicator {
 public:
  using ForwardingCommunicator::ForwardingCommunicator;

  std::uint64_t to_hosts_bytes = 0;
  std::uint64_t in_host_bytes = 0;

 private:
  Status do_all_to_all(std::span<const std::byte> sent, std::span<std::byte> received,
                       const CollectiveOptions& options) override {
    const auto of_group = [&](ProcessGroup group) {
      return static_cast<std::uint64_t>(inner().world_size(group));
    };
    const std::uint64_t piece = received.size() / of_group(options.group);  // to each rank
    const std::uint64_t others = of_group(options.group) - 1;
    const std::uint64_t neighbours =
        options.group == ProcessGroup::kPeers ? 0 : of_group(ProcessGroup::kNode) - 1;
    in_host_bytes += neighbours * piece;
    to_hosts_bytes += (others - neighbours) * piece;
    return inner().all_to_all(sent, received, options);
  }
};

}  // namespace sluice::engine
