// JSON that may stand inside a <script> element: a string never has the characters that could end
// it, begin a comment in it, or end a line of a script (<, >, &, U+2028, U+2029); what is no UTF-8
// is replaced; what is not finite is null.
//
// Threads: pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace sluice::report {

void append_string(std::string& out, std::string_view text);
// `digits`: significant ones.
void append_number(std::string& out, double value, int digits);

// The same for a whole document that some JSON library wrote: those characters occur in its strings
// alone.
std::string script_safe(std::string_view json);

// For text and for attributes in double quotes.
std::string html_escaped(std::string_view text);

}  // namespace sluice::report
