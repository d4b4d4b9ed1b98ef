#include <CLI/CLI.hpp>
#include <algorithm>
#include <iostream>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/budget/configured_model.h"
#include "tools/cli/chat_input.h"
#include "tools/cli/command.h"
#include "tools/cli/generation_model.h"
#include "tools/session/open_queue.h"
#include "tools/support/interrupt.h"

namespace sluice::tools {
namespace {

constexpr std::int64_t kTokens = 1024;

constexpr const char* kCommands =
    "  /help         this list\n"
    "  /clear        forgets the conversation, but not the system message\n"
    "  /system TEXT  replaces the system message; without TEXT there is none\n"
    "  /undo         forgets the last message and its answer\n"
    "  /retry        answers the last message again\n"
    "  /exit         ends, as Ctrl-D does; Ctrl-C stops an answer\n"
    "  \"\"\"           begins and ends a message of several lines\n";

void say(const std::string& text) { std::cerr << text << std::flush; }

struct Turn {
  std::string message;
  std::string answer;
};

// The turns so far, and how the next one is answered. An answer is that to the whole conversation's
// text. Its tokens are fed from where they differ from those fed last.
class Conversation {
 public:
  Conversation(const GenerationOptions& options, const GenerationModel& model,
               engine::GenerationRun& run)
      : options_(options),
        model_(model),
        run_(run),
        context_(engine::generation_context(model.config)),
        system_(options.system),
        sampler_(options.sampling, options.seed) {}

  // Writes the answer and keeps it. kInvalidArgument: the message is refused, and nothing changed.
  Status answer(const std::string& message, const Interrupt& interrupt);
  void clear();
  // Keeps the old one if the template refuses the new one.
  Status set_system(std::string text);
  bool undo();
  Status retry(const Interrupt& interrupt);

 private:
  // The tokens up to where the answer begins. Forgets the oldest turns to make room for it.
  Result<std::vector<std::int64_t>> prompt_of(const std::string& message);
  Result<std::vector<std::int64_t>> encode(const std::string& message, std::size_t first_turn);

