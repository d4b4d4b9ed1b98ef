#include "tools/watch/web_server.h"

#include <arpa/inet.h>
#include <microhttpd.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstdarg>
#include <cstring>
#include <exception>
#include <utility>

namespace sluice::watch {
namespace {

struct FreeAddresses {
  void operator()(addrinfo* list) const { ::freeaddrinfo(list); }
};

std::string text_of(const char* text) { return text == nullptr ? "" : text; }

void say_nothing(void* /*self*/, const char* /*format*/, va_list /*values*/) {}

std::uint16_t port_of(int socket) {
  sockaddr_storage storage{};
  socklen_t size = sizeof(storage);
  if (::getsockname(socket, reinterpret_cast<sockaddr*>(&storage), &size) != 0)  // NOLINT(*-cast)
    return 0;
  return ntohs(storage.ss_family == AF_INET6
                   ? reinterpret_cast<sockaddr_in6*>(&storage)->sin6_port  // NOLINT(*-cast)
                   : reinterpret_cast<sockaddr_in*>(&storage)->sin_port);  // NOLINT(*-cast)
}

}  // namespace

bool WebAddress::is_loopback() const {
  in_addr four{};
  if (::inet_pton(AF_INET, host.c_str(), &four) == 1) return ntohl(four.s_addr) >> 24U == 127;
  return host == "localhost" || host == "::1";
}

std::string WebAddress::text() const {
  const bool is_six = host.find(':') != host.npos;
  return (is_six ? "[" + host + "]" : host) + ":" + std::to_string(port);
}

Result<WebAddress> parse_address(const std::string& text) {
  const auto refused = [&] {
    return Error(ErrorCode::kInvalidArgument,
                 "\"" + text +
                     "\" is not an address: write HOST:PORT, such as 127.0.0.1:8080 or [::1]:8080");
  };
  const std::size_t colon = text.rfind(':');
  if (colon == text.npos || colon == 0) return refused();
  WebAddress address{.host = text.substr(0, colon)};
  if (address.host.front() == '[' && address.host.back() == ']')
    address.host = address.host.substr(1, address.host.size() - 2);
  else if (address.host.find(':') != address.host.npos)
    return refused();
  const char* const end = text.data() + text.size();
  const auto [at, error] = std::from_chars(text.data() + colon + 1, end, address.port);
  if (error != std::errc{} || at != end || address.host.empty()) return refused();
  return address;
}

struct WebServer::Calls {
  static MHD_Result answer(void* self, MHD_Connection* connection, const char* url,
                           const char* method, const char* /*version*/, const char* /*upload*/,
                           std::size_t* upload_bytes, void** /*request*/) {
    try {
      *upload_bytes = 0;
      return static_cast<WebServer*>(self)->answer(connection, url, method) == MHD_YES ? MHD_YES
                                                                                       : MHD_NO;
    } catch (const std::exception&) {
      return MHD_NO;
    }
  }
  static void on_connection(void* self, MHD_Connection* connection, void** /*context*/,
                            MHD_ConnectionNotificationCode code) {
    const MHD_ConnectionInfo* const info =
        MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD);
    if (info == nullptr) return;
    auto* const server = static_cast<WebServer*>(self);
    const std::lock_guard lock(server->mutex_);
    if (code == MHD_CONNECTION_NOTIFY_STARTED)
      server->visitors_[info->connect_fd] = {.since = std::chrono::steady_clock::now()};
    else
      server->visitors_.erase(info->connect_fd);
  }
  static void on_answered(void* self, MHD_Connection* connection, void** /*request*/,
                          MHD_RequestTerminationCode /*code*/) {
    if (const auto* const info =
            MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD))
      static_cast<WebServer*>(self)->note(info->connect_fd, Visitor::State::kAnswered);
  }
};

Result<std::unique_ptr<WebServer>> WebServer::listen(const WebAddress& address) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  const int looked_up =
      ::getaddrinfo(address.host.c_str(), std::to_string(address.port).c_str(), &hints, &found);
  if (looked_up != 0)
    return Error(ErrorCode::kInvalidArgument,
                 "--web: " + address.host +
                     " is not an address of this machine: " + ::gai_strerror(looked_up));
  const std::unique_ptr<addrinfo, FreeAddresses> list(found);
  std::unique_ptr<WebServer> server(new WebServer());
  server->address_ = address;
  server->socket_ = ::socket(list->ai_family, list->ai_socktype | SOCK_CLOEXEC | SOCK_NONBLOCK,
                             list->ai_protocol);
  const int yes = 1;
  constexpr int kBacklog = 64;
  if (server->socket_ < 0 ||
      ::setsockopt(server->socket_, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes)) != 0 ||
      ::bind(server->socket_, list->ai_addr, list->ai_addrlen) != 0 ||
      ::listen(server->socket_, kBacklog) != 0) {
    const int error = errno;
    const char* const advice =
        error == EADDRINUSE ? ": another program uses this port; choose another one, or 0 for any"
        : error == EACCES   ? ": ports below 1024 are reserved for the system"
                            : "";
    return Error(
        error == EADDRINUSE ? ErrorCode::kBusy : ErrorCode::kInvalidArgument,
        "--web: cannot listen on " + address.text() + ": " + std::strerror(error) + advice);
  }
  server->address_.port = port_of(server->socket_);
  return server;
}

