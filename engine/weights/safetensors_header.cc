#include "engine/weights/safetensors_header.h"

#include <algorithm>
#include <array>
#include <optional>
#include <unordered_set>
#include <utility>

#include "aio/units.h"
#include "engine/weights/json_events.h"
#include "engine/weights/quoting.h"

namespace sluice::engine {
namespace {

constexpr std::string_view kMetadataKey = "__metadata__";

Error corrupt(std::string what) { return Error(ErrorCode::kCorrupt, std::move(what)); }

// The bytes of a tensor; nothing if they do not fit in 63 bits.
std::optional<std::uint64_t> size_of(const TensorSpec& tensor, std::uint64_t& elements) {
  elements = 1;
  const bool empty = std::find(tensor.shape.begin(), tensor.shape.end(), 0U) != tensor.shape.end();
  if (empty) elements = 0;
  for (const std::uint64_t length : tensor.shape) {
    if (__builtin_mul_overflow(elements, length, &elements)) return std::nullopt;
  }
  std::uint64_t bytes = 0;
  if (__builtin_mul_overflow(elements, element_bytes(tensor.dtype), &bytes)) return std::nullopt;
  return bytes >> 63 == 0 ? std::optional(bytes) : std::nullopt;
}

class HeaderEvents final : public JsonEvents {
 public:
  SafetensorsHeader take() { return std::move(header_); }

  bool start_object(std::size_t /*elements*/) override {
    if (place_ == Place::kStart) return go(Place::kRoot);
    if (place_ != Place::kRoot) return fail("an object where it is not allowed");
    return go(is_metadata_ ? Place::kMetadata : Place::kTensor);
  }

  bool key(string_t& value) override {
    switch (place_) {
      case Place::kRoot:
        return name(value);
      case Place::kMetadata:
        key_ = value;
        return !header_.metadata.contains(key_) ||
               fail("the metadata has the key " + in_quotes(key_) + " twice");
      default:
        key_ = value;
        return field();
    }
  }

  bool string(string_t& value) override {
    if (place_ == Place::kMetadata) {
      header_.metadata.emplace(key_, value);
      return true;
    }
    if (place_ != Place::kTensor || key_ != "dtype") return wrong_value();
    const auto dtype = parse_dtype(value);
    if (!dtype) return fail(where() + "has the unknown dtype " + in_quotes(value));
    tensor_.dtype = *dtype;
    has_dtype_ = true;
    return true;
  }

  bool start_array(std::size_t /*elements*/) override {
    if (place_ != Place::kTensor || key_ == "dtype") return wrong_value();
    return go(Place::kNumbers);
  }

  bool number_unsigned(number_unsigned_t value) override {
    if (place_ != Place::kNumbers) return wrong_value();
    auto& numbers = key_ == "shape" ? tensor_.shape : offsets_;
    const std::size_t limit = key_ == "shape" ? kMaxRank : 2;
    if (numbers.size() == limit) return fail(where() + "has too many numbers in its " + key_);
    numbers.push_back(value);
    return true;
  }

  bool end_array() override { return go(Place::kTensor); }

  bool end_object() override {
    if (place_ == Place::kTensor && !finish_tensor()) return false;
    return go(place_ == Place::kRoot ? Place::kStart : Place::kRoot);
  }

 private:
  enum class Place : std::uint8_t { kStart, kRoot, kMetadata, kTensor, kNumbers };

  bool go(Place place) {
    place_ = place;
    return true;
  }
  std::string where() const { return "tensor " + in_quotes(tensor_.name) + " "; }
  bool wrong_value() {
    if (place_ == Place::kTensor || place_ == Place::kNumbers)
      return fail(where() + "has a " + key_ + " of the wrong kind");
    return fail("something other than an object of tensors");
  }

  bool name(const std::string& value) {
    is_metadata_ = value == kMetadataKey;
    if (is_metadata_)
      return !std::exchange(seen_metadata_, true) || fail("it has two sections of metadata");
    if (header_.tensors.size() == kMaxTensorsOfFile)
      return fail("it has more than " + std::to_string(kMaxTensorsOfFile) + " tensors");
    tensor_ = {};
    tensor_.name = value;
    offsets_.clear();
    has_dtype_ = has_shape_ = has_offsets_ = false;
    if (!names_.insert(value).second) return fail(where() + "is there twice");
    return true;
  }

