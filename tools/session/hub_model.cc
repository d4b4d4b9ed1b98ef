#include "tools/session/hub_model.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <iostream>
#include <nlohmann/json.hpp>

#include "aio/bounded_json.h"
#include "aio/text.h"
#include "engine/exchange/described_model.h"
#include "tools/support/scripts.h"

namespace sluice::tools {
namespace {

namespace fs = std::filesystem;

const char* name_of(HubFiles files) {
  switch (files) {
    case HubFiles::kModel:
      return "model";
    case HubFiles::kTokenizer:
      return "tokenizer";
    case HubFiles::kConfig:
      return "config";
  }
  return "model";
}

// All that the script replies. A signal may interrupt a read.
std::string read_all(std::FILE* pipe) {
  std::string reply;
  std::array<char, 4096> piece{};
  while (true) {
    const std::size_t got = std::fread(piece.data(), 1, piece.size(), pipe);
    reply.append(piece.data(), got);
    if (got == piece.size()) continue;
    if (std::ferror(pipe) == 0 || errno != EINTR) return reply;
    std::clearerr(pipe);
  }
}

}  // namespace

bool is_partial_snapshot(const std::string& folder) {
  const fs::path path = folder;
  if (path.parent_path().filename() != "snapshots") return false;
  std::error_code error;
  const fs::directory_iterator files(path, error);
  return !error && std::none_of(begin(files), end(files), [](const fs::directory_entry& file) {
    return file.path().extension() == ".safetensors";
  });
}

Result<std::string> model_folder(const std::string& text, HubFiles files) {
  std::string name = engine::is_hub_name(text) ? text : std::string();
  if (files == HubFiles::kModel && is_partial_snapshot(text)) {
    const engine::HubModel model = engine::model_in_hub_cache(text);
    if (model.name.find('/') != std::string::npos) name = model.name + "@" + model.revision;
  }
  if (name.empty()) return text;
  SLUICE_ASSIGN_OR_RETURN(const std::string script, find_script("hub"));
  std::cout.flush();
  // What the script prints belongs to standard error; only its reply comes through the pipe.
  const std::string command = "exec " + shell_word(script) + " --files " + name_of(files) +
                              " --reply-fd 3 " + shell_word(name) + " 3>&1 1>&2 </dev/null";
  std::FILE* const pipe = popen(command.c_str(), "re");  // NOLINT(cert-env33-c): words are quoted
  if (pipe == nullptr)
    return Error(ErrorCode::kIo, script + " cannot be started: " + std::strerror(errno));
  const auto json = json_or_discarded<nlohmann::json>(read_all(pipe));
  pclose(pipe);
  if (json.is_object() && json.contains("folder")) return json["folder"].get<std::string>();
  if (json.is_object() && json.contains("error"))
    return Error(ErrorCode::kNotFound, json["error"].get<std::string>());
  return Error(ErrorCode::kIo, name + " was not found: " + script +
                                   " ended without an answer; see its message above. It needs "
                                   "python3 on PATH, version 3.9 or later");
}

}  // namespace sluice::tools
