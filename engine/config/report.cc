#include "engine/config/report.h"

#include <algorithm>
#include <string_view>

namespace sluice::config {
namespace {

constexpr std::size_t kWidestPath = 60;
constexpr std::size_t kWidestValue = 28;

struct Group {
  Outcome outcome;
  std::string_view title;
  bool only_verbose;
};

constexpr Group kGroups[] = {
    {Outcome::kHonoured, "honoured", false},
    {Outcome::kDerived, "follows from other keys", false},
    {Outcome::kIgnored, "ignored, without effect", false},
    {Outcome::kDefault, "defaults", true},
};

std::string padded(const std::string& text, std::size_t width) {
  return text + std::string(width > text.size() ? width - text.size() : 0, ' ');
}

std::string shown_value(const KeyReport& report) {
  if (report.value.size() <= kWidestValue) return report.value;
  std::size_t end = kWidestValue - 3;
  while (end > 0 && (static_cast<unsigned char>(report.value[end]) & 0xC0U) == 0x80U) --end;
  return report.value.substr(0, end) + "...";
}

// A file's name without its folders, to keep the column narrow.
std::string file_name(const std::string& source) { return source.substr(source.rfind('/') + 1); }

std::string line_of(const KeyReport& report, std::size_t path_width, std::size_t value_width) {
  std::string line = "  " + padded(report.path, path_width) + "  ";
  line += padded(shown_value(report), value_width) + "  ";
  if (!report.source.empty()) line += "[" + file_name(report.source) + "] ";
  line += report.reason;
  line.erase(line.find_last_not_of(' ') + 1);
  return line + "\n";
}

// The reports that `belongs` accepts, in columns under the title; empty if there are none.
template <typename Belongs>
std::string table(std::string_view title, const std::vector<KeyReport>& reports,
                  const Belongs& belongs) {
  std::size_t path_width = 0;
  std::size_t value_width = 0;
  for (const KeyReport& report : reports) {
    if (!belongs(report)) continue;
    path_width = std::max(path_width, std::min(report.path.size(), kWidestPath));
    value_width = std::max(value_width, shown_value(report).size());
  }
  if (path_width == 0) return {};
  std::string text = std::string(title) + "\n";
  for (const KeyReport& report : reports)
    if (belongs(report)) text += line_of(report, path_width, value_width);
  return text;
}

}  // namespace

std::string format_report(const Resolved& resolved, const ReportOptions& options) {
  std::string text;
  for (const Group& group : kGroups) {
    if (group.only_verbose && !options.verbose) continue;
    text += table(group.title, resolved.reports,
                  [&](const KeyReport& report) { return report.outcome == group.outcome; });
  }
  return text + format_autos(resolved);
}

std::string unused_keys(const Resolved& resolved) {
  constexpr std::size_t kMostNamed = 20;
  std::string names;
  std::size_t count = 0;
  for (const KeyReport& report : resolved.reports) {
    if (!report.is_unused) continue;
    if (++count > kMostNamed) continue;
    names += (names.empty() ? "" : ", ") + report.path;
  }
  if (count == 0) return {};
  if (count > kMostNamed) names += " and " + std::to_string(count - kMostNamed) + " more";
  return "without effect: " + names + " (sluice config shows why)";
}

std::string renamed_keys(const Resolved& resolved) {
  std::string names;
  for (const KeyReport& report : resolved.reports)
    if (!report.old_name.empty())
      names += (names.empty() ? "" : ", ") + report.old_name + " is now " + report.path;
  return names.empty() ? names : names + " (the old names still work)";
}

std::string format_autos(const Resolved& resolved) {
  const std::string text =
      table("chosen for \"auto\"", resolved.reports, [](const KeyReport& report) {
        return report.was_auto && report.outcome != Outcome::kIgnored;
      });
  if (text.empty()) return {};
  return text + "  to set one yourself: --set KEY=VALUE, or the key in a run file\n";
}

}  // namespace sluice::config
