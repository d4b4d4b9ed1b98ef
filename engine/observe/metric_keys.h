// The meaning of every key of metrics.jsonl and events.jsonl. `sluice metrics --keys` and
// METRICS.md are generated from it.
//
// Constant data; threads: any.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace sluice::engine {

struct MetricKey {
  std::string_view name;
  std::string_view unit;     // "ms", "bytes"; empty: none
  std::string_view when;     // the lines that have it
  std::string_view meaning;  // a sentence, or several
};

// Keys of a line of metrics.jsonl, in the order of the file.
std::span<const MetricKey> metric_keys();

// Keys of a line of events.jsonl, event by event; `when` names the events.
std::span<const MetricKey> event_keys();

// Both lists: as aligned text, as one JSON object, and in the form of METRICS.md.
std::string describe_metrics();
std::string metrics_json();
std::string metrics_page();

}  // namespace sluice::engine
