// The beginning of every benchmark result, for people and for programs: version, machine, command.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

#include "aio/machine_info.h"

namespace sluice::bench {

// "aio_bench 0.1.0 on <cpu>, 2 cores, 24G RAM, Linux 6.18" with a line end.
std::string machine_line(std::string_view program, const aio::MachineInfo& machine);

// {version, machine: {cpu, cores, ram_bytes, kernel}, command}. ResultFile recognises results by
// it.
nlohmann::ordered_json result_header(const aio::MachineInfo& machine, const std::string& command);

// The whole text of a file. Paths may be invalid UTF-8, which is replaced rather than fatal.
std::string text_of(const nlohmann::ordered_json& json);

}  // namespace sluice::bench
