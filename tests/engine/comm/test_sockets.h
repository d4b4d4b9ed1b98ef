// Sockets for tests that wait at most 20 s for data.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <thread>
#include <utility>

#include "engine/comm/control_frames.h"
#include "engine/comm/tcp_socket.h"

namespace sluice::engine {

inline Deadline soon() { return time_now() + std::chrono::seconds(20); }

inline FileDescriptor listening() {
  auto listener = listen_at("127.0.0.1", 0, Reach::kThisHost);
  EXPECT_TRUE(listener.ok());
  return std::move(*listener);
}
inline FileDescriptor connected(std::uint16_t port) {
  auto socket = connect_to({"127.0.0.1", port}, soon());
  EXPECT_TRUE(socket.ok());
  return std::move(*socket);
}

inline FileDescriptor accepted(const FileDescriptor& listener) {
  for (const Deadline until = soon(); time_now() < until;) {
    if (auto socket = try_accept(listener)) return std::move(*socket);
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  ADD_FAILURE() << "nobody came";
  return {};
}
inline Frame frame_from(const FileDescriptor& socket) {
  FrameReader reader;
  for (const Deadline until = soon(); time_now() < until;) {
    if (auto came = reader.next()) return std::move(*came);
    EXPECT_TRUE(reader.read_some(socket));
  }
  ADD_FAILURE() << "no frame came";
  return {};
}

}  // namespace sluice::engine
