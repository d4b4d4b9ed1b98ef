#include "engine/config/resolve.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <iterator>
#include <utility>

#include "aio/real_file_system.h"
#include "engine/config/collect.h"
#include "engine/config/derive.h"
#include "engine/config/key_value.h"
#include "engine/families/families.h"

namespace sluice::config {
namespace {

constexpr int kRunFile = 0;
constexpr int kDeepSpeed = 1;
constexpr int kFirstOverride = 2;
constexpr std::size_t kMaxOverrides = 1000;
constexpr std::size_t kMaxRejectionsSaid = 20;

Error invalid(std::string sentence) {
  return Error(ErrorCode::kInvalidArgument, std::move(sentence));
}

const Config& default_config() {
  static const Config defaults = [] {
    Config config;
    for (const Key& key : all_keys()) {
      if (key.treatment != Treatment::kHonoured) continue;
      auto value = parse_json(key.path, key.default_json);
      SLUICE_CHECK(value.ok(), "a default of the key table is not JSON");
      if (Setting{&key, *value}.is_auto()) continue;
      SLUICE_CHECK(store_value(key, *value, config).ok(), "a default of the key table is invalid");
    }
    return config;
  }();
  return defaults;
}

// A key of type string needs no quotes: --set run.dir=7 is the folder "7".
Json override_value(const std::string& path, const std::string& text) {
  auto value = parse_json(path, text);
  const Key* key = find_key(path);
  const bool is_text = key != nullptr && std::holds_alternative<Accessor<std::string>>(key->field);
  if (!value.ok() || (is_text && !value->is_string() && !value->is_null())) return text;
  return std::move(*value);
}

// "a.b=c" as the object {"a": {"b": c}}.
Result<Document> override_document(const std::string& text, int rank) {
  const std::size_t equals = text.find('=');
  const std::string path = text.substr(0, equals);
  const std::string context = "--set " + printable(text) + ": ";
  if (equals == std::string::npos || path.empty()) {
    return invalid(context + "an override must have the form section.key=value");
  }
  if (!is_valid_utf8(text)) return invalid(context + "the text is not UTF-8");
  Json nested = override_value(path, text.substr(equals + 1));
  int depth = 0;
  for (std::size_t end = path.size(); end != std::string::npos;) {
    const std::size_t dot = end == 0 ? std::string::npos : path.rfind('.', end - 1);
    const std::size_t start = dot == std::string::npos ? 0 : dot + 1;
    if (start == end || ++depth > kMaxDepth) {
      return invalid(context + "that is not the path of a key, such as fp16.enabled");
    }
    Json outer = Json::object();
    outer[path.substr(start, end - start)] = std::move(nested);
    nested = std::move(outer);
    end = dot;
  }
  return Document{"--set", std::move(nested), rank, false};
}

// Detects the config.json of a Hugging Face folder, whose keys are not worth reporting one by one.
Status check_is_no_model(const std::string& name, const Json& root) {
  if (!root.is_object() || !root.contains("model_type") || root.contains("model")) return {};
  return invalid(name +
                 " describes a model, not a run: a run file names its folder as model.path "
                 "(configs/ has examples)");
}

Result<std::vector<Document>> documents_of(const Sources& sources) {
  std::vector<Document> documents;
  if (sources.run_file) {
    SLUICE_ASSIGN_OR_RETURN(Json root,
                            read_document(sources.run_file->name, sources.run_file->text));
    SLUICE_RETURN_IF_ERROR(check_is_no_model(sources.run_file->name, root));
    documents.push_back({sources.run_file->name, std::move(root), kRunFile, false});
  }
  if (sources.deepspeed) {
    const auto& [name, text] = *sources.deepspeed;
    SLUICE_ASSIGN_OR_RETURN(Json root, read_document(name, text));
    documents.push_back({name, std::move(root), kDeepSpeed, true});
  }
  if (sources.overrides.size() > kMaxOverrides) {
    return invalid("more than " + std::to_string(kMaxOverrides) +
                   " overrides: write a run file instead");
  }
  int rank = kFirstOverride;
  for (const std::string& text : sources.overrides) {
    SLUICE_ASSIGN_OR_RETURN(Document document, override_document(text, rank++));
    documents.push_back(std::move(document));
  }
  return documents;
}

void apply(Collected& collected, Config& config) {
  for (const auto& [path, setting] : collected.settings) {
    if (setting.is_auto()) continue;
    const Status stored = store_value(*setting.key, setting.value, config);
    if (!stored.ok()) {
      collected.rejections.push_back(setting.source + ": " + stored.error().message());
    }
  }
}

Error rejection(const std::vector<std::string>& sentences) {
  if (sentences.size() == 1) return invalid(sentences.front());
  std::string text = std::to_string(sentences.size()) + " settings cannot be used:";
  for (std::size_t i = 0; i < sentences.size() && i < kMaxRejectionsSaid; ++i) {
    text += "\n  " + sentences[i];
  }
  if (sentences.size() > kMaxRejectionsSaid) {
    text += "\n  and " + std::to_string(sentences.size() - kMaxRejectionsSaid) + " more";
  }
  return invalid(text);
}

std::string join(const std::string& a, const std::string& b) {
  return a.empty() || b.empty() ? a + b : a + "; " + b;
}

// No integer key may be negative, so a negative value can stand for an open one.
Json value_or_auto(const Key& key, Config& config) {
  Json value = load_value(key, config);
  return value.is_number_integer() && value == kOpenSteps ? Json("auto") : value;
}

std::vector<KeyReport> reports_of(Collected& collected, const Derivation& derivation) {
  std::vector<KeyReport> reports;
  for (const Key& key : all_keys()) {
    if (key.treatment != Treatment::kHonoured || !has_effect(key, derivation.config)) continue;
    const auto note = derivation.notes().find(key.path);
    const bool noted = note != derivation.notes().end();
    KeyReport report{.path = std::string(key.path),
                     .outcome = noted ? Outcome::kDerived : Outcome::kDefault,
                     .value = short_text(value_or_auto(key, derivation.config)),
                     .reason = noted ? note->second : std::string()};
    const auto found = collected.settings.find(key.path);
    if (found != collected.settings.end()) {
      const Setting& setting = found->second;
      report.outcome = Outcome::kHonoured;
      report.source = setting.source;
      if (setting.has_old_name) report.old_name = setting.given_as;
      report.given = !setting.is_auto();
      const bool to_default = setting.is_auto() && !noted;
      const bool stays_auto =
          to_default && key.default_json == "\"auto\"";  // until the plan decides
      report.was_auto = setting.was_auto || (setting.says_auto() && !stays_auto);
      const std::string given = "the default, for " + short_text(setting.value);
      report.reason = join(join(setting.note, report.reason), to_default ? given : "");
    }
    reports.push_back(std::move(report));
  }
  std::move(collected.ignored.begin(), collected.ignored.end(), std::back_inserter(reports));
  return reports;
}

}  // namespace

Result<Resolved> resolve(const Sources& sources) {
  constexpr std::int64_t kMaxWorldSize = 1 << 20;
  if (sources.world_size < 1 || sources.world_size > kMaxWorldSize) {
    return invalid("the world size is " + std::to_string(sources.world_size) +
                   ", but it must be 1 to " + std::to_string(kMaxWorldSize));
  }
  SLUICE_ASSIGN_OR_RETURN(const std::vector<Document> documents, documents_of(sources));
  Collected collected;
  for (const Document& document : documents) collect(document, collected);
  for (const auto& [path, report] : collected.refused)
    collected.rejections.push_back(report.reason);
  Config config = default_config();
  config.world_size = sources.world_size;
  apply(collected, config);
  // Rules applied to refused values would report errors in values that no source gives.
  if (!collected.rejections.empty()) return rejection(collected.rejections);
  Derivation derivation(collected, config, sources.facts);
  derive_all(derivation);
  const bool has_open_rank = derivation.missing_facts.adapter && config.lora.rank == 0;
  const bool is_open = derivation.missing_facts.model || has_open_rank;
  if (is_open && !sources.leaves_folders_open)
    return invalid(
        derivation.missing_facts.model
            ? "model.path is " + config.model.path +
                  ", but its config.json was not read: the sizes of the model are not known"
            : "recipe.lora.adapter is " + config.lora.adapter +
                  ", but its adapter_config.json was not read: the rank is not known");
  if (!collected.rejections.empty() && !is_open) return rejection(collected.rejections);
  std::vector<KeyReport> reports = reports_of(collected, derivation);
  return Resolved{std::move(config), std::move(reports), derivation.missing_facts,
                  std::move(derivation.kept_auto)};
}

Result<std::string> plain_json(const Source& source) {
  SLUICE_ASSIGN_OR_RETURN(const Json root, read_document(source.name, source.text));
  return root.dump(-1, ' ', false, Json::error_handler_t::replace);
}

Result<Source> read_source(const std::string& path) {
  SLUICE_ASSIGN_OR_RETURN(const auto file, aio::RealFileSystem().open(path, {.direct = false}));
  std::string text(kMaxTextBytes + 1, '\0');
  std::size_t length = 0;
  while (length < text.size()) {
    const ssize_t got = ::pread(file->descriptor(), text.data() + length, text.size() - length,
                                static_cast<off_t>(length));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return Error::from_errno(errno, {.operation = "read", .path = path});
    if (got == 0) break;
    length += static_cast<std::size_t>(got);
  }
  text.resize(length);
  if (text.size() > kMaxTextBytes) {
    return invalid(path + ": longer than 1 MiB, so it is not a configuration");
  }
  return Source{path, std::move(text)};
}

namespace {

std::string usual_family(const Model& model) {
  return engine::preset_shape(model.preset).value_or(engine::ModelShape{}).family;
}

// Whether a file without the key means the same. Then it is not written: files of models from
// before their family had the number stay the same, and older programs can read them.
bool goes_without_saying(const Key& key, const Model& model) {
  if (key.path == "model.family") return model.family == usual_family(model);
  if (const auto* const list = std::get_if<FamilyList>(&key.field)) {
    const std::string name(list->name);
    return !model.lists.contains(name) || model.lists.at(name).empty();
  }
  const engine::ModelFamily* const family = engine::find_family(model.family);
  if (family == nullptr || !std::holds_alternative<FamilyNumber>(key.field)) return false;
  const auto numbers = family->numbers();
  const auto number = std::find_if(numbers.begin(), numbers.end(),
                                   [&](const auto& one) { return one.key == key.path; });
  if (number == numbers.end() || !number->omit_if_default) return false;
  const std::string name(number->name());
  const auto preset = engine::preset_shape(model.preset);
  const bool is_presets = preset && preset->family == model.family;
  return model.numbers.at(name) == (is_presets ? preset->numbers.at(name) : number->default_value);
}

}  // namespace

std::string to_json(const Config& config) {
  Config numbers = config;
  if (numbers.run.steps != kOpenSteps) numbers.run.epochs.reset();
  if (numbers.schedule.warmup.steps != kOpenSteps) numbers.schedule.warmup_ratio.reset();
  return to_json(Resolved{std::move(numbers), {}, {}, {}});
}

std::string to_json(const Resolved& resolved) {
  Config config = resolved.config;
  if (config.run.epochs) config.run.steps = kOpenSteps;
  const auto& kept = resolved.kept_auto;
  Json root = Json::object();
  for (const Key& key : all_keys()) {
    if (key.treatment != Treatment::kHonoured || !has_effect(key, config)) continue;
    Json value = value_or_auto(key, config);
    if (value.is_null()) continue;
    if (goes_without_saying(key, config.model)) continue;
    if (std::find(kept.begin(), kept.end(), key.path) != kept.end()) value = "auto";
    Json* place = &root;
    std::string_view rest = key.path;
    for (std::size_t dot = rest.find('.'); dot != std::string_view::npos; dot = rest.find('.')) {
      place = &(*place)[std::string(rest.substr(0, dot))];
      rest.remove_prefix(dot + 1);
    }
    (*place)[std::string(rest)] = std::move(value);
  }
  return root.dump(2) + "\n";
}

}  // namespace sluice::config
