#include "engine/comm/host_lists.h"

#include <algorithm>
#include <cctype>
#include <cstdint>
#include <functional>
#include <optional>
#include <set>

#include "engine/comm/launcher_text.h"
#include "engine/comm/rank_context.h"

namespace sluice::engine {
namespace {

constexpr std::uint64_t kMaxListChars = 1U << 20;

// "01-03,7" after the prefix "gpu": gpu01 gpu02 gpu03 gpu7.
Status expand_ranges(std::string_view prefix, std::string_view ranges, std::string_view suffix,
                     std::vector<std::string>* nodes) {
  while (true) {
    const std::size_t comma = ranges.find(',');
    const std::string_view range = ranges.substr(0, comma);
    const std::size_t dash = range.find('-');
    const std::string_view low = range.substr(0, dash);
    const std::string_view high = dash == std::string_view::npos ? low : range.substr(dash + 1);
    const std::optional<int> first = whole_number(low, 999'999'999);
    const std::optional<int> last = whole_number(high, 999'999'999);
    if (!first || !last || *first > *last) {
      return wrong(quoted(range) + " is not a range of nodes");
    }
    if (*last - *first >= kMaxRanks || nodes->size() > kMaxRanks) {
      return wrong("more than " + std::to_string(kMaxRanks) + " nodes");
    }
    for (int number = *first; number <= *last; ++number) {
      std::string digits = std::to_string(number);
      if (digits.size() < low.size()) digits.insert(0, low.size() - digits.size(), '0');
      nodes->push_back(std::string(prefix).append(digits).append(suffix));
    }
    if (comma == std::string_view::npos) return {};
    ranges.remove_prefix(comma + 1);
  }
}

bool is_max_slots(std::string_view word) {
  constexpr std::string_view kMaxSlots = "max_slots=";
  return word.starts_with(kMaxSlots) &&
         whole_number(word.substr(kMaxSlots.size()), kMaxRanks).has_value();
}

}  // namespace

std::string compared_host(std::string_view host) {
  std::string name(host);
  for (char& c : name) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return name;
}

Result<std::vector<std::string>> parse_node_list(std::string_view list) {
  std::vector<std::string> nodes;
  if (list.size() > kMaxListChars) return wrong("a node list of more than 1 MiB");
  for (std::size_t begin = 0; begin <= list.size();) {
    const std::size_t stop = list.find_first_of(",[", begin);
    std::size_t end = std::min(stop, list.size());
    if (stop != std::string_view::npos && list[stop] == '[') {
      const std::size_t close = list.find(']', stop);
      if (close == std::string_view::npos) {
        return wrong(quoted(list) + " has a '[' without its ']'");
      }
      end = std::min(list.find(',', close), list.size());
      const std::string_view suffix = list.substr(close + 1, end - close - 1);
      if (suffix.find_first_of("[]") != std::string_view::npos) {
        return wrong(quoted(list) + " has two brackets in one name, which Sluice does not support");
      }
      SLUICE_RETURN_IF_ERROR(expand_ranges(list.substr(begin, stop - begin),
                                           list.substr(stop + 1, close - stop - 1), suffix,
                                           &nodes));
    } else {
      const std::string_view name = list.substr(begin, end - begin);
      if (name.empty() || name.find_first_of("] \t\r\n") != std::string_view::npos) {
        return wrong(quoted(list) + " is not a list of nodes");
      }
      nodes.emplace_back(name);
    }
    if (nodes.size() > kMaxRanks) return wrong("more than " + std::to_string(kMaxRanks) + " nodes");
    begin = end + 1;
    if (end == list.size()) break;
  }
  return nodes;
}

Result<std::vector<int>> parse_tasks_per_node(std::string_view counts) {
  std::vector<int> tasks;
  if (counts.size() > kMaxListChars) return wrong("more than 1 MiB");
  for (std::string_view rest = counts;;) {
    const std::size_t comma = rest.find(',');
    std::string_view item = rest.substr(0, comma);
    int repeats = 1;
    const std::size_t open = item.find("(x");
    if (open != std::string_view::npos && item.ends_with(')')) {
      repeats = whole_number(item.substr(open + 2, item.size() - open - 3), kMaxRanks).value_or(0);
      item = item.substr(0, open);
    }
    const std::optional<int> count = whole_number(item, kMaxRanks);
    if (!count || *count == 0 || repeats == 0 ||
        tasks.size() + static_cast<std::size_t>(repeats) > kMaxRanks) {
      return wrong(quoted(counts) + " is not a list of tasks per node, such as '2(x3),1'");
    }
    tasks.insert(tasks.end(), static_cast<std::size_t>(repeats), *count);
    if (comma == std::string_view::npos) return tasks;
    rest.remove_prefix(comma + 1);
  }
}

Result<std::vector<HostSlots>> parse_hostfile(std::string_view text) {
  constexpr std::string_view kBlank = " \t\r";
  std::vector<HostSlots> hosts;
  constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";
  if (text.starts_with(kByteOrderMark)) text.remove_prefix(kByteOrderMark.size());
  std::set<std::string, std::less<>> seen;
  int ranks = 0;
  for (int number = 1; !text.empty(); ++number) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    line = line.substr(0, line.find('#'));
    std::vector<std::string_view> words;
    while (true) {
      const std::size_t begin = line.find_first_not_of(kBlank);
      if (begin == std::string_view::npos) break;
      line.remove_prefix(begin);
      const std::size_t length = std::min(line.find_first_of(kBlank), line.size());
      words.push_back(line.substr(0, length));
      line.remove_prefix(length);
    }
    if (words.empty()) continue;
    const std::string where = "line " + std::to_string(number) + " of the hostfile: ";
    constexpr std::string_view kSlots = "slots=";
    // Open MPI's max_slots does not say how many ranks are wanted; DeepSpeed ignores it, too.
    const bool has_form = words.size() == 2 || (words.size() == 3 && is_max_slots(words[2]));
    const int slots = has_form && words[1].starts_with(kSlots)
                          ? whole_number(words[1].substr(kSlots.size()), kMaxRanks).value_or(0)
                          : 0;
    if (words.front().starts_with('-'))  // ssh would parse it as an option
      return wrong(where + "no host is called " + quoted(words.front()));
    if (slots == 0) {
      std::string found = "expected 'host slots=N' with N of 1 or more, and found";
      for (const std::string_view word : words) found.append(" ").append(quoted(word));
      return wrong(where + found);
    }
    const HostSlots named{std::string(words.front()), slots};
    if (named.host.starts_with('@') || named.address().empty())
      return wrong(where + quoted(named.host) + " is not 'host' or 'user@host'");
    if (!seen.insert(compared_host(named.address())).second) {
      return wrong(where + "host " + quoted(named.address()) + " is listed twice");
    }
    ranks += slots;
    if (ranks > kMaxRanks) {
      return wrong(where + "more than " + std::to_string(kMaxRanks) + " slots in all");
    }
    hosts.push_back(named);
  }
  if (hosts.empty()) return wrong("the hostfile names no host");
  return hosts;
}

}  // namespace sluice::engine
