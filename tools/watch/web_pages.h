// WebPages: the answers of `sluice watch --web`: the page, its updates, and metrics for Prometheus.
// Requests read no files, only the data of the runs' followers.
//
//   /          the report's page, which requests the rest
//   /data?at=  what is new since the page's cursors (tools/report/page/live.js)
//   /metrics   exposition()
//
// Without a token, only requests are answered whose Host names this machine by a name that no other
// machine can have given it. Otherwise a page from elsewhere could read the data through a name of
// its own that resolves to this machine. A token is compared in constant time.
//
// Memory:  a few answers, which are kept until there is something new.
// Threads: one at a time.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tools/watch/run_follower.h"
#include "tools/watch/run_watcher.h"

namespace sluice::watch {

// The metrics of runs in Prometheus's text format 0.0.4: each family with HELP and TYPE, in base
// units (seconds, bytes). Values of metrics.jsonl are named after their keys and explained by
// engine/observe/metric_keys.cc, so that new keys appear here automatically.
//
// Threads: pure functions.
inline constexpr const char* kExpositionType = "text/plain; version=0.0.4; charset=utf-8";

// The label `run` is a run's name.
std::string exposition(std::span<const RunFollower* const> runs);

struct WebRequest {
  std::string method;
  std::string path;  // decoded, without the query
  std::string at;    // from the query, like `token`
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
    std::string token;               // empty: none is required
    std::vector<std::string> hosts;  // accepted names of this machine, if there is no token
    std::string cookie_name = "sluice";
    int every_ms = 2000;  // how often a page requests updates
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
  std::uint64_t answered_ = 0;                     // number of the snapshot of the answers below
  std::map<std::string, std::string> increments_;  // by run and cursor
  std::string metrics_text_;
};

}  // namespace sluice::watch