  const GenerationOptions& options_;
  const GenerationModel& model_;
  engine::GenerationRun& run_;
  const std::int64_t context_;
  std::string system_;
  std::vector<Turn> turns_;
  bool has_told_ = false;  // that turns are left out
  engine::TokenSampler sampler_;
};

Result<std::vector<std::int64_t>> Conversation::encode(const std::string& message,
                                                       std::size_t first_turn) {
  ChatMessages messages;
  if (!system_.empty()) messages.push_back({"system", system_});
  for (std::size_t i = first_turn; i < turns_.size(); ++i) {
    messages.push_back({"user", turns_[i].message});
    messages.push_back({"assistant", turns_[i].answer});
  }
  messages.push_back({"user", message});
  SLUICE_ASSIGN_OR_RETURN(auto tokens, model_.tokens->encode_chat(messages));
  SLUICE_RETURN_IF_ERROR(check_vocabulary(tokens, model_.config.model.vocab));
  return tokens;
}

Result<std::vector<std::int64_t>> Conversation::prompt_of(const std::string& message) {
  const std::int64_t room = std::min(options_.tokens, context_ / 2);
  for (std::size_t first = 0; first <= turns_.size(); ++first) {
    SLUICE_ASSIGN_OR_RETURN(auto tokens, encode(message, first));
    const auto count = static_cast<std::int64_t>(tokens.size());
    const bool is_alone = first == turns_.size();
    if (is_alone && count >= context_)
      return Error(ErrorCode::kInvalidArgument,
                   "the message takes " + std::to_string(count) +
                       " tokens with its template, and the model sees " + std::to_string(context_) +
                       " with the answer (data.sequence_length): shorten it");
    if (!is_alone && count + room > context_) continue;
    if (first > 0 && !std::exchange(has_told_, true))
      say("sluice: the conversation no longer fits the model's " + std::to_string(context_) +
          " tokens (data.sequence_length): its oldest turns are left out from here on\n");
    turns_.erase(turns_.begin(), turns_.begin() + static_cast<std::ptrdiff_t>(first));
    return tokens;
  }
  return Error(ErrorCode::kInvalidArgument, "the message does not fit");  // not reached
}

Status Conversation::answer(const std::string& message, const Interrupt& interrupt) {
  SLUICE_ASSIGN_OR_RETURN(std::vector<std::int64_t> tokens, prompt_of(message));
  const std::int64_t most =
      std::min(options_.tokens, context_ - static_cast<std::int64_t>(tokens.size()));
  Turn turn{.message = message, .answer = {}};
  tokens.erase(tokens.begin(),
               tokens.begin() + static_cast<std::ptrdiff_t>(run_.restart_with(tokens)));
  bool has_ended = false;
  for (std::int64_t made = 0; made < most && !interrupt.requested(); ++made) {
    tokens = {sampler_.next(run_.feed(tokens))};
    has_ended = model_.special.ends_text(tokens.front());
    if (has_ended) break;
    SLUICE_ASSIGN_OR_RETURN(const std::string text, model_.tokens->decode(tokens.front()));
    SLUICE_RETURN_IF_ERROR(write_text(text));
    turn.answer += text;
  }
  SLUICE_ASSIGN_OR_RETURN(const std::string rest, model_.tokens->finish());
  SLUICE_RETURN_IF_ERROR(write_text(rest + "\n"));
  turn.answer += rest;
  turns_.push_back(std::move(turn));
  if (!has_ended && !interrupt.requested())
    say("sluice: the answer is cut after " + std::to_string(most) + " tokens, " +
        (most == options_.tokens ? "which is --tokens\n"
                                 : "where the model's context is full (data.sequence_length)\n"));
  return {};
}

void Conversation::clear() {
  turns_.clear();
  has_told_ = false;
}

Status Conversation::set_system(std::string text) {
  std::swap(system_, text);
  const Status taken = encode("Hello", turns_.size()).status();
  if (!taken.ok()) system_ = std::move(text);
  return taken;
}

bool Conversation::undo() {
  if (turns_.empty()) return false;
  turns_.pop_back();
  return true;
}

Status Conversation::retry(const Interrupt& interrupt) {
  if (turns_.empty())
    return Error(ErrorCode::kInvalidArgument, "there is no message to answer again");
  Turn last = std::move(turns_.back());
  turns_.pop_back();
  Status answered = answer(last.message, interrupt);
  if (!answered.ok()) turns_.push_back(std::move(last));
  return answered;
}

// Returns false if the command ends the session.
Result<bool> obey(const std::string& line, Conversation& conversation, const Interrupt& interrupt) {
  const std::size_t space = std::min(line.find_first_of(" \t"), line.size());
  const std::string name = line.substr(0, space);
  const std::string rest = line.substr(std::min(line.find_first_not_of(" \t", space), line.size()));
  if (name == "/system") {
    SLUICE_RETURN_IF_ERROR(conversation.set_system(rest));
    return true;
  }
  if (line == "/exit" || line == "/quit" || line == "/bye") return false;
  if (line == "/help" || line == "/?") {
    say(kCommands);
  } else if (line == "/clear" || line == "/reset") {
    conversation.clear();
  } else if (line == "/undo") {
    if (!conversation.undo())
      return Error(ErrorCode::kInvalidArgument, "there is no message to forget");
  } else if (line == "/retry") {
    SLUICE_RETURN_IF_ERROR(conversation.retry(interrupt));
  } else {
    return Error(ErrorCode::kInvalidArgument,
                 "there is no command \"" + line +
                     "\": /help lists them, and a message that begins with a slash goes between "
                     "\"\"\"");
  }
  return true;
}

// Returns the exit code.
Result<int> talk(ChatInput& input, Conversation& conversation, Interrupt& interrupt) {
  while (true) {
    const ChatInput::Entry entry = input.next();
    if (entry.kind == ChatInput::Kind::kEnd) break;
    Result<bool> goes_on = true;
    if (entry.kind == ChatInput::Kind::kTooLong)
      goes_on = Error(ErrorCode::kInvalidArgument, "the message has more than 1 MiB: shorten it");
    else if (entry.kind == ChatInput::Kind::kCommand)
      goes_on = obey(entry.text, conversation, interrupt);
    else if (const Status answered = conversation.answer(entry.text, interrupt); !answered.ok())
      goes_on = answered.error();
    if (!goes_on.ok() && goes_on.error().code() != ErrorCode::kInvalidArgument)
      return goes_on.error();
    if (!goes_on.ok()) say("sluice: " + goes_on.error().message() + "\n");
    if (goes_on.ok() && !*goes_on) return 0;
    const int signal = interrupt.take();
    if (signal != 0 && signal != SIGINT) return kInterruptedExitCode;
  }
  if (input.is_terminal()) say("\n");
  const int signal = interrupt.first_signal();
  return signal == 0 || signal == SIGINT ? 0 : kInterruptedExitCode;
}

// Called before the weights are read: a template may be missing, or may refuse system messages.
Status check_template(const GenerationOptions& options, TextTokens& tokens) {
  ChatMessages messages;
  if (!options.system.empty()) messages.push_back({"system", options.system});
  messages.push_back({"user", "Hello"});
  const auto encoded = tokens.encode_chat(messages);
  if (encoded.ok()) return {};
  Error error = encoded.error();
  if (error.message().find("no chat template") == std::string::npos) return error;
  return std::move(error).with_suffix(". Without a template, sluice generate continues text");
}

Result<int> run(const GenerationOptions& options, aio::IoWatchdog& watchdog) {
  SLUICE_ASSIGN_OR_RETURN(const FileQueue files, open_queue(watchdog));
  SLUICE_ASSIGN_OR_RETURN(const GenerationModel model,
                          find_generation_model(*files.queue, options));
  watchdog.set_limit_s(model.config.run.io_watchdog_s);
  SLUICE_RETURN_IF_ERROR(check_template(options, *model.tokens));
  SLUICE_ASSIGN_OR_RETURN(const auto loaded, load_generation_model(*files.queue, model));
  Conversation conversation(options, model, *loaded);
  Interrupt interrupt;
  ChatInput input(0, [&interrupt] { return interrupt.requested(); });
  if (input.is_terminal()) say("/help lists the commands. Ctrl-C stops an answer, Ctrl-D ends.\n");
  return at_work(talk(input, conversation, interrupt));
}

}  // namespace

Command add_chat_command(CLI::App& sluice) {
  CLI::App* const command =
      sluice.add_subcommand("chat", "Talk with a model that was trained to chat");
  command->footer(
      "  sluice chat runs/qwen\n"
      "  sluice chat runs/qwen --system 'Answer in one sentence.' --temperature 0.7\n"
      "  printf 'What is a sluice?\\nWho builds one?\\n' | sluice chat runs/qwen --temperature 0\n"
      "Reads messages line by line and writes each answer while it is generated. The model\n"
      "stays loaded and sees the whole conversation, in the chat template that is stored with\n"
      "the run's tokenizer. An answer ends where the model ends its turn, or after --tokens.\n"
      "Ctrl-C stops an answer; what was written stays in the conversation. A second Ctrl-C,\n"
      "before the answer has stopped, ends the program. At the prompt, Ctrl-C and Ctrl-D end\n"
      "with exit code 0. Without a terminal, each line of standard input is a message, and\n"
      "standard output has the answers alone.\n"
      "\n"
      "Instead of a message:\n" +
      std::string(kCommands) +
      "\n"
      "The model sees data.sequence_length tokens. When a conversation leaves too little room,\n"
      "its oldest turns are left out, but not the system message. Enough room is --tokens, or\n"
      "half of what the model sees if that is less. A message that does not fit by itself is\n"
      "refused. Keys and values of the conversation stay cached, up to where it changes: an\n"
      "answer begins with a pass over what is new.");
  const auto options = std::make_shared<GenerationOptions>();
  options->chat = true;
  options->tokens = kTokens;
  add_model_argument(*command, *options);
  command->add_option("--system", options->system, "A system message before the first one");
  command->add_option("--chat-template", options->chat_template,
                      "A file with another template (Jinja)");
  add_generation_options(*command, *options);
  return [options](aio::IoWatchdog& watchdog) { return run(*options, watchdog); };
}

}  // namespace sluice::tools
