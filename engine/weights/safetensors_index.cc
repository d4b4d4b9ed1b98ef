#include "engine/weights/safetensors_index.h"

#include <cstdio>
#include <set>
#include <utility>

#include "engine/weights/json_events.h"
#include "engine/weights/quoting.h"

namespace sluice::engine {
namespace {

constexpr std::string_view kSuffix = ".safetensors";
constexpr int kMaxDepth = 8;

bool is_file_name(std::string_view name) {
  return name.size() <= 255 && name.size() > kSuffix.size() && name.ends_with(kSuffix) &&
         name.find('/') == std::string_view::npos && name.find('\0') == std::string_view::npos;
}

class IndexEvents final : public JsonEvents {
 public:
  bool has_weights() const { return has_weights_; }
  WeightMap take() { return std::move(weights_); }

  bool null() override { return skip(); }
  bool boolean(bool /*value*/) override { return skip(); }
  bool number_integer(number_integer_t /*value*/) override { return skip(); }
  bool number_unsigned(number_unsigned_t /*value*/) override { return skip(); }
  bool number_float(number_float_t /*value*/, const string_t& /*text*/) override { return skip(); }

  bool start_object(std::size_t /*elements*/) override {
    if (in_map_) return wrong_value();
    if (depth_ == 1 && key_ == "weight_map") {
      if (has_weights_) return fail("it has two weight_map");
      in_map_ = has_weights_ = true;
    }
    return open();
  }
  bool start_array(std::size_t /*elements*/) override {
    if (depth_ == 0) return fail("it is a list, not an object with a weight_map");
    if (in_map_) return wrong_value();
    return open();
  }
  bool end_array() override { return close(); }
  bool end_object() override {
    in_map_ = false;
    return close();
  }

  bool key(string_t& value) override {
    key_ = value;
    if (in_map_ && weights_.contains(key_))
      return fail("its weight_map has tensor " + in_quotes(key_) + " twice");
    return true;
  }

  bool string(string_t& value) override {
    if (!in_map_) return skip();
    if (!is_file_name(value))
      return fail("tensor " + in_quotes(key_) + " is listed in " + in_quotes(value) +
                  ", which is not the name of a .safetensors file in the same folder");
    if (weights_.size() == kMaxTensorsOfIndex) return fail("it has too many tensors");
    files_.insert(value);
    if (files_.size() > kMaxShards)
      return fail("it names more than " + std::to_string(kMaxShards) + " files");
    weights_.emplace(key_, value);
    return true;
  }

 private:
  bool skip() {
    if (depth_ == 0) return fail("it is not an object with a weight_map");
    return !in_map_ || wrong_value();
  }
  bool wrong_value() {
    return fail("tensor " + in_quotes(key_) + " has something other than a file");
  }
  bool open() { return ++depth_ <= kMaxDepth || fail("it is nested too deep"); }
  bool close() {
    --depth_;
    return true;
  }

  int depth_ = 0;
  bool in_map_ = false;
  bool has_weights_ = false;
  std::string key_;
  std::set<std::string> files_;
  WeightMap weights_;
};

}  // namespace

Result<WeightMap> parse_safetensors_index(std::string_view json) {
  IndexEvents events;
  SLUICE_RETURN_IF_ERROR(events.read(json));
  if (!events.has_weights()) return Error(ErrorCode::kCorrupt, "it has no weight_map");
  return events.take();
}

std::string make_safetensors_index(const WeightMap& weights, std::uint64_t total_bytes) {
  const nlohmann::json index = {{"metadata", {{"total_size", total_bytes}}},
                                {"weight_map", weights}};
  return index.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

std::string shard_path(const std::string& path, std::size_t shard, std::size_t shards) {
  if (shards == 1) return path;
  char number[64];
  std::snprintf(number, sizeof number, "-%05zu-of-%05zu", shard + 1, shards);
  return path.substr(0, path.size() - kSuffix.size()) + number + std::string(kSuffix);
}

}  // namespace sluice::engine
