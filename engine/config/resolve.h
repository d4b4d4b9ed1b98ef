// resolve(): from a run file, a DeepSpeed file and overrides to one Config, with what became of
// every key.
//
// A run file is one JSON object: DeepSpeed's keys at top level, with DeepSpeed's meaning and
// defaults, and Sluice's sections beside them (key_table.h). Later sources win: defaults, run file,
// DeepSpeed file, overrides in their order. Where one source says two of the three batch sizes, or
// which 16-bit type to use, it overrules what an earlier one said about the rest.
//
// "auto" in a DeepSpeed file leaves the run file's value, as it leaves the Trainer's elsewhere; any
// other "auto" is resolved by the key's rule, or is its default. null stands for the default.
//
// A key that Sluice does not know is an error in a run file and an override, with the nearest known
// one; in a DeepSpeed file, which others wrote, it is ignored with a reason.
//
// Pure: nothing is read but what is given. Threads: any. Errors: kInvalidArgument, with a sentence
// for every key that cannot be used, not for the first alone.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "aio/result.h"
#include "engine/config/config.h"

namespace sluice::config {

struct Source {
  std::string name;  // for messages: the path
  std::string text;
};

struct Sources {
  std::optional<Source> run_file;
  std::optional<Source> deepspeed;
  std::vector<std::string> overrides;  // "a.b=c": c as JSON, else as a string
  std::int64_t world_size = 1;
};

enum class Outcome : std::uint8_t {
  kHonoured,
  kIgnored,  // no meaning here, or another source said otherwise: see the reason
  kDerived,  // not given; follows from other keys
  kDefault,
};

struct KeyReport {
  std::string path;
  Outcome outcome = Outcome::kDefault;
  std::string value;   // resolved; of an ignored key what was given, shortened
  std::string reason;  // empty where nothing needs to be said
  std::string source;  // "run.json", "--set"; empty when it was not given
  bool given = false;  // honoured as a value, and not as "auto"
};

struct Resolved {
  Config config;
  std::vector<KeyReport> reports;  // in the order of the key table, foreign keys last
};

Result<Resolved> resolve(const Sources& sources);

// The file at `path` as a source; at most 1 MiB.
Result<Source> read_source(const std::string& path);

// A run file that resolves to `config` again, with every key that has an effect in it.
std::string to_json(const Config& config);

}  // namespace sluice::config
