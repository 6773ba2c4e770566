// fathom chat: a conversation with the model's chat template.
#include <algorithm>
#include <optional>

#include "base/format.h"
#include "base/log.h"
#include "cli/interrupt.h"
#include "cli/line_reader.h"
#include "cli/output.h"
#include "cli/session.h"
#include "cli/verbs.h"
#include "infer/generate.h"

namespace fathom {
namespace {

constexpr const char* kHelp =
    "/exit ends, /reset forgets the conversation, /retry answers again, /help shows this; Ctrl-C cuts an "
    "answer short\n";

// Depth is not shown, so nothing is recorded.
BatcherOptions quiet(BatcherOptions options) {
  options.records = false;
  return options;
}

class Conversation {
 public:
  Conversation(Session& session, ChatTemplate chat, GenerateOptions options, std::string system)
      : session_(session),
        chat_(std::move(chat)),
        options_(std::move(options)),
        generator_(session.feeder(), quiet(session.engine_options())) {
    if (!system.empty()) messages_.push_back({"system", std::move(system)});
    start_ = messages_.size();
  }

  void reset() { messages_.resize(start_); }

  // Takes back the last answer. -> the question, for another try
  std::optional<std::string> take_back() {
    if (messages_.size() < start_ + 2) return std::nullopt;
    messages_.pop_back();
    std::string question = std::move(messages_.back().content);
    messages_.pop_back();
    return question;
  }

  // Prints the answer as it comes. A question that does not fit is a UserError and leaves the conversation as
  // it was.
  GenerateResult ask(const std::string& question) {
    messages_.push_back({"user", question});
    try {
      const std::vector<int32_t> prompt = fitting_prompt();
      GenerateResult result = generator_.run(prompt, options_);
      messages_.push_back({"assistant", result.text});
      return result;
    } catch (const UserError&) {
      messages_.pop_back();
      throw;
    }
  }

  void next_seed() { ++options_.sampler.seed; }

 private:
  // With --context-shift the oldest exchanges go until a quarter of the context is free for the answer.
  std::vector<int32_t> fitting_prompt() {
    const auto context = static_cast<size_t>(session_.feeder().cache().context());
    while (true) {
      std::vector<int32_t> prompt = encode_chat(session_.tokenizer(), chat_, messages_);
      const size_t room = options_.context_shift ? context - context / 4 : context - 1;
      if (prompt.size() <= room) return prompt;
      if (!options_.context_shift || messages_.size() < start_ + 3) {
        fail(
            "the conversation has {} tokens, the context {}: /reset starts again, -c makes room, "
            "--context-shift forgets the oldest",
            prompt.size(), context);
      }
      const auto oldest = messages_.begin() + static_cast<ptrdiff_t>(start_);
      messages_.erase(oldest, oldest + 2);
      log_info("the oldest question and answer were dropped to make room");
    }
  }

  Session& session_;
  ChatTemplate chat_;
  GenerateOptions options_;
  Generator generator_;
  std::vector<ChatMessage> messages_;
  size_t start_ = 0;
};

void answer(Conversation& conversation, const std::string& question, bool terminal) {
  const GenerateResult result = conversation.ask(question);
  print("\n");
  if (terminal) {
    log_info(fmt::format("{} tokens at {:.1f}/s{}", result.ids.size(), result.decode_tokens_per_s(),
                         result.finish == FinishReason::kLength ? ", cut at the limit" : ""));
  }
}

// false: the conversation is over.
bool handle(Conversation& conversation, const std::string& line, bool terminal) {
  if (line == "/exit" || line == "/quit" || line == "/bye") return false;
  if (line == "/help") {
    print(kHelp);
  } else if (line == "/reset") {
    conversation.reset();
  } else if (line == "/retry") {
    conversation.next_seed();
    if (const auto question = conversation.take_back()) answer(conversation, *question, terminal);
  } else if (line.starts_with("/") && line.find(' ') == std::string::npos) {
    log_warn(fmt::format("unknown command '{}'; {}", printable(line),
                         std::string(kHelp, std::string_view(kHelp).size() - 1)));
  } else if (line.find_first_not_of(" \t") != std::string::npos) {
    answer(conversation, line, terminal);
  }
  return true;
}

}  // namespace

int run_chat(const Arguments& arguments) {
  Args args("chat", std::string("A conversation with the model's chat template. ") + kHelp,
            "fathom chat -m SmolLM2-135M-Instruct.Q4_1.gguf\n"
            "  echo \"Why is the sky blue?\" | fathom chat -m model.gguf --system \"Be brief.\" --temp 0");
  ModelOptions o;
  SamplingOptions sampling;
  std::string system, chat_template = "auto";
  std::vector<std::string> stops;
  int64_t tokens = -1;
  args.text("--system", system, "TEXT", "System message");
  args.text("--chat-template", chat_template, "NAME",
            "auto: the model's own; or " + ChatTemplate::known_names());
  args.integer("-n,--tokens", tokens, "Most tokens in an answer; -1: until it ends or the context is full",
               -1, INT32_MAX);
  args.texts("--stop", stops, "TEXT", "End an answer where this text would come; may be repeated");
  add_model_options(args, o, true);
  add_sampling_options(args, sampling);
  if (!args.parse(arguments)) return 0;
  check_model_options(args, o);

  Session session(o);
  ChatTemplate chat = chat_template_option(session, chat_template);
  GenerateOptions options;
  options.sampler = sampler_config(args, sampling, session.model().generation);
  options.max_tokens = tokens;
  options.stops = stops;
  options.context_shift = o.context_shift;
  options.cancel = &interrupted();
  options.on_text = [](const TextPiece& piece) { print(for_terminal(piece.text)); };
  session.make_cache();
  LineReader lines;
  if (lines.is_terminal()) print(kHelp);
  Conversation conversation(session, std::move(chat), std::move(options), system);
  while (const std::optional<std::string> line = lines.next()) {
    try {
      if (!handle(conversation, *line, lines.is_terminal())) return 0;
    } catch (const UserError& error) {
      if (!lines.is_terminal()) throw;
      log_warn(error.what());
    }
    if (interrupted() && !lines.is_terminal()) return kInterruptedExit;
    forget_interrupt();  // it cut the answer short; the conversation goes on
  }
  return interrupted() ? kInterruptedExit : 0;
}

}  // namespace fathom
