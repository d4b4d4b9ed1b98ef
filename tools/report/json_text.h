// JSON that is safe inside a <script> element. Strings never contain the characters that could end
// the element, begin a comment in it, or end a line of a script (<, >, &, U+2028, U+2029). Invalid
// UTF-8 is replaced; numbers that are not finite become null.
//
// Threads: pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace sluice::report {

void append_string(std::string& out, std::string_view text);
// `digits`: significant digits.
void append_number(std::string& out, double value, int digits);

// Escapes a whole document written by any JSON library: these characters occur only in its strings.
std::string script_safe(std::string_view json);

// For text and for attributes in double quotes.
std::string html_escaped(std::string_view text);

}  // namespace sluice::report
