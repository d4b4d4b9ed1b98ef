#include "tools/report/events_file.h"

#include <deque>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "aio/bounded_json.h"
#include "aio/text.h"
#include "engine/observe/log_parts.h"
#include "tools/report/text_lines.h"

namespace sluice::report {
namespace {

using Json = nlohmann::ordered_json;

bool is_event(const Json& json) {
  if (!json.is_object()) return false;
  const auto kind = json.find("event");
  const auto time = json.find("unix_s");
  const auto step = json.find("step");
  if (kind == json.end() || !kind->is_string() || time == json.end() || !time->is_number() ||
      step == json.end() || !step->is_number_integer())
    return false;
  const auto& name = kind->get_ref<const std::string&>();
  return name == "begin" || name == "checkpoint" || name == "warning" || name == "end";
}

// The keys of a `begin`: path -> value.
std::map<std::string, std::string> keys_of(const Json& begin) {
  std::map<std::string, std::string> keys;
  const auto list = begin.find("config");
  if (list == begin.end() || !list->is_array()) return keys;
  for (const Json& key : *list) {
    // An overruled key appears twice.
    if (!key.is_object() || key.value("outcome", Json()) == "ignored") continue;
    const auto path = key.find("path");
    const auto value = key.find("value");
    if (path != key.end() && path->is_string() && value != key.end())
      keys[path->get<std::string>()] =
          value->is_string() ? value->get<std::string>() : json_line(*value);
  }
  return keys;
}

Json changes(const Json& before, const Json& after) {
  const auto old_keys = keys_of(before);
  const auto new_keys = keys_of(after);
  Json list = Json::array();
  const auto value_in = [](const auto& keys, const std::string& path) -> Json {
    const auto found = keys.find(path);
    return found == keys.end() ? Json() : Json(found->second);
  };
  auto all = old_keys;
  all.insert(new_keys.begin(), new_keys.end());
  for (const auto& [path, value] : all) {
    const Json was = value_in(old_keys, path);
    const Json is = value_in(new_keys, path);
    if (was != is) list.push_back({path, was, is});
  }
  for (const char* const name : {"build", "machine"})
    if (before.value(name, Json()) != after.value(name, Json()))
      list.push_back(
          {name, json_line(before.value(name, Json())), json_line(after.value(name, Json()))});
  return list;
}

class Reader {
 public:
  void take(const TextLine& line) {
    Json json = json_or_discarded<Json>(line.text);
    if (!is_event(json)) {
      ++(line.ended ? file_.bad_lines : torn_);
      return;
    }
    const bool begins = json["event"] == "begin";
    if (line.text.size() > (begins ? EventsFile::kMostBeginBytes : EventsFile::kMostEventBytes)) {
      ++file_.bad_lines;
      return;
    }
    latest_.push_back(json_line(json));
    if (latest_.size() > EventsFile::kMostLatest) latest_.pop_front();
    if (++of_kind_[json["event"].get<std::string>()] > EventsFile::kMostOfAKind) {
      ++file_.left_out;
      return;
    }
    if (begins) follow(json);
    events_.push_back(std::move(json));
    if (begins) last_begin_ = events_.size() - 1;
  }

  EventsFile finish() {
    for (const Json& event : events_) file_.events.push_back(json_line(event));
    file_.latest.assign(latest_.begin(), latest_.end());
    file_.has_torn_end = torn_ > 0;
    return std::move(file_);
  }

 private:
  // `json` begins another life: reduces the previous `begin` to what the page shows of it.
  void follow(Json& json) {
    if (!last_begin_) return;
    Json& before = events_[*last_begin_];
    json["changes"] = changes(before, json);
    before.erase("config");
    before.erase("tiers");
  }

  EventsFile file_;
  std::vector<Json> events_;
  std::deque<std::string> latest_;
  std::optional<std::size_t> last_begin_;
  std::map<std::string, std::size_t> of_kind_;
  std::int64_t torn_ = 0;
};

}  // namespace

Result<EventsFile> read_events_file(const std::string& path) {
  Reader reader;
  std::int64_t too_long = 0;
  const auto begin = [&] {
    reader = {};
    too_long = 0;
  };
  SLUICE_RETURN_IF_ERROR(
      engine::visit_log_parts(path, begin, [&](const std::string& part) -> Status {
        SLUICE_ASSIGN_OR_RETURN(const std::int64_t lines,
                                read_lines(part, [&](const TextLine& line) { reader.take(line); }));
        too_long += lines;
        return {};
      }));
  EventsFile file = reader.finish();
  file.bad_lines += too_long;
  return file;
}

}  // namespace sluice::report
