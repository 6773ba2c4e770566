// fathom chat: a conversation with the model's chat template.
#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/format.h"
#include "base/json_depth.h"
#include "base/log.h"
#include "base/mapped_file.h"
#include "cli/drafting.h"
#include "cli/interrupt.h"
#include "cli/line_reader.h"
#include "cli/output.h"
#include "cli/prefill_bar.h"
#include "cli/savings_line.h"
#include "cli/verbs.h"
#include "infer/batch_source.h"
#include "io/atomic_file.h"

namespace fathom {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kHelp =
    "/exit ends, /reset forgets the conversation, /retry answers again, "
    "/budget B sets how much runs (own: as the program was started), "
    "/save FILE and /load FILE keep a conversation as JSON, /help shows this; "
    "a line that ends with \\ goes on in the next; Ctrl-C cuts an answer short\n";

struct ChatChoice {
  ModelOptions model;
  SamplingOptions sampling;
  DraftChoice drafts;
  ShadeChoice shades;
  std::string system, chat_template = "auto";
  std::vector<std::string> stops;
  int64_t tokens = -1;
};

BatcherOptions engine_options(const Session& session, const ChatChoice& o) {
  BatcherOptions options = session.engine_options();
  options.records = o.shades.on || o.model.json || session.drafts_by_model();
  return options;
}

size_t first_question(const std::vector<ChatMessage>& messages) {
  return !messages.empty() && messages.front().role == "system" ? 1 : 0;
}

// /retry and --context-shift take a question and its answer away together.
void check_turns(const std::vector<ChatMessage>& messages) {
  const size_t first = first_question(messages);
  for (size_t i = first; i < messages.size(); ++i) {
    const char* expected = (i - first) % 2 == 0 ? "user" : "assistant";
    if (messages[i].role != expected)
      fail("messages[{}]: expected the role {}, got {}", i, expected, messages[i].role);
  }
  if ((messages.size() - first) % 2 != 0) fail("expected an answer after the last question");
}

std::vector<ChatMessage> messages_in(const std::string& text) {
  check_json_depth(text, "the JSON");
  const auto json = nlohmann::json::parse(text, nullptr, false);
  if (!json.is_object() || !json.contains("messages"))
    fail("expected a JSON object with the list \"messages\"");
  std::vector<ChatMessage> messages = chat_messages_of(json["messages"]);
  check_turns(messages);
  return messages;
}

std::vector<ChatMessage> read_messages(const std::string& path) {
  const std::string text = read_text_file(path);
  try {
    return messages_in(text);
  } catch (const UserError& error) {
    fail("{}: {}", printable(path), error.what());
  }
}

class Conversation {
 public:
  Conversation(Session& session, ChatTemplate chat, GenerateOptions options, const ChatChoice& o)
      : session_(session),
        chat_(std::move(chat)),
        options_(std::move(options)),
        generator_(session.feeder(), engine_options(session, o)) {
    if (!o.system.empty()) messages_.push_back({"system", o.system});
    start_ = messages_.size();
  }

  void reset() { messages_.resize(start_); }

