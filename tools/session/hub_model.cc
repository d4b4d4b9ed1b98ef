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
#include "engine/exchange/described_model.h"
#include "tools/support/scripts.h"

namespace sluice::tools {
namespace {

namespace fs = std::filesystem;

// One word for the shell.
std::string quoted(const std::string& text) {
  std::string word = "'";
  for (const char c : text) word += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return word + "'";
}

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

}  // namespace

Result<std::string> model_folder(const std::string& text, HubFiles files) {
  if (!engine::is_hub_name(text)) return text;
  SLUICE_ASSIGN_OR_RETURN(const std::string script, find_script("hub"));
  std::cout.flush();
  // What the script prints belongs to standard error; only its reply comes through the pipe.
  const std::string command = "exec " + quoted(script) + " --files " + name_of(files) +
                              " --reply-fd 3 " + quoted(text) + " 3>&1 1>&2 </dev/null";
  std::FILE* const pipe = popen(command.c_str(), "re");  // NOLINT(cert-env33-c): words are quoted
  if (pipe == nullptr)
    return Error(ErrorCode::kIo, script + " cannot be started: " + std::strerror(errno));
  std::string reply;
  std::array<char, 4096> piece{};
  while (const std::size_t got = std::fread(piece.data(), 1, piece.size(), pipe))
    reply.append(piece.data(), got);
  pclose(pipe);
  const auto json = json_or_discarded<nlohmann::json>(reply);
  if (json.is_object() && json.contains("folder")) return json["folder"].get<std::string>();
  if (json.is_object() && json.contains("error"))
    return Error(ErrorCode::kNotFound, json["error"].get<std::string>());
  return Error(ErrorCode::kIo, text + " was not found: " + script +
                                   " ended without an answer; see its message above. It needs "
                                   "python3 on PATH, version 3.9 or later");
}

bool is_partial_snapshot(const std::string& folder) {
  const fs::path path = folder;
  if (path.parent_path().filename() != "snapshots") return false;
  std::error_code error;
  const fs::directory_iterator files(path, error);
  return !error && std::none_of(begin(files), end(files), [](const fs::directory_entry& file) {
    return file.path().extension() == ".safetensors";
  });
}

}  // namespace sluice::tools
