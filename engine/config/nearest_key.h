// Suggests what the author of an unknown key probably meant. Pure functions over the key table.
#pragma once

#include <string>
#include <string_view>

namespace sluice::config {

// Insertions, deletions, replacements and swaps of neighbours that turn one word into the other.
int edit_distance(std::string_view a, std::string_view b);

// "did you mean fp16.enabled?" for a similar key of the same section. If the word exists only in
// another section, "thread_count is a key of aio". Otherwise the section's keys, if there are few.
std::string suggest_key(std::string_view unknown_path);

// The entry of "a|b|c" nearest to `word`; empty if none is near.
std::string nearest_choice(std::string_view word, std::string_view choices);

}  // namespace sluice::config