  // Takes back the last answer. Returns its question, for another try.
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
      PrefillBar bar(std::ssize(prompt));
      GenerateOptions options = options_;
      options.on_prefill = [&](int64_t rows) { bar.read(rows); };
      options.on_text = [&](const TextPiece& piece) {
        bar.end();
        if (options_.on_text) options_.on_text(piece);
      };
      GenerateResult result = generator_.run(prompt, options);
      messages_.push_back({"assistant", result.text});
      return result;
    } catch (const UserError&) {
      messages_.pop_back();
      throw;
    }
  }

  void next_seed() { ++options_.sampler.seed; }

  std::optional<double> budget() const {
    return options_.budget ? std::optional(double{*options_.budget}) : asked_budget(session_);
  }
  // None: as the program was started. One that the method cannot meet is a UserError.
  void set_budget(std::optional<float> budget) {
    if (budget) session_.budgets()->thresholds(double{*budget});
    options_.budget = budget;
  }

  // As a line of what train reads.
  void save(const std::string& path) const {
    Json json{{"messages", Json::array()}};
    for (const ChatMessage& each : messages_)
      json["messages"].push_back({{"role", each.role}, {"content", each.content}});
    write_file_atomically(path, json.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n");
  }
  void load(const std::string& path) {
    messages_ = read_messages(path);
    start_ = first_question(messages_);
  }

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

// The one that talks: takes lines, prints answers.
class Talk {
 public:
  Talk(Session& session, Conversation& conversation, const ChatChoice& o, bool terminal)
      : session_(session), conversation_(conversation), o_(o), terminal_(terminal) {}

  // false: the conversation is over.
  bool take(const std::string& line) {
    const std::string command = line.substr(0, line.find(' '));
    const std::string word = line.size() > command.size() ? line.substr(command.size() + 1) : "";
    if (line == "/exit" || line == "/quit" || line == "/bye") return false;
    if (line == "/help") {
      o_.model.json ? log_info(kHelp) : print(kHelp);
    } else if (line == "/reset") {
      conversation_.reset();
    } else if (line == "/retry") {
      conversation_.next_seed();
      if (const auto question = conversation_.take_back()) answer(*question);
    } else if (command == "/budget") {
      change_budget(word);
    } else if (command == "/save" && !word.empty()) {
      conversation_.save(word);
    } else if (command == "/load" && !word.empty()) {
      conversation_.load(word);
    } else if (line.starts_with("/") && line.find_first_of(" \n") == std::string::npos) {
      log_warn(fmt::format("unknown command '{}'; {}", printable(line),
                           std::string(kHelp, std::string_view(kHelp).size() - 1)));
    } else if (line.find_first_not_of(" \t\n") != std::string::npos) {
      answer(line);
    }
    return true;
  }

  // What the whole conversation saved; on a terminal every answer has said so.
  void end() const {
    if (!terminal_)
      log_savings(session_, session_.feeder().books(), conversation_.budget(), 1,
                  o_.drafts.speculate.empty());
  }

 private:
  void answer(const std::string& question) {
    warn_about_bytes(question);
    const WorkBooks before = session_.feeder().books();
    const GenerateResult result = conversation_.ask(question);
    const WorkBooks books = session_.feeder().books() - before;
    if (o_.model.json) return print_json(as_json(result, books.savings()));
    print("\n");
    if (o_.shades.on) log_depth(result.depth, session_.model().config.layers);
    if (!terminal_) return;
    log_info(fmt::format("{} tokens at {:.1f}/s{}", result.ids.size(), result.decode_tokens_per_s(),
                         result.finish == FinishReason::kLength ? ", cut at the limit" : ""));
    log_drafts(o_.drafts, result);
    log_savings(session_, books, conversation_.budget(), 1, o_.drafts.speculate.empty());
  }

  static Json as_json(const GenerateResult& result, const Savings& savings) {
    Json out{{"text", result.text},
             {"prompt_tokens", result.stats.prompt_tokens},
             {"generated_tokens", result.ids.size()},
             {"finish_reason", name_of(result.finish)},
             {"prefill_tokens_per_s", result.prefill_tokens_per_s()},
             {"decode_tokens_per_s", result.decode_tokens_per_s()}};
    add_savings(out, savings);
    out["depth"] = result.depth;
    return out;
  }

  void change_budget(const std::string& word) {
    if (word == "own") {
      conversation_.set_budget({});
    } else if (!word.empty()) {
      conversation_.set_budget(static_cast<float>(parse_number("/budget", word)));
    }
    const std::optional<double> budget = conversation_.budget();
    log_info(budget ? fmt::format("budget {:g}", *budget) : "no budget: the method's own rule");
  }

  Session& session_;
  Conversation& conversation_;
  const ChatChoice& o_;
  bool terminal_;
};

bool parse(Args& args, ChatChoice& o, const Arguments& arguments) {
  args.text("--system", o.system, "TEXT", "System message");
  args.text("--chat-template", o.chat_template, "NAME",
            "auto: the model's own; or " + ChatTemplate::known_names());
  args.integer("-n,--tokens", o.tokens, "Most tokens in an answer; -1: until it ends or the context is full",
               -1, INT32_MAX);
  args.texts("--stop", o.stops, "TEXT", "End an answer where this text would come; may be repeated");
  add_shade_options(args, o.shades);
  add_draft_options(args, o.drafts);
  add_model_options(args, o.model, true);
  add_sampling_options(args, o.sampling);
  if (!args.parse(arguments)) return false;
  check_model_options(args, o.model);
  check_draft_options(args, o.drafts);
  check_shade_options(args, o.shades);
  return true;
}

GenerateOptions generate_options(const Args& args, const ChatChoice& o, const Session& session) {
  GenerateOptions options;
  options.sampler = sampler_config(args, o.sampling, session.model().generation);
  options.max_tokens = o.tokens;
  options.stops = o.stops;
  options.context_shift = o.model.context_shift;
  options.cancel = &interrupted();
  if (o.model.json) return options;
  const bool shades = o.shades.shades();
  options.on_text = [shades, layers = session.model().config.layers](const TextPiece& piece) {
    const std::string shown = for_terminal(piece.text);
    print(shades ? shaded(shown, piece.depth, layers) : shown);
  };
  return options;
}

// Until the end of the input, /exit or Ctrl-C at the prompt.
int converse(Talk& talk, LineReader& lines) {
  while (const std::optional<std::string> line = lines.next()) {
    try {
      if (!talk.take(*line)) break;
    } catch (const std::runtime_error& error) {  // UserError, UsageError
      if (!lines.is_terminal()) throw;
      log_warn(error.what());
    }
    if (interrupted() && !lines.is_terminal()) return kInterruptedExit;
    forget_interrupt();  // it cut the answer short; the conversation goes on
  }
  talk.end();
  return interrupted() ? kInterruptedExit : 0;
}

}  // namespace

int run_chat(const Arguments& arguments) {
  Args args("chat", std::string("A conversation with the model's chat template. ") + kHelp,
            "fathom chat -m SmolLM2-135M-Instruct.Q4_1.gguf\n"
            "  echo \"Why is the sky blue?\" | fathom chat -m model.gguf --system \"Be brief.\" --temp 0");
  ChatChoice o;
  if (!parse(args, o, arguments)) return 0;
  Session session(o.model);
  ChatTemplate chat = chat_template_option(session, o.chat_template);
  GenerateOptions options = generate_options(args, o, session);
  try {
    options.speculate = use_drafts(session, o.drafts);
  } catch (const PrepareCancelled&) {
    return kInterruptedExit;
  }
  session.make_cache(-1, 1, EngineOptions().rows);
  LineReader lines;
  if (lines.is_terminal() && !o.model.json) print(kHelp);
  log_rule(session);
  Conversation conversation(session, std::move(chat), std::move(options), o);
  Talk talk(session, conversation, o, lines.is_terminal());
  return converse(talk, lines);
}

}  // namespace fathom
