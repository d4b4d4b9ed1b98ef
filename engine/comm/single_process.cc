#include <cstring>
#include <string>

#include "engine/comm/communicator.h"

namespace sluice::engine {
namespace {

class SingleProcess final : public Communicator {
 public:
  int rank(ProcessGroup /*group*/) const override { return 0; }
  int world_size(ProcessGroup /*group*/) const override { return 1; }
  offload::Topology topology() const override { return {}; }

  Status finish(void* /*stream*/) override { return {}; }
  void abort(std::string_view /*reason*/) noexcept override {}
  Status health() const override { return {}; }

 private:
  Status do_all_gather(std::span<const std::byte> mine, std::span<std::byte> all,
                       const CollectiveOptions& options) override {
    return deliver("all_gather", mine, all, options);
  }
  Status do_broadcast(std::span<std::byte> bytes, int /*root*/,
                      const CollectiveOptions& options) override {
    return deliver("broadcast", bytes, bytes, options);
  }
  Status do_all_to_all(std::span<const std::byte> sent, std::span<std::byte> received,
                       const CollectiveOptions& options) override {
    return deliver("all_to_all", sent, received, options);
  }
  // There is no rank to send to, which the caller has checked.
  Status do_send_receive(const Messages& /*messages*/,
                         const CollectiveOptions& /*options*/) override {
    return {};
  }
  Status do_barrier(ProcessGroup /*group*/) override { return {}; }
  Result<std::unique_ptr<Communicator>> do_part(std::span<const int> /*ranks*/) override {
    return make_single_process_communicator();
  }

  // Delivers a message of the only rank to itself.
  static Status deliver(const char* collective, std::span<const std::byte> sent,
                        std::span<std::byte> received, const CollectiveOptions& options) {
    if (sent.empty()) return {};
    if (sent.data() == received.data()) return {};
    if (options.stream != nullptr) {
      return Error(ErrorCode::kUnsupported,
                   std::string(collective) +
                       ": a single process does not move device memory: let the input be the "
                       "output (in place)");
    }
    std::memcpy(received.data(), sent.data(), sent.size());
    return {};
  }
};

}  // namespace

std::unique_ptr<Communicator> make_single_process_communicator() {
  return std::make_unique<SingleProcess>();
}

Communicator& single_process() noexcept {
  static SingleProcess process;
  return process;
}

}  // namespace sluice::engine
