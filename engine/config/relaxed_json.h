// JSON as people write it in configurations. DeepSpeed reads its files with Hjson: comments (#, //
// and /* */), commas after the last entry, keys without quotes, and Python's True and False.
// Private to this folder.
//
// The rest of Hjson (strings without quotes, entries without commas, ''' strings, a root without
// braces) is left as it is, and becomes a parser error with its line and what to write instead.
#pragma once

#include <string>
#include <string_view>

namespace sluice::config {

// The same text as strict JSON, on the same lines: what is removed becomes blank, and columns
// change only after a key that gets its quotes.
std::string strict_json(std::string_view relaxed);

}  // namespace sluice::config
