// ForwardingCommunicator: a communicator that passes every call on to another one. Tests derive
// from it to count calls, or to let them fail.
#pragma once

#include <memory>
#include <span>
#include <string_view>

#include "engine/comm/communicator.h"

namespace sluice::engine {

class ForwardingCommunicator : public Communicator {
 public:
  // `inner` must outlive it.
  explicit ForwardingCommunicator(Communicator& inner) : inner_(inner) {}

  int rank(ProcessGroup group) const override { return inner_.rank(group); }
  int world_size(ProcessGroup group) const override { return inner_.world_size(group); }
  offload::Topology topology() const override { return inner_.topology(); }
  Status finish(void* stream) override { return inner_.finish(stream); }
  void abort(std::string_view reason) noexcept override { inner_.abort(reason); }
  Status health() const override { return inner_.health(); }

 protected:
  Communicator& inner() { return inner_; }

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
    return inner_.all_to_all(sent, received, options);
  }
  Status do_send_receive(const Messages& messages, const CollectiveOptions& options) override {
    return inner_.send_receive(messages, options);
  }
  Status do_barrier(ProcessGroup group) override { return inner_.barrier(group); }
  // The part uses the links of `inner`.
  Result<std::unique_ptr<Communicator>> do_part(std::span<const int> ranks) override {
    return inner_.part(ranks);
  }

 private:
  Communicator& inner_;
};

}  // namespace sluice::engine
