#include "bench/result_header.h"

#include <nlohmann/json.hpp>

#include "aio/units.h"
#include "tools/support/version.h"

namespace sluice::bench {

using Json = nlohmann::ordered_json;

std::string machine_line(std::string_view program, const aio::MachineInfo& machine) {
  return std::string(program) + " " + std::string(tools::kVersion) + " on " + machine.cpu + ", " +
         std::to_string(machine.cores) + (machine.cores == 1 ? " core, " : " cores, ") +
         format_bytes(machine.ram_bytes) + " RAM, " + machine.kernel + "\n";
}

Json result_header(const aio::MachineInfo& machine, const std::string& command) {
  return Json{{"version", tools::kVersion},
              {"machine",
               {{"cpu", machine.cpu},
                {"cores", machine.cores},
                {"ram_bytes", machine.ram_bytes},
                {"kernel", machine.kernel}}},
              {"command", command}};
}

std::string text_of(const Json& json) {
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace sluice::bench