  bool field() {
    bool twice = false;
    if (key_ == "dtype") {
      twice = has_dtype_;
    } else if (key_ == "shape") {
      twice = std::exchange(has_shape_, true);
    } else if (key_ == "data_offsets") {
      twice = std::exchange(has_offsets_, true);
    } else {
      return fail(where() + "has the unknown key " + in_quotes(key_));
    }
    return !twice || fail(where() + "has two of " + key_);
  }

  bool finish_tensor() {
    if (!has_dtype_ || !has_shape_ || !has_offsets_)
      return fail(where() + "lacks its dtype, shape or data_offsets");
    if (offsets_.size() != 2 || offsets_[0] > offsets_[1])
      return fail(where() + "has data_offsets that are not a start and an end");
    const auto bytes = size_of(tensor_, tensor_.elements);
    if (!bytes || *bytes != offsets_[1] - offsets_[0])
      return fail(where() + "has " + std::to_string(offsets_[1] - offsets_[0]) + " bytes, but " +
                  std::string(to_string(tensor_.dtype)) + " of shape " + shape_text(tensor_.shape) +
                  " needs " + (bytes ? std::to_string(*bytes) : "more than a file can have"));
    tensor_.begin_bytes = offsets_[0];
    tensor_.size_bytes = *bytes;
    header_.tensors.push_back(std::move(tensor_));
    return true;
  }

