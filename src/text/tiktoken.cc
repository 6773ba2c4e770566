#include "text/tiktoken.h"

#include <charconv>

#include "base/format.h"
#include "text/base64.h"
#include "text/bpe.h"
#include "text/byte_level.h"
#include "text/pipeline_tokenizer.h"
#include "text/tokenizer_json.h"

namespace fathom {
namespace {

struct Line {
  std::string_view base64, rank;
};

// Takes the next line that is not empty; false at the end.
bool next_line(std::string_view& text, Line* line) {
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    std::string_view all = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (all.ends_with('\r')) all.remove_suffix(1);
    if (all.empty()) continue;
    const size_t space = std::min(all.find(' '), all.size());
    *line = {all.substr(0, space), all.substr(std::min(space + 1, all.size()))};
    return true;
  }
  return false;
}

bool parse_rank(std::string_view text, int64_t* rank) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *rank);
  return error == std::errc() && end == text.data() + text.size() && !text.empty();
}

}  // namespace

TiktokenRules llama3_rules() {
  TiktokenRules rules;
  rules.pattern =
      R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
  rules.bos = "<|begin_of_text|>";
  rules.eos = "<|end_of_text|>";
  const auto reserved = [](int i) { return fmt::format("<|reserved_special_token_{}|>", i); };
  rules.special = {rules.bos, rules.eos};
  for (int i = 0; i < 4; ++i) rules.special.push_back(reserved(i));
  rules.special.insert(rules.special.end(),
                       {"<|start_header_id|>", "<|end_header_id|>", reserved(4), "<|eot_id|>"});
  for (int i = 5; i < 251; ++i) rules.special.push_back(reserved(i));
  return rules;
}

std::string ranks_of_vocab_json(std::string_view vocab_json, const std::string& where) {
  std::string text, bytes;
  for (const auto& [spelt, id] : read_vocab_json(vocab_json, where)) {
    require(from_byte_level(spelt, &bytes), "{}: '{}' spells no bytes", where, printable(spelt));
    text += to_base64(bytes) + fmt::format(" {}\n", id);
  }
  return text;
}

bool is_tiktoken(std::string_view text) {
  Line line;
  int64_t rank = 0;
  text = text.substr(0, 4096);
  if (!next_line(text, &line) || line.base64.empty() || !parse_rank(line.rank, &rank)) return false;
  return line.base64.find_first_not_of("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/=") ==
         std::string_view::npos;
}

std::shared_ptr<const Tokenizer> tiktoken_tokenizer(std::string_view text, const TiktokenRules& rules,
                                                    const std::string& where) {
  Vocabulary vocabulary;
  const int64_t limit = static_cast<int64_t>(text.size() / 4);  // a line has four bytes at least
  vocabulary.reserve(text.size() / 12, text.size());
  Line line;
  while (next_line(text, &line)) {
    int64_t rank = -1;
    if (!(parse_rank(line.rank, &rank))) {
      fail("{}: expected base64 and a rank, got '{} {}'", where, printable(line.base64, 40),
           printable(line.rank, 40));
    }
    require(rank >= 0 && rank < limit, "{}: rank {} is out of range", where, rank);
    const std::string bytes = from_base64(line.base64, where);
    require(!bytes.empty(), "{}: the token of rank {} is empty", where, rank);
    require(vocabulary.add(bytes, static_cast<int32_t>(rank)), "{}: two tokens have the rank {}", where,
            rank);
  }
  require(vocabulary.distinct() == vocabulary.count(), "{}: a token is there twice", where);
  require(static_cast<int32_t>(vocabulary.count()) == vocabulary.size(),
          "{}: {} ranks, but the largest is {}", where, vocabulary.count(), vocabulary.size() - 1);
  TokenizerParts parts;
  RankedBpeOptions options;
  options.byte_level = options.ignore_merges = true;
  for (int byte = 0; byte < 256; ++byte) {
    const char one = static_cast<char>(byte);
    options.byte_ids[byte] = vocabulary.find(std::string_view(&one, 1));
    require(options.byte_ids[byte] >= 0, "{}: there is no token for the byte {}", where, byte);
  }
  for (int32_t id = 0; id < vocabulary.size(); ++id) options.ranks.push_back(static_cast<uint32_t>(id));
  int32_t next = vocabulary.size();
  for (const std::string& name : rules.special) {
    if (name == rules.bos) parts.bos = next;
    if (name == rules.eos) parts.eos = next;
    parts.added.add({next++, name, true});
  }
  if (parts.bos >= 0) parts.before = {parts.bos};
  parts.kind = "tiktoken";
  parts.byte_level = true;
  parts.pre_tokenizer.add_split(Regex(rules.pattern), SplitBehavior::kIsolated, false);
  parts.decoder.add_byte_level();
  parts.model = std::make_unique<RankedBpeModel>(std::move(vocabulary), std::move(options));
  return std::make_shared<PipelineTokenizer>(std::move(parts));
}

}  // namespace fathom
