#include "tools/cli/text_tokens.h"

#include <filesystem>
#include <nlohmann/json.hpp>
#include <utility>

#include "aio/bounded_json.h"
#include "tools/cli/child_process.h"
#include "tools/cli/utf8_stream.h"

namespace sluice::tools {
namespace {

using nlohmann::json;

class ByteTokens final : public TextTokens {
 public:
  Result<std::vector<std::int64_t>> encode(const std::string& text) override {
    std::vector<std::int64_t> tokens;
    for (const char letter : text) tokens.push_back(static_cast<unsigned char>(letter));
    return tokens;
  }
  // Tokens that are not bytes (the end of a text, or padding of the vocabulary) produce no text.
  Result<std::string> decode(std::int64_t token) override {
    if (token > 0xFF) return stream_.finish();
    return stream_.push(static_cast<unsigned char>(token));
  }
  Result<std::string> finish() override { return stream_.finish(); }
  Status restart() override {
    stream_ = Utf8Stream();
    return {};
  }

 private:
  Utf8Stream stream_;
};

class ToolTokens final : public TextTokens {
 public:
  explicit ToolTokens(ChildProcess tool) : tool_(std::move(tool)) {}

  Result<std::vector<std::int64_t>> encode(const std::string& text) override {
    return begin({{"encode", text}});
  }
  Result<std::vector<std::int64_t>> encode_chat(const ChatPrompt& prompt) override {
    json messages = json::array();
    if (!prompt.system.empty())
      messages.push_back({{"role", "system"}, {"content", prompt.system}});
    messages.push_back({{"role", "user"}, {"content", prompt.user}});
    return begin({{"chat", messages}});
  }
  Result<std::string> decode(std::int64_t token) override { return text_of({{"next", token}}); }
  Result<std::string> finish() override { return text_of({{"end", true}}); }
  Status restart() override { return ask({{"begin", json::array()}}, "text").status(); }

 private:
  Result<std::vector<std::int64_t>> begin(const json& request) {
    SLUICE_ASSIGN_OR_RETURN(const json ids, ask(request, "ids"));
    auto tokens = ids.get<std::vector<std::int64_t>>();
    SLUICE_ASSIGN_OR_RETURN(const json begun, ask({{"begin", tokens}}, "text"));
    return tokens;
  }
  Result<std::string> text_of(const json& request) {
    SLUICE_ASSIGN_OR_RETURN(const json text, ask(request, "text"));
    return text.get<std::string>();
  }
  Result<json> ask(const json& request, const char* key) {
    std::string line;
    try {
      line = request.dump();
    } catch (const json::exception&) {  // only the user's text can be invalid UTF-8
      return Error(ErrorCode::kInvalidArgument, "the prompt is not UTF-8");
    }
    SLUICE_ASSIGN_OR_RETURN(const std::string answer, tool_.ask(line));
    json reply = json_or_discarded<json>(answer);
    if (reply.is_object() && reply.contains("error"))
      return Error(ErrorCode::kInvalidArgument, reply["error"].get<std::string>());
    if (!reply.is_object() || !reply.contains(key))
      return Error(ErrorCode::kIo, "tools/tokens answers " + answer);
    return reply[key];
  }

  ChildProcess tool_;
};

}  // namespace

Result<std::vector<std::int64_t>> TextTokens::encode_chat(const ChatPrompt& /*prompt*/) {
  return Error(ErrorCode::kInvalidArgument, "these tokens are bytes, which have no chat template");
}

Result<std::string> find_tokens_tool(const std::string& named) {
  if (!named.empty()) return named;
  std::error_code error;
  const auto program = std::filesystem::read_symlink("/proc/self/exe", error);
  for (auto folder = program.parent_path(); folder.has_relative_path();
       folder = folder.parent_path()) {
    for (const char* const name : {"tools/tokens", "share/sluice/tools/tokens"})
      if (const auto tool = folder / name; std::filesystem::is_regular_file(tool, error))
        return tool.string();
  }
  return Error(ErrorCode::kNotFound,
               "the helper tools/tokens, which reads a tokenizer.json, was not found next to " +
                   program.string() +
                   ": install again (cmake --install), or give --tokens-tool PATH");
}

std::unique_ptr<TextTokens> byte_tokens() { return std::make_unique<ByteTokens>(); }

Result<std::unique_ptr<TextTokens>> tool_tokens(const ToolTokensOptions& options) {
  std::vector<std::string> words = {options.tool, options.json, "--reply-fd", "0"};
  if (options.chat) words.emplace_back("--chat");
  if (!options.chat_template.empty()) words.push_back("--chat-template=" + options.chat_template);
  SLUICE_ASSIGN_OR_RETURN(auto child, ChildProcess::start(words));
  return std::unique_ptr<TextTokens>(std::make_unique<ToolTokens>(std::move(child)));
}

}  // namespace sluice::tools
