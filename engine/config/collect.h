// The first half of resolving: collects the value of each key from all sources, and decides which
// source wins. Private to this folder.
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
  int rank = 0;          // if two give a key, the higher rank wins
  bool lenient = false;  // a file written for DeepSpeed: its "auto" yields to other sources
};

// The value of an honoured key.
struct Setting {
  const Key* key = nullptr;
  Json value;
  int rank = 0;
  std::string source;
  std::string note;
  std::string_view given_as = {};  // the path in the document, if that is another name
  bool has_old_name = false;       // `given_as` is the key's old name
  bool was_auto = false;           // a lenient document gives "auto", which kept this value

  bool is_auto() const;    // "auto" or null, which are not values
  bool says_auto() const;  // "auto"
};

struct Collected {
  std::map<std::string_view, Setting> settings;  // by path
  std::vector<KeyReport> ignored;
  std::vector<std::string> rejections;  // as sentences
  // Keys that are refused if true; a later source may still give false.
  std::map<std::string, KeyReport> refused;  // by path; `reason` is the message
  bool has_deepspeed_file = false;
};

void collect(const Document& document, Collected& collected);

}  // namespace sluice::config
