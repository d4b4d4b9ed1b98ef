// resolve(): makes one Config from a run file, a DeepSpeed file and overrides, and reports what
// became of every key.
//
// A run file is one JSON object: DeepSpeed's keys at top level, with DeepSpeed's meaning and
// defaults, and Sluice's own sections (key_table.h). Later sources win: defaults, run file,
// DeepSpeed file, overrides in their order. If one source gives two of the three batch sizes, or
// the 16-bit type, it overrides earlier sources for the rest too.
//
// Each source is read in DeepSpeed's relaxed JSON: with comments, trailing commas, keys without
// quotes and a byte order mark (json_text.h). An "auto" in a DeepSpeed file yields to the run
// file's value, as it yields to the Trainer's elsewhere. Any other "auto" is resolved by the key's
// rule, or is its default. null stands for the default.
//
// Facts about the data or the machine are passed in as ResolverFacts. If a required fact is
// missing, Resolved::missing_facts lists it. A model requires the config.json in model.path,
// run.epochs the number of sequences in an epoch, and an "auto" precision the abilities of the GPU.
//
// A key unknown to Sluice and to every DeepSpeed version is an error in every source, with the
// nearest known key. A key that begins with an underscore or "//", or is "comment", is a comment.
//
// Pure: reads nothing but its arguments.
//
// Threads: any.
// Errors:  kInvalidArgument, with a sentence for every invalid key, not only the first.
#pragma once

#include <cstdint>
#include <map>
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

enum class GpuKind : std::uint8_t { kNone, kWithoutBf16, kWithBf16 };

struct ResolverFacts {
  std::optional<GpuKind> gpu;  // that run.device allows
  std::optional<std::uint64_t> samples_per_epoch;
  std::optional<Source> model;  // the config.json in model.path
  // Folders of models that model.path and model.init_from give by their name on the hub.
  std::map<std::string, std::string> hub_folders = {};
  // The recipe of recipe.lora.adapter; without targets if these are not plain names.
  std::optional<engine::LoraRecipe> adapter;
  // Whether a configuration without a model means the default one, as on the command line. A module
  // from Python is not a model of any family.
  bool means_default_model = false;
};

// Facts that were not given and would make a difference.
struct MissingFacts {
  bool gpu = false;
  bool samples_per_epoch = false;
  // Then the shape is a stand-in, and its errors are not reported.
  bool model = false;
  // Then the recipe has default numbers, and rank 0 if none is given.
  bool adapter = false;
};

// A number of steps that depends on the unknown length of an epoch. In JSON it is "auto".
inline constexpr std::int64_t kOpenSteps = -1;

struct Sources {
  std::optional<Source> run_file;
  std::optional<Source> deepspeed;
  std::vector<std::string> overrides;  // "a.b=c": c is JSON, or else a string
  std::int64_t world_size = 1;
  ResolverFacts facts = {};
  // Whether facts about folders may be missing: the caller handles them. Otherwise an open
  // model, or an open rank of adapters, is an error.
  bool leaves_folders_open = false;
};

enum class Outcome : std::uint8_t {
  kHonoured,
  kIgnored,  // no meaning here, or overridden by another source: see the reason
  kDerived,  // not given; follows from other keys
  kDefault,
};

struct KeyReport {
  std::string path;
  Outcome outcome = Outcome::kDefault;
  std::string value;      // resolved; for an ignored key the given value, shortened
  std::string reason;     // empty if there is nothing to explain
  std::string source;     // "run.json", "--set"; empty if not given
  bool was_auto = false;  // a source gives "auto"
  std::string old_name;   // under which it is given; empty: under its own
  bool given = false;     // honoured as a value, not as "auto"
  // Ignored although it requests something: a feature of DeepSpeed, or of another schedule.
  bool is_unused = false;
};

struct Resolved {
  Config config;
  std::vector<KeyReport> reports;  // in the order of the key table, foreign keys last
  MissingFacts missing_facts;
  // Paths of keys that follow from the length of the run or the optimizer's learning rate.
  std::vector<std::string> kept_auto;
};

Result<Resolved> resolve(const Sources& sources);

// A source as strict JSON, for callers that inspect it.
Result<std::string> plain_json(const Source& source);

// Reads the file at `path` as a source; at most 1 MiB.
Result<Source> read_source(const std::string& path);

// A run file that resolves to `config` again, with every key that has an effect. Derived values are
// numbers, which do not change if another source changes the length of the run.
std::string to_json(const Config& config);

// The same for a run that may be extended: values derived from its length are "auto" again, and
// run.epochs determines the length if it did before.
std::string to_json(const Resolved& resolved);

}  // namespace sluice::config
