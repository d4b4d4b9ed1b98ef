// WebPages: what `sluice watch --web` answers, whoever asks: the page, what it lacks, and the
// metrics for Prometheus. Nothing is read for a request but what the followers of the runs hold.
//
//   /          the report's page, which asks for the rest
//   /data?at=  what is new since the cursors that the page has (tools/report/page/live.js)
//   /metrics   tools/watch/exposition.h
//
// Without a token only those are answered who name this machine by a name that no other machine
// can have given it (a page from elsewhere could otherwise read it by a name of its own that leads
// here). With one, it is compared in constant time.
//
// Memory:  a few answers, until there is something new.
// Threads: one at a time.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tools/watch/run_watcher.h"

namespace sluice::watch {

struct WebRequest {
  std::string method;
  std::string path;  // decoded, without the query
  std::string at;    // of the query, like the next
  std::string token;
  std::string host;  // headers
  std::string authorization;
  std::string cookie;
  bool has_body = false;
};

struct WebReply {
  int status = 200;
  std::string type = "text/plain; charset=utf-8";
  std::string body;
  std::vector<std::pair<std::string, std::string>> headers;
};

class WebPages {
 public:
  struct Options {
    std::string made_by;
    std::string token;               // empty: none is needed
    std::vector<std::string> hosts;  // without a token: how the machine may be named
    std::string cookie_name = "sluice";
    int every_ms = 2000;  // how often a page asks
    std::function<double()> now_unix_s;
  };
  WebPages(const RunWatcher& watcher, Options options);

  WebReply reply(const WebRequest& request);

 private:
  bool may_see(const WebRequest& request) const;
  bool is_token(std::string_view text) const;
  WebReply page() const;
  WebReply data(const std::string& cursors);
  WebReply metrics();

  const RunWatcher& watcher_;
  Options options_;
  std::string html_;
  std::string policy_;
  std::string title_;
  std::uint64_t answered_ = 0;                     // the sight that the answers below are of
  std::map<std::string, std::string> increments_;  // by run and cursor
  std::string metrics_text_;
};

}  // namespace sluice::watch
