// The first half of resolving: what the sources say about each key, and which of them wins.
// Private to this folder.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "engine/config/json_text.h"
#include "engine/config/key_table.h"
#include "engine/config/resolve.h"

namespace sluice::config {

struct Document {
  std::string name;
  Json root;
  int rank = 0;          // of two that give a key, the higher one wins
  bool lenient = false;  // a file that was written for DeepSpeed: "auto" in it yields
};

// What is said about an honoured key.
struct Setting {
  const Key* key = nullptr;
  Json value;
  int rank = 0;
  std::string source;
  std::string note;
  bool was_auto = false;  // a lenient document says "auto" for it, and left this value

  bool is_auto() const;    // "auto" or null: not a value
  bool says_auto() const;  // "auto"
};

struct Collected {
  std::map<std::string_view, Setting> settings;  // by the key's path
  std::vector<KeyReport> ignored;
  std::vector<std::string> rejections;  // sentences
  // Of keys that are refused if true: a later source may still say false.
  std::map<std::string, KeyReport> refused;  // by path; the reason is the sentence
  bool has_deepspeed_file = false;
};

void collect(const Document& document, Collected& collected);

}  // namespace sluice::config
