// fathom tokenize: text to ids and back.
#include <nlohmann/json.hpp>

#include "base/format.h"
#include "cli/output.h"
#include "cli/session.h"
#include "cli/verbs.h"
#include "infer/model_path.h"
#include "io/file_kind.h"

namespace fathom {
namespace {

using Json = nlohmann::ordered_json;

struct TokenizeChoice {
  ModelOptions model;
  std::string prompt, file, ids;
  bool decode = false, no_special = false, literal = false;
};

bool parse(Args& args, TokenizeChoice& o, const Arguments& arguments) {
  args.text("-p,--prompt", o.prompt, "TEXT", "The text");
  args.text("-f,--file", o.file, "FILE", "The text from a file; -: from stdin");
  args.flag("--decode", o.decode, "From ids to text");
  args.text("--ids", o.ids, "FILE", "The ids, as a JSON list, for --decode; -: from stdin");
  args.flag("--no-special", o.no_special, "Add no BOS or EOS; with --decode: leave special tokens out");
  args.flag("--literal", o.literal, "Special tokens written in the text stay text");
  add_model_options(args, o.model, false);
  if (!args.parse(arguments)) return false;
  check_model_options(args, o.model);
  const bool text = args.given("--prompt") || args.given("--file");
  if (args.given("--prompt") && args.given("--file"))
    throw UsageError("tokenize: give the text with either -p or --file");
  if (args.given("--ids") != o.decode) throw UsageError("tokenize: --decode and --ids go together");
  if (o.decode == text)
    throw UsageError("tokenize: give a text with -p or --file, or ids with --decode --ids");
  return true;
}

std::shared_ptr<const Tokenizer> open_tokenizer(const ModelOptions& o) {
  const ModelFiles files = find_model(o.model);
  const std::string& path = !o.tokenizer.empty()       ? o.tokenizer
                            : !files.tokenizer.empty() ? files.tokenizer
                                                       : files.model;
  if (path == files.model && file_kind(path) == FileKind::kLlama2c) {
    fail("{}: a llama2.c model has no vocabulary in its file: give it with --tokenizer", printable(path));
  }
  return load_tokenizer(path);
}

}  // namespace

int run_tokenize(const Arguments& arguments) {
  Args args("tokenize",
            "Turns text into token ids, or ids into text. -m may be a vocabulary-only GGUF or a folder with "
            "a tokenizer.",
            "fathom tokenize -m builtin -p \"The old man\"\n"
            "  echo '[428, 1063]' | fathom tokenize -m builtin --decode --ids -");
  TokenizeChoice o;
  if (!parse(args, o, arguments)) return 0;
  const std::shared_ptr<const Tokenizer> tokenizer = open_tokenizer(o.model);
  if (o.decode) {
    const std::string text = tokenizer->decode(read_ids(o.ids, tokenizer->vocab_size()), !o.no_special);
    if (o.model.json) {
      print_json(Json{{"text", text}});
    } else {
      print(for_terminal(text) + "\n");
    }
    return 0;
  }
  const std::string text = args.given("--file") ? read_input(o.file) : o.prompt;
  warn_about_bytes(text);
  const std::vector<int32_t> ids =
      tokenizer->encode(text, {.add_special = !o.no_special, .parse_special = !o.literal});
  if (o.model.json) {
    print_json(Json{{"ids", ids}, {"count", ids.size()}});
    return 0;
  }
  std::string line;
  for (int32_t id : ids) line += (line.empty() ? "" : " ") + std::to_string(id);
  print(line + "\n");
  return 0;
}

}  // namespace fathom
