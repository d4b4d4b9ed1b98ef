// Utf8Stream: bytes as they come, as text that never ends within a character. What is not UTF-8 is
// shown as U+FFFD, one for each part that no character can begin with (as Python and browsers do).
#pragma once

#include <string>

namespace sluice::tools {

class Utf8Stream {
 public:
  // The text that is complete now.
  std::string push(unsigned char byte);
  // What is left: a character that was not completed.
  std::string finish();

 private:
  std::string pending_;  // the beginning of one character
};

}  // namespace sluice::tools
