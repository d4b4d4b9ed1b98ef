// WebServer: WebPages over HTTP, by libmicrohttpd on one thread of its own.
//
// Bounds: kMostConnections at a time, others wait. A request's head must fit into kMostHeadBytes
//         and arrive within kHeadS. A connection without a request for kIdleS is closed. A reply
//         may take long, as long as the client takes some of it every kIdleS.
//
// Threads: one at a time; sweep() every second or so.
// Errors:  name the address.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "aio/result.h"
#include "tools/watch/web_pages.h"

struct MHD_Daemon;
struct MHD_Connection;

namespace sluice::watch {

struct WebAddress {
  std::string host = "127.0.0.1";  // as given, without brackets
  std::uint16_t port = 0;          // 0: any free port

  bool is_loopback() const;
  std::string text() const;  // "127.0.0.1:8080", "[::1]:8080"
};

// Parses "127.0.0.1:8080", "[::1]:8080", "localhost:8080", "0.0.0.0:8080". The error is a sentence.
Result<WebAddress> parse_address(const std::string& text);

class WebServer {
 public:
  static constexpr unsigned kMostConnections = 128;
  static constexpr std::size_t kMostHeadBytes = std::size_t{16} << 10;
  static constexpr std::chrono::seconds kHeadS{10};
  static constexpr std::chrono::seconds kIdleS{60};

  // Opens the socket first, since WebPages need its port.
  static Result<std::unique_ptr<WebServer>> listen(const WebAddress& address);
  ~WebServer();
  WebServer(const WebServer&) = delete;
  WebServer& operator=(const WebServer&) = delete;

  const WebAddress& address() const { return address_; }
  // `pages` must outlive the server.
  Status serve(WebPages& pages);
  // Closes connections that are too slow.
  void sweep();

 private:
  struct Calls;  // libmicrohttpd's
  struct Visitor {
    std::chrono::steady_clock::time_point since;
    enum class State : std::uint8_t { kNew, kBeingAnswered, kAnswered } state = State::kNew;
  };

  WebServer() = default;
  int answer(MHD_Connection* connection, const char* path, const char* method);
  void note(int descriptor, Visitor::State state);

  WebAddress address_;
  int socket_ = -1;
  WebPages* pages_ = nullptr;
  MHD_Daemon* daemon_ = nullptr;
  std::mutex mutex_;
  std::map<int, Visitor> visitors_;  // by descriptor; guarded by mutex_
};

}  // namespace sluice::watch
