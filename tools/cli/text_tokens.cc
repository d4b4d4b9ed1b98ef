#include "tools/cli/text_tokens.h"

#include <filesystem>
#include <nlohmann/json.hpp>
#include <utility>

#include "aio/bounded_json.h"
#include "tools/cli/child_process.h"
#include "tools/support/scripts.h"

namespace sluice::tools {
namespace {

constexpr const char* kBroken = "\xEF\xBF\xBD";

// The length of a character with this first byte; 0: no character begins with it.
std::size_t length_of(unsigned char first) {
  if (first < 0x80) return 1;
  if (first >= 0xC2 && first <= 0xDF) return 2;
  if (first >= 0xE0 && first <= 0xEF) return 3;
  if (first >= 0xF0 && first <= 0xF4) return 4;
  return 0;
}

// The second byte excludes overlong forms, surrogates, and values above U+10FFFF.
bool may_follow(const std::string& begun, unsigned char byte) {
  if (byte < 0x80 || byte > 0xBF) return false;
  if (begun.size() > 1) return true;
  switch (static_cast<unsigned char>(begun.front())) {
    case 0xE0:
      return byte >= 0xA0;
    case 0xED:
      return byte <= 0x9F;
    case 0xF0:
      return byte >= 0x90;
    case 0xF4:
      return byte <= 0x8F;
    default:
      return true;
  }
}

}  // namespace

std::string Utf8Stream::push(unsigned char byte) {
  std::string text;
  if (!pending_.empty() && !may_follow(pending_, byte)) text = finish();
  if (pending_.empty() && length_of(byte) == 0) return text + kBroken;
  pending_ += static_cast<char>(byte);
  if (pending_.size() == length_of(static_cast<unsigned char>(pending_.front())))
    text += std::exchange(pending_, {});
  return text;
}

std::string Utf8Stream::finish() {
  if (pending_.empty()) return {};
  pending_.clear();
  return kBroken;
}

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
  explicit ToolTokens(std::unique_ptr<ChildProcess> tool) : tool_(std::move(tool)) {}

  Result<std::vector<std::int64_t>> encode(const std::string& text) override {
    return begin({{"encode", text}});
  }
  Result<std::vector<std::int64_t>> encode_chat(const ChatMessages& messages) override {
    json list = json::array();
    for (const ChatMessage& each : messages)
      list.push_back({{"role", each.role}, {"content", each.content}});
    return begin({{"chat", list}});
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
      return Error(ErrorCode::kInvalidArgument, "the text is not UTF-8");
    }
    SLUICE_ASSIGN_OR_RETURN(const std::string answer, tool_->ask(line));
    json reply = json_or_discarded<json>(answer);
    if (reply.is_object() && reply.contains("error"))
      return Error(ErrorCode::kInvalidArgument, reply["error"].get<std::string>());
    if (!reply.is_object() || !reply.contains(key))
      return Error(ErrorCode::kIo, "tools/tokens answers " + answer);
    return reply[key];
  }

  std::unique_ptr<ChildProcess> tool_;
};

}  // namespace

Result<std::vector<std::int64_t>> TextTokens::encode_chat(const ChatMessages& /*messages*/) {
  return Error(ErrorCode::kInvalidArgument, "byte tokens have no chat template");
}

Result<std::string> find_tokens_tool(const std::string& named) {
  return named.empty() ? find_script("tokens") : named;
}

std::unique_ptr<TextTokens> byte_tokens() { return std::make_unique<ByteTokens>(); }

Result<std::unique_ptr<TextTokens>> tool_tokens(const ToolTokensOptions& options) {
  std::vector<std::string> words = {options.tool, options.json, "--reply-fd", "0"};
  if (options.chat) words.emplace_back("--chat");
  if (!options.chat_template.empty()) words.push_back("--chat-template=" + options.chat_template);
  SLUICE_ASSIGN_OR_RETURN(auto child, ChildProcess::start(std::move(words)));
  return std::unique_ptr<TextTokens>(std::make_unique<ToolTokens>(std::move(child)));
}

}  // namespace sluice::tools
