// What the author of an unknown key probably meant. Pure functions over the key table.
#pragma once

#include <string>
#include <string_view>

namespace sluice::config {

// Insertions, deletions, replacements and swaps of neighbours that turn one word into the other.
int edit_distance(std::string_view a, std::string_view b);

// "did you mean fp16.enabled?" for a near key of the same section; "thread_count is a key of aio"
// when the word is known only in another section; else the section's keys, where they are few.
std::string suggest_key(std::string_view unknown_path);

// The nearest of "a|b|c" to `word`, or empty when none is near.
std::string nearest_choice(std::string_view word, std::string_view choices);

}  // namespace sluice::config
