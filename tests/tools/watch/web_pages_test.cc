// Which answers the server of `sluice watch` gives to whom.
#include "tools/watch/web_pages.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/aio/backends_under_test.h"
#include "tools/watch/web_server.h"

namespace sluice::watch {
namespace {

using testing::HasSubstr;
using testing::Not;

class Web : public testing::Test {
 protected:
  Web() {
    std::ofstream(folder_.file("metrics.jsonl")) << "{\"step\":1,\"loss\":2.5}\n";
    std::vector<std::unique_ptr<RunFollower>> runs;
    runs.push_back(std::make_unique<RunFollower>(RunFollower::Options{
        .path = folder_.path(), .name = "<script>\"\\\n", .now_unix_s = [] { return 100.0; }}));
    watcher_ = std::make_unique<RunWatcher>(std::move(runs), std::chrono::hours(1));
    local_ = pages("");
    guarded_ = pages("0123456789abcdef");
  }
  std::unique_ptr<WebPages> pages(const std::string& token) const {
    return std::make_unique<WebPages>(*watcher_,
                                      WebPages::Options{.made_by = "sluice",
                                                        .token = token,
                                                        .hosts = {"localhost", "[::1]"},
                                                        .cookie_name = "sluice_80",
                                                        .now_unix_s = [] { return 100.0; }});
  }
  static WebRequest request(const std::string& path) {
    return {.method = "GET", .path = path, .host = "localhost:8080"};
  }

  const aio::TemporaryFolder folder_;
  std::unique_ptr<RunWatcher> watcher_;
  std::unique_ptr<WebPages> local_;
  std::unique_ptr<WebPages> guarded_;
};

TEST_F(Web, AnswersThreeRoutesAndNoOther) {
  const WebReply page = local_->reply(request("/"));
  EXPECT_EQ(page.status, 200);
  EXPECT_THAT(page.body, Not(HasSubstr("<script>\"")));
  EXPECT_THAT(page.headers.front().second, HasSubstr("connect-src 'self'; frame-ancestors 'none'"));
  const WebReply data = local_->reply(request("/data"));
  EXPECT_EQ(data.type, "application/json");
  const auto told = nlohmann::json::parse(data.body);
  EXPECT_EQ(told["runs"][0]["new"]["series"]["columns"]["loss"]["all"], 2.5);
  WebRequest again = request("/data");
  again.at = told["runs"][0]["at"];
  EXPECT_TRUE(nlohmann::json::parse(local_->reply(again).body)["runs"][0]["new"].is_null());
  EXPECT_THAT(local_->reply(request("/metrics")).body,
              HasSubstr("sluice_loss_nats{run=\"<script>\\\"\\\\?\"} 2.5\n"));
  for (const char* const path :
       {"", "/data/", "/../metrics", "/etc/passwd", "/metrics.jsonl", "//", "/config.json"})
    EXPECT_EQ(local_->reply(request(path)).status, 404) << path;
}

TEST_F(Web, RefusesOtherMethodsBodiesAndNames) {
  for (const char* const method : {"POST", "PUT", "DELETE", "OPTIONS", "get", ""}) {
    WebRequest other = request("/");
    other.method = method;
    EXPECT_EQ(local_->reply(other).status, 405) << method;
  }
  WebRequest with_body = request("/data");
  with_body.has_body = true;
  EXPECT_EQ(local_->reply(with_body).status, 413);
  for (const char* const host : {"", "evil.example", "evil.example:8080", "localhost.evil.example",
                                 "[::2]:8080", "127.0.0.1.nip.io"}) {
    WebRequest other = request("/data");
    other.host = host;
    EXPECT_EQ(local_->reply(other).status, 421) << host;
  }
  WebRequest six = request("/");
  six.host = "[::1]:8080";
  EXPECT_EQ(local_->reply(six).status, 200);
}

TEST_F(Web, WantsTheTokenWhereItHasOne) {
  for (const char* const path : {"/", "/data", "/metrics", "/absent"})
    EXPECT_EQ(guarded_->reply(request(path)).status, 401) << path;
  for (const char* const wrong : {"", "0123456789abcde", "0123456789abcdef0", "0123456789ABCDEF"}) {
    WebRequest other = request("/data");
    other.token = wrong;
    other.authorization = std::string("Bearer ") + wrong;
    other.cookie = std::string("sluice_80=") + wrong;
    EXPECT_EQ(guarded_->reply(other).status, 401) << wrong;
  }
  WebRequest by_header = request("/metrics");
  by_header.host = "any.example";
  by_header.authorization = "Bearer 0123456789abcdef";
  EXPECT_EQ(guarded_->reply(by_header).status, 200);
  WebRequest by_cookie = request("/data");
  by_cookie.cookie = "a=b; xsluice_80=1; sluice_80=0123456789abcdef";
  EXPECT_EQ(guarded_->reply(by_cookie).status, 200);
  WebRequest by_address = request("/");
  by_address.token = "0123456789abcdef";
  const WebReply moved = guarded_->reply(by_address);
  EXPECT_EQ(moved.status, 303);
  EXPECT_THAT(moved.headers.back().second,
              testing::AllOf(HasSubstr("HttpOnly"), HasSubstr("SameSite=Lax")));
}

TEST(WebAddress, ReadsWhatItWrites) {
  for (const char* const text : {"127.0.0.1:8080", "[::1]:0", "localhost:80", "0.0.0.0:65535"}) {
    const auto address = parse_address(text);
    EXPECT_OK(address);
    EXPECT_EQ(address->text(), text);
  }
  for (const char* const text : {"", "8080", ":8080", "127.0.0.1:", "127.0.0.1:65536", "::1:80",
                                 "localhost:-1", "localhost:8 ", "[]:80"})
    EXPECT_FALSE(parse_address(text).ok()) << text;
  EXPECT_TRUE(parse_address("127.3.2.1:1")->is_loopback());
  EXPECT_FALSE(parse_address("0.0.0.0:1")->is_loopback());
  EXPECT_FALSE(parse_address("128.0.0.1:1")->is_loopback());
  EXPECT_FALSE(parse_address("127.evil.example:1")->is_loopback());
}

}  // namespace
}  // namespace sluice::watch
