// FaultyCommunicator: wraps a communicator and lets one call fail like a failed transport. The
// other ranks are notified, and all later calls of this rank return the error.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/comm/communicator.h"

namespace sluice::engine {

struct CallFault {
  std::uint64_t nth = 0;  // number of the failing call, from 1; 0: none
  // Fails after the call is done: its results arrived, and the other ranks continue.
  bool after = false;
};

class FaultyCommunicator final : public Communicator {
 public:
  // `inner` must outlive it.
  FaultyCommunicator(Communicator& inner, const CallFault& fault) : inner_(inner), fault_(fault) {}

  // Names of the collectives in call order.
  const std::vector<std::string>& calls() const { return calls_; }

  int rank(ProcessGroup group) const override { return inner_.rank(group); }
  int world_size(ProcessGroup group) const override { return inner_.world_size(group); }
  offload::Topology topology() const override { return inner_.topology(); }
  Status finish(void* stream) override { return inner_.finish(stream); }
  void abort(std::string_view reason) noexcept override { inner_.abort(reason); }
  Status health() const override { return inner_.health(); }

 private:
  Status do_all_gather(std::span<const std::byte> mine, std::span<std::byte> all,
                       const CollectiveOptions& options) override {
    return call("all_gather", [&] { return inner_.all_gather(mine, all, options); });
  }
  Status do_broadcast(std::span<std::byte> bytes, int root,
                      const CollectiveOptions& options) override {
    return call("broadcast", [&] { return inner_.broadcast(bytes, root, options); });
  }
  Status do_all_to_all(std::span<const std::byte> sent, std::span<std::byte> received,
                       const CollectiveOptions& options) override {
    return call("all_to_all", [&] { return inner_.all_to_all(sent, received, options); });
  }
  Status do_send_receive(const Messages& messages, const CollectiveOptions& options) override {
    return call("send_receive", [&] { return inner_.send_receive(messages, options); });
  }
  // Without faults: the part uses the links of `inner`.
  Result<std::unique_ptr<Communicator>> do_part(std::span<const int> ranks) override {
    return inner_.part(ranks);
  }
  Status do_barrier(ProcessGroup group) override {
    return call("barrier", [&] { return inner_.barrier(group); });
  }

  template <typename Do>
  Status call(const char* name, const Do& collective) {
    calls_.emplace_back(name);
    if (calls_.size() != fault_.nth) return collective();
    if (fault_.after) static_cast<void>(collective());
    inner_.abort(std::string(name) + ": the cable was pulled");
    return inner_.health();
  }

  Communicator& inner_;
  const CallFault fault_;
  std::vector<std::string> calls_;
};

}  // namespace sluice::engine
