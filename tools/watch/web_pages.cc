#include "tools/watch/web_pages.h"

#include <openssl/crypto.h>

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "engine/data/sha256.h"
#include "tools/report/json_text.h"
#include "tools/report/report_page.h"
#include "tools/watch/exposition.h"

namespace sluice::watch {
namespace {

constexpr std::size_t kMostKeptAnswers = 64;
constexpr std::size_t kMostCursors = 64;
constexpr std::size_t kMostCursorBytes = 200;
constexpr const char* kNoAnswer = "the runs' files do not answer; ask again later";

std::string digest_of(std::string_view text) {
  data::Sha256 digest;
  digest.update(text);
  return digest.finish();
}

WebReply refusal(int status, const std::string& sentence) {
  return {.status = status, .body = sentence + "\n", .headers = {}};
}

// The value of a cookie; empty: not set.
std::string_view cookie_of(std::string_view all, std::string_view name) {
  while (!all.empty()) {
    std::string_view one = all.substr(0, all.find(';'));
    all.remove_prefix(std::min(all.size(), one.size() + 1));
    while (one.starts_with(' ')) one.remove_prefix(1);
    if (one.size() > name.size() && one.starts_with(name) && one[name.size()] == '=')
      return one.substr(name.size() + 1);
  }
  return {};
}

// "[::1]:8080" -> "[::1]", "localhost:80" -> "localhost"
std::string_view without_port(std::string_view host) {
  const std::size_t bracket = host.find(']');
  const std::size_t colon = host.find(':', bracket == host.npos ? 0 : bracket);
  return host.substr(0, colon);
}

std::string title_of(const std::vector<std::string>& names) {
  constexpr std::size_t kMostNames = 3;
  std::string text;
  for (std::size_t i = 0; i < names.size() && i < kMostNames; ++i)
    text += (i > 0 ? ", " : "") + names[i];
  return text + (names.size() > kMostNames ? " and more" : "") + " - sluice watch";
}

std::string json_number(double value) {
  std::string text;
  report::append_number(text, value, 14);
  return text;
}

}  // namespace

WebPages::WebPages(const RunWatcher& watcher, Options options)
    : watcher_(watcher), options_(std::move(options)) {
  // The page has no points yet: it requests them. It stays the same while the server runs.
  std::vector<report::RunRecord> empty;
  std::vector<std::string> names;
  for (const Sight::Run& run : watcher_.sight()->runs) {
    names.push_back(run.view.name);
    empty.push_back(
        {.name = run.view.name,
         .path = run.view.path,
         .metrics = {.series = report::StepSeries(report::metric_columns().size(), 1)}});
  }
  const report::LivePage made = report::live_page(
      title_of(names), report::report_json(empty, {.made_unix_s = options_.now_unix_s(),
                                                   .made_by = options_.made_by,
                                                   .drive_tbw = {}}));
  html_ = made.html;
  policy_ = made.policy;
}

bool WebPages::is_token(std::string_view text) const {
  const std::string is = digest_of(text);
  const std::string wanted = digest_of(options_.token);
  return CRYPTO_memcmp(is.data(), wanted.data(), wanted.size()) == 0;
}

bool WebPages::may_see(const WebRequest& request) const {
  constexpr std::string_view kBearer = "Bearer ";
  if (options_.token.empty()) return true;
  const std::string_view header = request.authorization;
  if (header.starts_with(kBearer) && is_token(header.substr(kBearer.size()))) return true;
  const std::string_view cookie = cookie_of(request.cookie, options_.cookie_name);
  return (!cookie.empty() && is_token(cookie)) ||
         (!request.token.empty() && is_token(request.token));
}

WebReply WebPages::page() const {
  return {.type = "text/html; charset=utf-8",
          .body = html_,
          .headers = {{"Content-Security-Policy", policy_}}};
}

WebReply WebPages::data(const std::string& cursors) {
  std::vector<std::string> at;
  for (std::string_view rest = cursors; !rest.empty() && at.size() < kMostCursors;) {
    const std::string_view one = rest.substr(0, rest.find(','));
    at.emplace_back(one.substr(0, kMostCursorBytes));
    rest.remove_prefix(std::min(rest.size(), one.size() + 1));
  }
  std::string body = "{\"every_ms\":" + std::to_string(options_.every_ms) +
                     ",\"now_unix_s\":" + json_number(options_.now_unix_s()) + ",\"runs\":[";
  const bool had = watcher_.with_runs([&](std::uint64_t sight, const auto& runs) {
    if (sight != std::exchange(answered_, sight)) {
      increments_.clear();
      metrics_text_.clear();
    }
    for (std::size_t i = 0; i < runs.size(); ++i) {
      const RunFollower& run = *runs[i];
      const std::string cursor = i < at.size() ? at[i] : "0";
      const std::string key = std::to_string(i) + ":" + cursor;
      auto known = increments_.find(key);
      if (known == increments_.end()) {
        if (increments_.size() >= kMostKeptAnswers) increments_.clear();
        known = increments_.emplace(key, run.increment(cursor)).first;
      }
      const RunView& view = run.view();
      if (i > 0) body += ',';
      body += "{\"at\":\"" + run.cursor() + "\",\"live\":{\"kind\":\"" + phase_word(view.phase) +
              "\",\"text\":\"" + phase_word(view.phase) +
              "\",\"left_s\":" + json_number(view.left_s.value_or(std::nan(""))) +
              "},\"new\":" + known->second + "}";
    }
  });
  if (!had) return refusal(503, kNoAnswer);
  return {.type = "application/json", .body = body + "]}\n", .headers = {}};
}

WebReply WebPages::metrics() {
  const bool had = watcher_.with_runs([&](std::uint64_t sight, const auto& runs) {
    if (sight != std::exchange(answered_, sight)) {
      increments_.clear();
      metrics_text_.clear();
    }
    if (!metrics_text_.empty()) return;
    std::vector<const RunFollower*> all;
    all.reserve(runs.size());
    for (const auto& run : runs) all.push_back(run.get());
    metrics_text_ = exposition(all);
  });
  if (!had) return refusal(503, kNoAnswer);
  return {.type = kExpositionType, .body = metrics_text_, .headers = {}};
}

WebReply WebPages::reply(const WebRequest& request) {
  if (request.method != "GET" && request.method != "HEAD") {
    WebReply refused = refusal(405, "only GET and HEAD are answered");
    refused.headers.emplace_back("Allow", "GET, HEAD");
    return refused;
  }
  if (request.has_body) return refusal(413, "a request has no body here");
  if (options_.token.empty()) {
    const std::string_view host = without_port(request.host);
    if (std::find(options_.hosts.begin(), options_.hosts.end(), host) == options_.hosts.end())
      return refusal(
          421, "this server is not known by that name: open the address that sluice watch printed");
  }
  if (request.path == "/favicon.ico") return {.status = 204, .body = {}, .headers = {}};
  if (!may_see(request)) {
    WebReply refused =
        refusal(401, "a token is needed: open the address that sluice watch printed");
    refused.headers.emplace_back("WWW-Authenticate", "Bearer");
    return refused;
  }
  if (request.path == "/") {
    if (options_.token.empty() || request.token.empty()) return page();
    // Removes the token from the address, where others may see it on the screen or in the history.
    WebReply moved = refusal(303, "see /");
    moved.headers = {{"Location", "/"},
                     {"Set-Cookie", options_.cookie_name + "=" + options_.token +
                                        "; Path=/; HttpOnly; SameSite=Lax"}};
    return moved;
  }
  if (request.path == "/data") return data(request.at);
  if (request.path == "/metrics") return metrics();
  return refusal(404, "there is /, /data and /metrics");
}

}  // namespace sluice::watch
