// Utf8Stream: turns bytes that arrive one by one into text that never ends within a character.
// Invalid UTF-8 becomes U+FFFD, one for each part that cannot begin a character (as in Python and
// browsers).
#pragma once

#include <string>

namespace sluice::tools {

class Utf8Stream {
 public:
  // Returns the text that this byte completes.
  std::string push(unsigned char byte);
  // Returns the rest: a character that was not completed.
  std::string finish();

 private:
  std::string pending_;  // the beginning of one character
};

}  // namespace sluice::tools
