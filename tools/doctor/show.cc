#include "tools/doctor/show.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <sstream>

#include "aio/text.h"

namespace sluice::doctor {
namespace {

constexpr std::size_t kStateWidth = 14;   // "not possible", and two spaces
constexpr std::size_t kMostSubject = 20;  // a longer one has a line of its own
constexpr std::size_t kLeastText = 30;

std::string coloured(State state, const TableOptions& options) {
  std::string word(to_string(state));
  const std::string spaces(kStateWidth - word.size(), ' ');
  if (!options.colours) return word + spaces;
  const char* const colour = state == State::kGood ? "32" : state == State::kLimited ? "33" : "31";
  return "\033[" + std::string(colour) + "m" + word + "\033[0m" + spaces;
}

// Bytes of a terminal's control sequences in names of folders and in messages become "?".
std::string printable(const std::string& text) {
  std::string safe = text;
  for (char& c : safe)
    if (static_cast<unsigned char>(c) < ' ' || c == '\x7f') c = '?';
  return safe;
}

// Adds the text, broken at blanks so that lines end before `columns`. The first line begins where
// the last one ends, the others after `indent` blanks.
void add_wrapped(std::string& out, const std::string& text, std::size_t indent,
                 std::size_t columns) {
  std::size_t at = indent;
  std::istringstream words(printable(text));
  for (std::string word; words >> word;) {
    if (at > indent && at + 1 + word.size() > columns) {
      out += "\n" + std::string(indent, ' ');
      at = indent;
    } else if (at > indent) {
      out += ' ';
      ++at;
    }
    out += word;
    at += word.size();
  }
  out += '\n';
}

std::string conclusion(const std::vector<Finding>& findings) {
  const auto count = [&](State state) {
    return std::to_string(std::count_if(findings.begin(), findings.end(),
                                        [&](const Finding& it) { return it.state == state; })) +
           " " + std::string(to_string(state));
  };
  std::string missing;
  for (const Finding& it : findings)
    if (it.is_needed && it.state == State::kNotPossible)
      missing += (missing.empty() ? " Mend first: " : ", ") + it.subject;
  return std::string(missing.empty() ? "Training is possible on this machine"
                                     : "Something that training needs is missing or broken") +
         " (" + count(State::kGood) + ", " + count(State::kLimited) + ", " +
         count(State::kNotPossible) + ")." + missing + (missing.empty() ? "" : ".");
}

// "." and ".." would end a sentence oddly.
std::string named_in_text(const Finding& finding) {
  if (finding.subject == ".") return "the working folder";
  return (finding.key.starts_with("path.") ? "the folder " : "") + finding.subject;
}

}  // namespace

std::string table_of(const std::vector<Finding>& findings, const TableOptions& options) {
  std::size_t subject_width = 0;
  for (const Finding& it : findings)
    if (it.subject.size() <= kMostSubject)
      subject_width = std::max(subject_width, it.subject.size());
  const std::size_t indent = kStateWidth + subject_width + 2;
  const std::size_t columns =
      std::max(static_cast<std::size_t>(std::max(options.columns, 0)), indent + kLeastText);
  std::string out;
  const Finding* said = nullptr;  // the last one whose cost was printed
  for (const Finding& it : findings) {
    out += coloured(it.state, options) + printable(it.subject);
    out += it.subject.size() <= subject_width
               ? std::string(indent - kStateWidth - it.subject.size(), ' ')
               : "\n" + std::string(indent, ' ');
    add_wrapped(out, it.found, indent, columns);
    if (it.cost.empty()) continue;
    const bool is_same = said != nullptr && it.cost == said->cost && it.change == said->change;
    if (!is_same) said = &it;
    for (const std::string& text :
         is_same ? std::vector{"The same as for " + named_in_text(*said) + " above."}
                 : std::vector{it.cost, it.change}) {
      if (text.empty()) continue;
      out += std::string(indent, ' ');
      add_wrapped(out, text, indent, columns);
    }
  }
  out += '\n';
  add_wrapped(out, conclusion(findings), 0, columns);
  return out;
}

std::string json_of(const std::vector<Finding>& findings, const std::string& version) {
  using Json = nlohmann::ordered_json;
  Json lines = Json::array();
  for (const Finding& it : findings) {
    Json values = Json::object();
    for (const auto& [name, value] : it.values)
      values[name] = std::visit([](const auto& held) { return Json(held); }, value);
    std::string state(to_string(it.state));
    std::replace(state.begin(), state.end(), ' ', '_');
    lines.push_back({{"key", it.key},
                     {"subject", it.subject},
                     {"state", std::move(state)},
                     {"needed", it.is_needed},
                     {"found", it.found},
                     {"cost", it.cost},
                     {"change", it.change},
                     {"values", std::move(values)}});
  }
  const Json all = {
      {"version", version}, {"possible", can_train(findings)}, {"lines", std::move(lines)}};
  return all.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace sluice::doctor
