#include "engine/comm/control_frames.h"

#include <unistd.h>

#include <array>
#include <cstdio>
#include <utility>

#include "engine/comm/launcher_text.h"

namespace sluice::engine {
namespace {

std::string this_host() {
  std::array<char, 256> name{};
  if (::gethostname(name.data(), name.size() - 1) != 0) name = {"?"};
  std::array<char, 64> boot{};
  // Containers on one machine have different names; machines of the same name have different boot
  // ids.
  if (FILE* const file = std::fopen("/proc/sys/kernel/random/boot_id", "re")) {
    const std::size_t size = std::fread(boot.data(), 1, 36, file);
    boot[size] = '\0';
    static_cast<void>(std::fclose(file));
  }
  return std::string(name.data()) + "/" + boot.data();
}

bool is_at_own_address(const TcpOptions& options) {
  return !options.listen_address.empty() &&
         !(is_on_one_host(options) && is_loopback(options.master_address));
}

}  // namespace

std::string pack(const Hello& hello) {
  return Packer()
      .number(static_cast<std::uint64_t>(hello.rank))
      .number(static_cast<std::uint64_t>(hello.world))
      .number(static_cast<std::uint64_t>(hello.local_rank))
      .number(static_cast<std::uint64_t>(hello.local_world))
      .number(static_cast<std::uint64_t>(hello.data_port))
      .text(hello.address)
      .text(hello.host)
      .take();
}

std::optional<Hello> unpack_hello(std::string_view payload) {
  Unpacker from(payload);
  Hello hello;
  hello.rank = from.small_number();
  hello.world = from.small_number();
  hello.local_rank = from.small_number();
  hello.local_world = from.small_number();
  hello.data_port = from.small_number();
  hello.address = shown(from.text(), kMaxAddressBytes);
  hello.host = shown(from.text(), kMaxHostBytes);
  return from.good() ? std::optional(hello) : std::nullopt;
}

Hello own_hello(const TcpOptions& options, const FileDescriptor& data_listener) {
  std::string address = is_at_own_address(options) ? local_address(data_listener) : "";
  if (address == "0.0.0.0" || address == "::") address.clear();  // the wildcard, not an address
  return {.rank = options.context.rank,
          .world = options.context.world,
          .local_rank = options.context.local_rank,
          .local_world = options.context.local_world,
          .data_port = port_of(data_listener),
          .address = std::move(address),
          .host = shown(options.host.empty() ? this_host() : options.host, kMaxHostBytes)};
}

RunKey key_of(const TcpOptions& options) { return {options.secret, options.job}; }

bool is_on_one_host(const TcpOptions& options) {
  return options.context.world == options.context.local_world;
}

Result<FileDescriptor> listen_for(const TcpOptions& options, const std::string& host,
                                  std::uint16_t port) {
  if (!is_at_own_address(options))
    return listen_at(host, port, is_on_one_host(options) ? Reach::kThisHost : Reach::kAllHosts);
  auto listener = listen_only_at(options.listen_address, port);
  if (!listener.ok()) return std::move(listener).error().with_context("SLUICE_LISTEN");
  return listener;
}

}  // namespace sluice::engine
