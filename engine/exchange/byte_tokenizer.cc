#include "engine/exchange/byte_tokenizer.h"

#include <nlohmann/json.hpp>

namespace sluice::engine {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kBytes = 256;

std::string utf8(int code) {  // at most two bytes
  if (code < 0x80) return {static_cast<char>(code)};
  return {static_cast<char>(0xC0 | (code >> 6)), static_cast<char>(0x80 | (code & 0x3F))};
}

bool stands_for_itself(int byte) {
  return (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte <= 0xAC) ||
         (byte >= 0xAE && byte <= 0xFF);
}

// bytes_to_unicode() of Radford et al., "Language Models are Unsupervised Multitask Learners".
Json vocabulary() {
  Json ids;
  int next_letter = kBytes;
  for (int byte = 0; byte < kBytes; ++byte)
    ids[utf8(stands_for_itself(byte) ? byte : next_letter++)] = byte;
  return ids;
}

}  // namespace

std::string byte_tokenizer_json() {
  const Json end = {{"id", kByteEndOfText}, {"content", kEndOfTextName}, {"single_word", false},
                    {"lstrip", false},      {"rstrip", false},           {"normalized", false},
                    {"special", true}};
  Json ids = vocabulary();
  ids[std::string(kEndOfTextName)] = kByteEndOfText;
  const auto byte_level = [] {
    return Json{{"type", "ByteLevel"},
                {"add_prefix_space", false},
                {"trim_offsets", false},
                {"use_regex", false}};
  };
  const Json json = {{"version", "1.0"},
                     {"truncation", nullptr},
                     {"padding", nullptr},
                     {"added_tokens", Json::array({end})},
                     {"normalizer", nullptr},
                     {"pre_tokenizer", byte_level()},
                     {"post_processor", nullptr},
                     {"decoder", byte_level()},
                     {"model",
                      {{"type", "BPE"},
                       {"dropout", nullptr},
                       {"unk_token", nullptr},
                       {"continuing_subword_prefix", nullptr},
                       {"end_of_word_suffix", nullptr},
                       {"fuse_unk", false},
                       {"byte_fallback", false},
                       {"ignore_merges", false},
                       {"vocab", ids},
                       {"merges", Json::array()}}}};
  return json.dump(2) + "\n";
}

}  // namespace sluice::engine
