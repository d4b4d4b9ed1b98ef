// JsonEvents: the base of event-based readers for untrusted JSON. A hostile text costs no more
// memory than its reader chooses to keep. Private to this folder.
//
// A reader overrides the events that it accepts; any other event stops it with a sentence.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "aio/result.h"

namespace sluice::engine {

class JsonEvents : public nlohmann::json_sax<nlohmann::json> {
 public:
  // Reads the whole text; kCorrupt says what is wrong.
  Status read(std::string_view text);

  bool null() override { return fail("null where it is not allowed"); }
  bool boolean(bool /*value*/) override { return fail("true or false where it is not allowed"); }
  bool number_integer(number_integer_t /*value*/) override {
    return fail("a negative number where it is not allowed");
  }
  bool number_unsigned(number_unsigned_t /*value*/) override {
    return fail("a number where it is not allowed");
  }
  bool number_float(number_float_t /*value*/, const string_t& /*text*/) override {
    return fail("a number that is not whole, or too large");
  }
  bool string(string_t& /*value*/) override { return fail("a string where it is not allowed"); }
  bool binary(binary_t& /*value*/) override { return fail("binary data"); }
  bool start_object(std::size_t /*elements*/) override {
    return fail("an object where it is not allowed");
  }
  bool start_array(std::size_t /*elements*/) override {
    return fail("a list where it is not allowed");
  }
  bool key(string_t& /*value*/) override { return fail("a key where it is not allowed"); }
  bool end_object() override { return true; }
  bool end_array() override { return true; }
  bool parse_error(std::size_t position, const std::string& token,
                   const nlohmann::json::exception& error) override;

 protected:
  bool fail(std::string what);

 private:
  std::string what_;
};

}  // namespace sluice::engine
