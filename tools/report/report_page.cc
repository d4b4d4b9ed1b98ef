#include "tools/report/report_page.h"

#include <cstdint>
#include <string_view>

#include "engine/data/sha256.h"
#include "tools/report/json_text.h"

namespace sluice::report {
namespace {

constexpr std::string_view kLicence = "uplot/LICENSE";
constexpr std::string_view kLiveScript = "page/live.js";

// All parts whose names end with `ending`, in order.
std::string parts(std::string_view ending) {
  std::string text;
  for (const PagePart& part : page_parts())
    if (part.name.ends_with(ending)) text.append(part.text).append("\n");
  return text;
}

// 64 hexadecimal digits as base64, the form of digests in policies.
std::string base64_of(const std::string& hex) {
  constexpr std::string_view kDigits =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string text;
  std::uint32_t bits = 0;
  int count = 0;
  for (const char c : hex) {
    bits = bits << 4U | static_cast<std::uint32_t>(c <= '9' ? c - '0' : c - 'a' + 10);
    count += 4;
    if (count < 6) continue;
    count -= 6;
    text += kDigits[bits >> count & 63U];
  }
  if (count > 0) text += kDigits[bits << (6 - count) & 63U];
  while (text.size() % 4 != 0) text += '=';
  return text;
}

// uPlot preceded by its licence, and the page's own scripts in their own scope.
std::string script(bool live) {
  std::string own;
  std::string library;
  for (const PagePart& part : page_parts()) {
    if (part.name == kLicence) library.append("/*!\n").append(part.text).append("*/\n");
    if (!part.name.ends_with(".js") || (part.name == kLiveScript && !live)) continue;
    (part.name.starts_with("uplot/") ? library : own).append(part.text).append("\n");
  }
  return "\n" + library + "(() => {\n\"use strict\";\n" + own + "})();\n";
}

std::string policy(const std::string& script_text, bool live) {
  data::Sha256 digest;
  digest.update(script_text);
  return "default-src 'none'; img-src data: blob:; style-src 'unsafe-inline'; script-src 'sha256-" +
         base64_of(digest.finish()) + "'; base-uri 'none'; form-action 'none'" +
         (live ? "; connect-src 'self'" : "");
}

std::string page(const std::string& title, const std::string& json, const std::string& script_text,
                 const std::string& policy_text) {
  return "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
         "<meta http-equiv=\"Content-Security-Policy\" content=\"" +
         policy_text +
         "\">\n<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
         "<meta name=\"color-scheme\" content=\"light dark\">\n<title>" +
         html_escaped(title) + "</title>\n<style>\n" + parts(".css") +
         "</style>\n</head>\n<body>\n"
         "<noscript>The charts of this page are drawn by a script in it: open it in a browser that "
         "allows that. Nothing is loaded from anywhere.</noscript>\n"
         "<div id=\"app\"></div>\n"
         "<footer><details><summary>Charts are drawn by uPlot, under the MIT "
         "licence</summary><pre>" +
         html_escaped(parts("LICENSE")) +
         "</pre></details></footer>\n"
         "<script type=\"application/json\" id=\"sluice-data\">" +
         json + "</script>\n<script>" + script_text + "</script>\n</body>\n</html>\n";
}

}  // namespace

std::string report_page(const std::string& title, const std::string& json) {
  const std::string script_text = script(false);
  return page(title, json, script_text, policy(script_text, false));
}

LivePage live_page(const std::string& title, const std::string& json) {
  const std::string script_text = script(true);
  const std::string policy_text = policy(script_text, true);
  return {.html = page(title, json, script_text, policy_text),
          .policy = policy_text + "; frame-ancestors 'none'"};
}

}  // namespace sluice::report