  Place place_ = Place::kStart;
  bool is_metadata_ = false;
  bool seen_metadata_ = false;
  std::string key_;
  TensorInfo tensor_;
  std::vector<std::uint64_t> offsets_;
  bool has_dtype_ = false;
  bool has_shape_ = false;
  bool has_offsets_ = false;
  std::unordered_set<std::string> names_;
  SafetensorsHeader header_;
};

Status check_places(const std::vector<TensorInfo>& tensors, std::uint64_t data_bytes) {
  std::uint64_t end = 0;
  for (const TensorInfo& tensor : tensors) {
    if (tensor.begin_bytes < end)
      return corrupt("tensor " + in_quotes(tensor.name) + " overlaps the previous one");
    if (tensor.begin_bytes > end)
      return corrupt("there is a gap of " + std::to_string(tensor.begin_bytes - end) +
                     " bytes before tensor " + in_quotes(tensor.name));
    end += tensor.size_bytes;  // no overflow: begin == end was checked, and offsets have 63 bits
    if (end > data_bytes)
      return corrupt("tensor " + in_quotes(tensor.name) + " ends " +
                     std::to_string(end - data_bytes) +
                     " bytes beyond the end of the file (is it truncated?)");
  }
  if (end != data_bytes)
    return corrupt(std::to_string(data_bytes - end) + " trailing bytes belong to no tensor");
  return {};
}

std::string json_string(const std::string& text) {
  return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

// Invalid UTF-8 is replaced, so it does not survive the round trip.
bool is_utf8(const std::string& text) {
  return nlohmann::json::parse(json_string(text)).get<std::string>() == text;
}

}  // namespace

Result<std::uint64_t> safetensors_json_bytes(std::span<const std::byte, kHeaderPrefixBytes> prefix,
                                             std::uint64_t file_bytes) {
  std::uint64_t length = 0;
  for (std::size_t i = kHeaderPrefixBytes; i-- > 0;)
    length = length << 8 | std::to_integer<std::uint64_t>(prefix[i]);
  constexpr std::string_view kPointer = "version ";
  if (std::equal(prefix.begin(), prefix.end(), kPointer.begin(),
                 [](std::byte byte, char letter) { return std::to_integer<char>(byte) == letter; }))
    return corrupt(
        "it is a git-lfs pointer, not the file itself: download the file with git lfs pull");
  if (length > kMaxHeaderJsonBytes)
    return corrupt("its first 8 bytes give a header of " + std::to_string(length) +
                   " bytes, so it is not a safetensors file");
  if (length < 2 || file_bytes < kHeaderPrefixBytes || length > file_bytes - kHeaderPrefixBytes)
    return corrupt("it has " + std::to_string(file_bytes) + " bytes, so a header of " +
                   std::to_string(length) + " does not fit (is it truncated?)");
  return length;
}

Result<SafetensorsHeader> parse_safetensors_json(std::string_view json, std::uint64_t data_bytes) {
  if (!json.starts_with('{')) return corrupt("its header does not begin with an object");
  HeaderEvents events;
  SLUICE_RETURN_IF_ERROR(events.read(json));
  SafetensorsHeader header = events.take();
  std::sort(
      header.tensors.begin(), header.tensors.end(), [](const TensorInfo& a, const TensorInfo& b) {
        return std::pair(a.begin_bytes, a.size_bytes) < std::pair(b.begin_bytes, b.size_bytes);
      });
  SLUICE_RETURN_IF_ERROR(check_places(header.tensors, data_bytes));
  return header;
}

Result<std::vector<TensorInfo>> lay_out(std::span<const TensorSpec> tensors) {
  const auto refuse = [](const TensorSpec& tensor, const std::string& why) {
    return Error(ErrorCode::kInvalidArgument,
                 "tensor " + in_quotes(tensor.name) + " cannot be stored: " + why);
  };
  std::vector<TensorInfo> places;
  std::unordered_set<std::string_view> names;
  std::uint64_t end = 0;
  for (const TensorSpec& tensor : tensors) {
    TensorInfo place{tensor};
    const auto bytes = size_of(tensor, place.elements);
    if (!is_utf8(tensor.name)) return refuse(tensor, "its name is not UTF-8");
    if (tensor.name == kMetadataKey) return refuse(tensor, "the format reserves that name");
    if (!names.insert(tensor.name).second) return refuse(tensor, "its name is already used");
    if (tensor.shape.size() > kMaxRank) return refuse(tensor, "it has too many dimensions");
    if (!bytes || (end + *bytes) >> 63 != 0) return refuse(tensor, "it is too large for a file");
    if (end % element_bytes(tensor.dtype) != 0)
      return refuse(tensor,
                    "it would not begin at a multiple of its element's size; declare the "
                    "wider dtypes first");
    if (places.size() == kMaxTensorsOfFile) return refuse(tensor, "the file has too many");
    place.begin_bytes = end;
    place.size_bytes = *bytes;
    end += *bytes;
    places.push_back(std::move(place));
  }
  return places;
}

std::string make_safetensors_header(std::span<const TensorInfo> tensors, const Metadata& metadata) {
  std::string json = "{";
  const auto key = [&json](std::string_view name) {
    if (json.size() > 1) json += ',';
    json += json_string(std::string(name)) + ":";
  };
  if (!metadata.empty()) {
    key(kMetadataKey);
    json += '{';
    for (const auto& [name, value] : metadata) {
      if (json.back() != '{') json += ',';
      json += json_string(name) + ":" + json_string(value);
    }
    json += '}';
  }
  for (const TensorInfo& tensor : tensors) {
    key(tensor.name);
    std::string shape;
    for (const std::uint64_t length : tensor.shape)
      shape += (shape.empty() ? "" : ",") + std::to_string(length);
    json += R"({"dtype":")" + std::string(to_string(tensor.dtype)) + R"(","shape":[)" + shape +
            R"(],"data_offsets":[)" + std::to_string(tensor.begin_bytes) + "," +
            std::to_string(tensor.begin_bytes + tensor.size_bytes) + "]}";
  }
  json += '}';
  json.resize(align_up(json.size(), 8), ' ');
  std::string header(kHeaderPrefixBytes, '\0');
  for (std::size_t i = 0; i < header.size(); ++i)
    header[i] = static_cast<char>(json.size() >> (8 * i) & 0xFF);
  return header + json;
}

std::string shape_text(std::span<const std::uint64_t> shape) {
  std::string text = "[";
  for (const std::uint64_t length : shape)
    text += (text.size() > 1 ? ", " : "") + std::to_string(length);
  return text + "]";
}

}  // namespace sluice::engine