WebServer::~WebServer() {
  if (daemon_ != nullptr)
    MHD_stop_daemon(daemon_);  // closes the socket, too
  else if (socket_ >= 0)
    ::close(socket_);
}

Status WebServer::serve(WebPages& pages) {
  pages_ = &pages;
  daemon_ = MHD_start_daemon(
      MHD_USE_INTERNAL_POLLING_THREAD | MHD_USE_AUTO | MHD_USE_ERROR_LOG, 0, nullptr, nullptr,
      &Calls::answer, this, MHD_OPTION_EXTERNAL_LOGGER, &say_nothing, nullptr,
      MHD_OPTION_LISTEN_SOCKET, socket_, MHD_OPTION_CONNECTION_LIMIT, kMostConnections,
      MHD_OPTION_CONNECTION_TIMEOUT, static_cast<unsigned>(kIdleS.count()),
      MHD_OPTION_CONNECTION_MEMORY_LIMIT, kMostHeadBytes, MHD_OPTION_STRICT_FOR_CLIENT, 1,
      MHD_OPTION_NOTIFY_CONNECTION, &Calls::on_connection, this, MHD_OPTION_NOTIFY_COMPLETED,
      &Calls::on_answered, this, MHD_OPTION_END);
  if (daemon_ == nullptr)
    return Error(ErrorCode::kInternal,
                 "--web: the server at " + address_.text() + " did not start");
  return {};
}

void WebServer::sweep() {
  const auto now = std::chrono::steady_clock::now();
  const std::lock_guard lock(mutex_);
  for (const auto& [descriptor, visitor] : visitors_)
    if (visitor.state != Visitor::State::kBeingAnswered &&
        now - visitor.since > (visitor.state == Visitor::State::kNew ? kHeadS : kIdleS))
      ::shutdown(descriptor, SHUT_RDWR);
}

void WebServer::note(int descriptor, Visitor::State state) {
  const std::lock_guard lock(mutex_);
  visitors_[descriptor] = {.since = std::chrono::steady_clock::now(), .state = state};
}

int WebServer::answer(MHD_Connection* connection, const char* path, const char* method) {
  if (const auto* const info =
          MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD))
    note(info->connect_fd, Visitor::State::kBeingAnswered);
  const auto header = [&](const char* name) {
    return text_of(MHD_lookup_connection_value(connection, MHD_HEADER_KIND, name));
  };
  const auto query = [&](const char* name) {
    return text_of(MHD_lookup_connection_value(connection, MHD_GET_ARGUMENT_KIND, name));
  };
  const std::string length = header("Content-Length");
  const WebReply reply = pages_->reply(
      {.method = method,
       .path = path,
       .at = query("at"),
       .token = query("token"),
       .host = header("Host"),
       .authorization = header("Authorization"),
       .cookie = header("Cookie"),
       .has_body = (!length.empty() && length != "0") || !header("Transfer-Encoding").empty()});
  // NOLINTNEXTLINE(*-const-cast): copied, and not written to
  MHD_Response* const response = MHD_create_response_from_buffer(
      reply.body.size(), const_cast<char*>(reply.body.data()), MHD_RESPMEM_MUST_COPY);
  if (response == nullptr) return MHD_NO;
  const auto add = [&](const char* name, const std::string& value) {
    MHD_add_response_header(response, name, value.c_str());
  };
  add("Content-Type", reply.type);
  add("Cache-Control", "no-store");
  add("X-Content-Type-Options", "nosniff");
  add("X-Frame-Options", "DENY");
  add("Referrer-Policy", "no-referrer");
  add("Cross-Origin-Resource-Policy", "same-origin");
  add("Cross-Origin-Opener-Policy", "same-origin");
  bool has_policy = false;
  for (const auto& [name, value] : reply.headers) {
    add(name.c_str(), value);
    has_policy = has_policy || name == "Content-Security-Policy";
  }
  if (!has_policy) add("Content-Security-Policy", "default-src 'none'; frame-ancestors 'none'");
  const MHD_Result queued =
      MHD_queue_response(connection, static_cast<unsigned>(reply.status), response);
  MHD_destroy_response(response);
  return queued;
}

}  // namespace sluice::watch
