#include "tools/report/report_page.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <openssl/evp.h>
#include <openssl/sha.h>

#include <array>
#include <nlohmann/json.hpp>

#include "tools/report/json_text.h"
#include "tools/report/report_data.h"

namespace sluice::report {
namespace {

using testing::HasSubstr;
using testing::Not;

const std::string kHostile =
    "</script><script>alert(1)</script><!--<img src=x onerror=alert(1)> \" ' & \xe2\x80\xa8 \xff";

std::string between(const std::string& text, const std::string& begin, const std::string& end) {
  const std::size_t from = text.find(begin);
  EXPECT_NE(from, text.npos) << begin;
  const std::size_t first = from + begin.size();
  return text.substr(first, text.find(end, first) - first);
}

int count(const std::string& text, const std::string& part) {
  int found = 0;
  for (std::size_t at = text.find(part); at != text.npos; at = text.find(part, at + 1)) ++found;
  return found;
}

RunRecord hostile_run() {
  return {
      .name = kHostile,
      .path = kHostile,
      .metrics = {.series = StepSeries(metric_columns().size(), 10)},
      .events = {.events = {nlohmann::json({{"event", "warning"}, {"text", "</script>"}}).dump()}},
      .config = {{kHostile, kHostile}},
      .checkpoints = {{.step = 1, .bytes = 2, .state = kHostile}},
      .notices = {kHostile}};
}

TEST(JsonText, LeavesNothingInAStringThatHtmlOrAScriptWouldSee) {
  std::string out;
  append_string(out, kHostile);
  EXPECT_EQ(out.find_first_of("<>&"), out.npos);
  EXPECT_THAT(out, Not(HasSubstr("\xe2\x80\xa8")));
  const std::string back = nlohmann::json::parse(out);
  EXPECT_EQ(back.substr(0, 40), kHostile.substr(0, 40));
  EXPECT_THAT(back, HasSubstr("\xe2\x80\xa8"));
}

TEST(JsonText, WritesNumbersThatJsonHas) {
  std::string out;
  for (const double value : {0.5, 1e300, -2.0, 1.0 / 3}) append_number(out += ' ', value, 6);
  append_number(out += ' ', std::numeric_limits<double>::quiet_NaN(), 6);
  append_number(out += ' ', -std::numeric_limits<double>::infinity(), 6);
  EXPECT_EQ(out, " 0.5 1e+300 -2 0.333333 null null");
}

TEST(ReportPage, ShowsHostileTextAsDataAlone) {
  const std::string page = report_page(kHostile, report_json({hostile_run()}, {}));
  EXPECT_EQ(count(page, "<script"), 2);  // the data, and the page's own script
  EXPECT_EQ(count(page, "</script>"), 2);
  EXPECT_THAT(page, Not(HasSubstr("<img")));
  EXPECT_THAT(page, HasSubstr("<title>&lt;/script&gt;&lt;script&gt;"));
  const auto json = nlohmann::json::parse(between(page, "id=\"sluice-data\">", "</script>"));
  EXPECT_EQ(json["format"], "sluice-report");
  EXPECT_THAT(json["runs"][0]["name"].get<std::string>(), HasSubstr("<script>alert(1)"));
  EXPECT_EQ(json["runs"][0]["events"][0]["text"], "</script>");
}

TEST(ReportPage, AllowsItsOwnScriptAndNoConnection) {
  const std::string page = report_page("a run", report_json({}, {}));
  const std::string policy = between(page, "Content-Security-Policy\" content=\"", "\"");
  EXPECT_THAT(policy, testing::StartsWith("default-src 'none';"));
  const std::string script = between(page, "\n<script>", "</script>");
  std::array<unsigned char, SHA256_DIGEST_LENGTH> digest{};
  SHA256(reinterpret_cast<const unsigned char*>(script.data()), script.size(), digest.data());
  // OpenSSL's base64: four characters for three bytes, and padding.
  std::array<unsigned char, 64> text{};
  const int length = EVP_EncodeBlock(text.data(), digest.data(), digest.size());
  EXPECT_THAT(policy, HasSubstr("script-src 'sha256-" +
                                std::string(text.begin(), text.begin() + length) + "'"));
  for (const char* const loads : {"src=", "href=", "@import", "url(", "fetch(", "XMLHttpRequest",
                                  "WebSocket", "innerHTML", "eval(", "document.write"})
    EXPECT_THAT(page, Not(HasSubstr(loads))) << loads;
}

TEST(ReportPage, HasTheLicenceOfWhatItDrawsWith) {
  const std::string page = report_page("a run", report_json({}, {}));
  EXPECT_THAT(page, HasSubstr("Copyright (c) 2022 Leon Sorokin"));
  EXPECT_THAT(page, HasSubstr("The above copyright notice and this permission notice"));
}

TEST(ReportPage, StaysBelowTwoMegabytesWhateverTheNumberOfRuns) {
  for (const std::size_t count : {1, 2, 5, 32}) {
    std::vector<RunRecord> runs;
    for (std::size_t r = 0; r < count; ++r) {
      StepSeries series(metric_columns().size(), buckets_for(count));
      std::vector<double> values(metric_columns().size());
      for (int step = 1; step <= 20000; ++step) {
        for (std::size_t i = 0; i < values.size(); ++i)
          values[i] = 1e4 + 1.234567 * (step * 7919 % 10007) + static_cast<double>(i);
        series.add(step, values);
      }
      runs.push_back({.name = "run", .path = "run", .metrics = {.series = std::move(series)}});
    }
    EXPECT_LT(report_page("runs", report_json(runs, {})).size(), 2000000U) << count;
  }
}

}  // namespace
}  // namespace sluice::report
