// FaultyCommunicator: wraps a communicator and lets one call fail like a failed transport. The
// other ranks are notified, and all later calls of this rank return the error.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tests/engine/comm/forwarding_communicator.h"

namespace sluice::engine {

struct CallFault {
  std::uint64_t nth = 0;  // number of the failing call, from 1; 0: none
  // Fails after the call is done: its results arrived, and the other ranks continue.
  bool after = false;
};

class FaultyCommunicator final : public ForwardingCommunicator {
 public:
  // `inner` must outlive it.
  FaultyCommunicator(Communicator& inner, const CallFault& fault)
      : ForwardingCommunicator(inner), fault_(fault) {}

  // Names of the collectives in call order.
  const std::vector<std::string>& calls() const { return calls_; }

 private:
  Status do_all_gather(std::span<const std::byte> mine, std::span<std::byte> all,
                       const CollectiveOptions& options) override {
    return call("all_gather", [&] { return inner().all_gather(mine, all, options); });
  }
  Status do_broadcast(std::span<std::byte> bytes, int root,
                      const CollectiveOptions& options) override {
    return call("broadcast", [&] { return inner().broadcast(bytes, root, options); });
  }
  Status do_all_to_all(std::span<const std::byte> sent, std::span<std::byte> received,
                       const CollectiveOptions& options) override {
    return call("all_to_all", [&] { return inner().all_to_all(sent, received, options); });
  }
  Status do_send_receive(const Messages& messages, const CollectiveOptions& options) override {
    return call("send_receive", [&] { return inner().send_receive(messages, options); });
  }
  Status do_barrier(ProcessGroup group) override {
    return call("barrier", [&] { return inner().barrier(group); });
  }

  template <typename Do>
  Status call(const char* name, const Do& collective) {
    calls_.emplace_back(name);
    if (calls_.size() != fault_.nth) return collective();
    if (fault_.after) static_cast<void>(collective());
    inner().abort(std::string(name) + ": the cable was pulled");
    return inner().health();
  }

  const CallFault fault_;
  std::vector<std::string> calls_;
};

}  // namespace sluice::engine
