// resolve(): from a run file, a DeepSpeed file and overrides to one Config, together with what
// became of every key.
//
// A run file is one JSON object: DeepSpeed's keys at top level, with DeepSpeed's meaning and
// defaults, and Sluice's sections beside them (key_table.h). Later sources win: defaults, run file,
// DeepSpeed file, overrides in their order. Where one source gives two of the three batch sizes, or
// the 16-bit type to use, it overrides what an earlier one said about the rest.
//
// Each source is read as DeepSpeed reads its files: with comments, trailing commas, keys without
// quotes and a byte order mark (json_text.h). "auto" in a DeepSpeed file yields to the run
// file's value, as it yields to the Trainer's elsewhere; any other "auto" is resolved by the key's
// rule, or is its default. null stands for the default.
//
// What only the data or the machine knows is passed in as an answer. Where a needed answer is
// missing, the configuration says which (Resolved::questions): a model waits for the config.json in
// model.path, run.epochs for the number of sequences in an epoch, and a precision that is "auto"
// for what the GPU can do.
//
// A key that neither Sluice nor any DeepSpeed has known is an error in every source, with the
// nearest known one. One that begins with an underscore or "//", or is "comment", is a comment.
//
// Pure: nothing is read but what is given.
//
// Threads: any.
// Errors:  kInvalidArgument, with a sentence for every key that cannot be used, not only the first.
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

enum class GpuKind : std::uint8_t { kNone, kWithoutBf16, kWithBf16 };

struct Answers {
  std::optional<GpuKind> gpu;  // that run.device allows
  std::optional<std::uint64_t> samples_per_epoch;
  std::optional<Source> model;  // the config.json in model.path
  // What recipe.lora.adapter says of itself; without targets where these are no plain names.
  std::optional<engine::LoraRecipe> adapter;
  // A configuration that names no model means the default one, as the command line has it. A module
  // from Python is none of the families'.
  bool means_default_model = false;
};

// Which answers would make a difference and are missing.
struct Questions {
  bool gpu = false;
  bool samples_per_epoch = false;
  // The shape is a stand-in then, and what is wrong with it is not said.
  bool model = false;
  // Numbers of its recipe are defaults then, and its rank 0 where that is not given.
  bool adapter = false;
};

// A number of steps that waits for the length of an epoch. As JSON it is "auto".
inline constexpr std::int64_t kOpenSteps = -1;

struct Sources {
  std::optional<Source> run_file;
  std::optional<Source> deepspeed;
  std::vector<std::string> overrides;  // "a.b=c": c as JSON, else as a string
  std::int64_t world_size = 1;
  Answers answers = {};
  // Questions about folders may stay open: of who asks what is open. Otherwise an open model, or
  // an open rank of adapters, is an error.
  bool leaves_folders_open = false;
};

enum class Outcome : std::uint8_t {
  kHonoured,
  kIgnored,  // no meaning here, or another source decided otherwise: see the reason
  kDerived,  // not given; follows from other keys
  kDefault,
};

struct KeyReport {
  std::string path;
  Outcome outcome = Outcome::kDefault;
  std::string value;      // resolved; of an ignored key what was given, shortened
  std::string reason;     // empty where nothing needs to be said
  std::string source;     // "run.json", "--set"; empty when it was not given
  bool was_auto = false;  // a source says "auto"
  bool given = false;     // honoured as a value, and not as "auto"
  // Ignored although it asks for something: of DeepSpeed's, or of another schedule than the run's.
  bool is_unused = false;
};

struct Resolved {
  Config config;
  std::vector<KeyReport> reports;  // in the order of the key table, foreign keys last
  Questions questions;
  // Keys that follow from the length of the run or the optimizer's learning rate, by their paths.
  std::vector<std::string> kept_auto;
};

Result<Resolved> resolve(const Sources& sources);

// A source as strict JSON, for those who look into it themselves.
Result<std::string> plain_json(const Source& source);

// The file at `path` as a source; at most 1 MiB.
Result<Source> read_source(const std::string& path);

// A run file that resolves to `config` again, with every key that has an effect in it: as numbers,
// which stay what they are when another source changes the length of the run.
std::string to_json(const Config& config);

// Likewise for a run that may be made longer: what followed from its length is "auto" again, and
// where run.epochs gave the length, it does so again.
std::string to_json(const Resolved& resolved);

}  // namespace sluice::config
