#include "text/hf_tokenizer.h"

#include <nlohmann/json.hpp>

#include "base/format.h"
#include "text/bpe.h"
#include "text/byte_level.h"
#include "text/hf_parts.h"
#include "text/tokenizer_json.h"
#include "text/unigram.h"

namespace fathom {
namespace {

using Json = nlohmann::json;
using VocabList = std::vector<std::pair<std::string, int64_t>>;

// The vocabulary as the model reads it. Byte-level: as bytes; tokens that spell no bytes go to
// `parts.unspelt`.
Vocabulary build_vocabulary(const VocabList& list, TokenizerParts& parts, const std::string& where) {
  Vocabulary vocabulary;
  const int64_t limit = id_limit(list.size());
  size_t bytes = 0;
  for (const auto& [text, id] : list) bytes += text.size();
  vocabulary.reserve(list.size(), bytes);
  std::string spelt;
  for (const auto& [text, id] : list) {
    if (!(id >= 0 && id < limit)) {
      fail("{}: token '{}' has the id {}; {} tokens may have ids up to {}", where, printable(text), id,
           list.size(), limit - 1);
    }
    const bool as_bytes = parts.byte_level && from_byte_level(text, &spelt);
    if (parts.byte_level && !as_bytes) {
      require(parts.unspelt.try_emplace(static_cast<int32_t>(id), text).second &&
                  !vocabulary.has(static_cast<int32_t>(id)),
              "{}: two tokens have the id {}", where, id);
      continue;
    }
    require(parts.unspelt.count(static_cast<int32_t>(id)) == 0 &&
                vocabulary.add(as_bytes ? spelt : text, static_cast<int32_t>(id)),
            "{}: two tokens have the id {}", where, id);
  }
  require(vocabulary.distinct() == vocabulary.count(), "{}: a token is in the vocabulary twice", where);
  return vocabulary;
}

bool is_empty_text(const Json* field) {
  return field == nullptr || (field->is_string() && field->get_ref<const std::string&>().empty());
}

std::unique_ptr<TokenModel> build_bpe(const TokenizerJson& file, const Json& model, TokenizerParts& parts,
                                      const std::string& where) {
  const Json* dropout = json_field(model, "dropout");
  require(dropout == nullptr || (dropout->is_number() && dropout->get<double>() == 0.0),
          "{}: BPE dropout makes ids random and is not supported", where);
  for (const char* name : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    require(is_empty_text(json_field(model, name)), "{}: BPE with a {} is not supported", where, name);
  }
  require(file.pieces.empty() && file.has_merges, "{}: a BPE model must have vocab and merges", where);
  Vocabulary vocabulary = build_vocabulary(file.vocab, parts, where);
  BpeOptions options;
  options.byte_level = parts.byte_level;
  options.byte_fallback = json_bool(model, "byte_fallback", false);
  options.fuse_unk = json_bool(model, "fuse_unk", false);
  options.ignore_merges = json_bool(model, "ignore_merges", false);
  if (json_field(model, "unk_token") != nullptr) {
    const std::string unk = json_string(model, "unk_token");
    options.unk = vocabulary.find(unk);
    require(options.unk >= 0 || parts.byte_level, "{}: the vocabulary lacks the unk_token '{}'", where,
            printable(unk));
  }
  parts.kind = parts.byte_level        ? "HF byte-level BPE"
               : options.byte_fallback ? "HF BPE with byte fallback"
                                       : "HF BPE";
  MergeTable merges = resolve_merges(file.merges, vocabulary, parts.byte_level, where);
  return std::make_unique<BpeModel>(std::move(vocabulary), std::move(merges), options);
}

std::unique_ptr<TokenModel> build_unigram(const TokenizerJson& file, const Json& model, TokenizerParts& parts,
                                          const std::string& where) {
  require(!parts.byte_level, "{}: a unigram model with a ByteLevel pre-tokenizer is not supported", where);
  require(file.vocab.empty() && !file.pieces.empty(), "{}: a unigram model must have a list of [text, score]",
          where);
  VocabList list;
  UnigramOptions options;
  for (const auto& [text, score] : file.pieces) {
    list.emplace_back(text, static_cast<int64_t>(list.size()));
    options.scores.push_back(score);
  }
  Vocabulary vocabulary = build_vocabulary(list, parts, where);
  options.double_sums = true;
  options.in_text.assign(list.size(), true);
  options.user_defined.assign(list.size(), false);
  options.byte_ids.fill(-1);
  if (json_bool(model, "byte_fallback", false)) options.byte_ids = byte_token_ids(vocabulary);
  if (json_field(model, "unk_id") != nullptr) {
    const int64_t unk = json_integer(model, "unk_id");
    require(unk >= 0 && unk < vocabulary.size(), "{}: unk_id {} is not in the vocabulary of {}", where, unk,
            vocabulary.size());
    options.unk = static_cast<int32_t>(unk);
  }
  parts.kind = "HF unigram";
  return std::make_unique<UnigramModel>(std::move(vocabulary), std::move(options));
}

// An added token and the vocabulary must agree on its id.
void add_token(AddedToken token, TokenizerParts& parts, const std::string& where) {
  const Vocabulary& vocabulary = parts.model->vocabulary();
  const auto unspelt = parts.unspelt.find(token.id);
  std::string there(vocabulary.text(token.id));
  if (unspelt != parts.unspelt.end()) {
    there = unspelt->second;
  } else if (parts.byte_level) {
    there = to_byte_level(there);
  }
  const bool taken = vocabulary.has(token.id) || unspelt != parts.unspelt.end();
  if (!(!taken || there == token.content)) {
    fail("{}: added token '{}' has the id {}, which is '{}' in the vocabulary", where,
         printable(token.content), token.id, printable(there));
  }
  const int64_t limit = id_limit(vocabulary.count() + parts.added.all().size());
  if (!(token.id < limit)) {
    fail("{}: added token '{}' has the id {}; this vocabulary may have ids up to {}", where,
         printable(token.content), token.id, limit - 1);
  }
  parts.added.add(std::move(token));
}

int32_t id_of(const TokenizerParts& parts, const std::string& text) {
  if (const AddedToken* added = parts.added.find(text)) return added->id;
  std::string bytes;
  if (parts.byte_level) return from_byte_level(text, &bytes) ? parts.model->vocabulary().find(bytes) : -1;
  return parts.model->vocabulary().find(text);
}

// "bos_token": "<s>" or {"content": "<s>", …} or null.
int32_t named_token(const Json& config, const char* name, const TokenizerParts& parts) {
  const Json* field = json_field(config, name);
  return id_of(parts, field->is_object() ? json_string(*field, "content") : json_string(config, name));
}

std::string chat_template_of(const Json& config) {
  const Json* field = json_field(config, "chat_template");
  if (field == nullptr) return {};
  if (field->is_string()) return field->get<std::string>();
  require(field->is_array(), "tokenizer_config.json: chat_template must be a text or a list");
  for (const Json& one : *field) {
    if (json_string(one, "name") == "default") return json_string(one, "template");
  }
  return {};
}

// The tokens and names that tokenizer_config.json knows and tokenizer.json does not.
void read_config(const HfConfigText& text, TokenizerParts& parts, std::string& chat_template) {
  chat_template = text.chat_template;
  if (text.tokenizer_config.empty()) {
    if (!parts.before.empty()) parts.bos = parts.before.front();
    if (!parts.after.empty()) parts.eos = parts.after.back();
    return;
  }
  const std::string where = "tokenizer_config.json";
  const auto config = read_json_tree(text.tokenizer_config, where);
  if (const Json* decoder = json_field(*config, "added_tokens_decoder")) {
    require(decoder->is_object(), "{}: added_tokens_decoder must be an object", where);
    for (const auto& [key, value] : decoder->items()) {
      require(!key.empty() && key.size() < 10 && key.find_first_not_of("0123456789") == std::string::npos,
              "{}: '{}' is no id", where, printable(key));
      const AddedToken token = read_added_token(value, std::stoll(key));
      if (parts.added.find(token.id) == nullptr) add_token(token, parts, where);
    }
  }
  if (json_field(*config, "bos_token")) parts.bos = named_token(*config, "bos_token", parts);
  if (json_field(*config, "eos_token")) parts.eos = named_token(*config, "eos_token", parts);
  if (json_field(*config, "pad_token")) parts.pad = named_token(*config, "pad_token", parts);
  if (chat_template.empty()) chat_template = chat_template_of(*config);
}

void check_ids(const TokenizerParts& parts, const std::string& where) {
  for (const auto* ids : {&parts.before, &parts.after}) {
    for (const int32_t id : *ids) {
      require(
          parts.added.find(id) != nullptr || parts.model->vocabulary().has(id) || parts.unspelt.count(id) > 0,
          "{}: the post-processor adds the id {}, which no token has", where, id);
    }
  }
}

std::shared_ptr<const Tokenizer> finish(TokenizerParts parts, const HfConfigText& config,
                                        const std::string& where) {
  std::string chat_template;
  read_config(config, parts, chat_template);
  check_ids(parts, where);
  auto tokenizer = std::make_shared<PipelineTokenizer>(std::move(parts));
  tokenizer->set_chat_template(std::move(chat_template));
  return tokenizer;
}

const Json& part_or_null(const Json& root, const char* name) {
  static const Json kNull;
  const Json* field = json_field(root, name);
  return field ? *field : kNull;
}

}  // namespace

MergeTable resolve_merges(const std::vector<std::pair<std::string, std::string>>& merges,
                          const Vocabulary& vocabulary, bool byte_level, const std::string& where) {
  MergeTable table(merges.size());
  std::string left_bytes, right_bytes;
  for (size_t rank = 0; rank < merges.size(); ++rank) {
    const auto& [left, right] = merges[rank];
    const bool as_bytes =
        byte_level && from_byte_level(left, &left_bytes) && from_byte_level(right, &right_bytes);
    if (byte_level && !as_bytes) continue;  // of characters that no text is spelt with
    const std::string& a = as_bytes ? left_bytes : left;
    const std::string& b = as_bytes ? right_bytes : right;
    const int32_t left_id = vocabulary.find(a), right_id = vocabulary.find(b), id = vocabulary.find(a + b);
    if (!(left_id >= 0 && right_id >= 0 && id >= 0)) {
      fail("{}: merge {}, '{}' with '{}', names a token that the vocabulary lacks", where, rank,
           printable(left), printable(right));
    }
    table.set(left_id, right_id, {static_cast<uint32_t>(rank), id});
  }
  return table;
}

std::shared_ptr<const Tokenizer> hf_tokenizer(std::string_view text, const HfConfigText& config,
                                              const std::string& where) {
  const TokenizerJson file = read_tokenizer_json(text, where);
  const Json& root = *file.rest;
  require(root.is_object(), "{}: expected an object, got {}", where, root.type_name());
  const Json* model = json_field(root, "model");
  require(model != nullptr && model->is_object(), "{}: there is no model", where);
  TokenizerParts parts;
  read_normalizer(part_or_null(root, "normalizer"), parts.normalizer);
  read_pre_tokenizer(part_or_null(root, "pre_tokenizer"), parts.pre_tokenizer);
  parts.byte_level = parts.pre_tokenizer.byte_level();
  const std::string type = json_field(*model, "type") ? json_string(*model, "type")
                           : file.has_merges          ? "BPE"
                                                      : "of no type";
  if (type == "BPE") {
    parts.model = build_bpe(file, *model, parts, where);
  } else if (type == "Unigram") {
    parts.model = build_unigram(file, *model, parts, where);
  } else {
    fail("{}: the model '{}' is not supported, only BPE and Unigram are", where, printable(type));
  }
  if (const Json* added = json_field(root, "added_tokens")) {
    require(added->is_array(), "{}: added_tokens must be a list", where);
    for (const Json& one : *added) add_token(read_added_token(one, json_integer(one, "id")), parts, where);
  }
  read_decoder(part_or_null(root, "decoder"), parts.decoder);
  read_post_processor(part_or_null(root, "post_processor"), parts);
  return finish(std::move(parts), config, where);
}

std::shared_ptr<const Tokenizer> gpt2_tokenizer(std::string_view vocab_json, std::string_view merges_txt,
                                                const HfConfigText& config, const std::string& where) {
  // Other classes cut words by other rules, which only their tokenizer.json tells.
  bool prefix_space = false;
  if (!config.tokenizer_config.empty()) {
    const auto tree = read_json_tree(config.tokenizer_config, "tokenizer_config.json");
    const std::string name =
        json_field(*tree, "tokenizer_class") ? json_string(*tree, "tokenizer_class") : "GPT2Tokenizer";
    require(name == "GPT2Tokenizer" || name == "GPT2TokenizerFast",
            "{}: vocab.json and merges.txt are enough for a GPT2Tokenizer, a '{}' needs tokenizer.json",
            where, printable(name));
    prefix_space = json_bool(*tree, "add_prefix_space", false);
  }
  TokenizerJson file;
  file.vocab = read_vocab_json(vocab_json, where + "/vocab.json");
  file.has_merges = true;
  while (!merges_txt.empty()) {
    const size_t end = std::min(merges_txt.find('\n'), merges_txt.size());
    std::string_view line = merges_txt.substr(0, end);
    merges_txt.remove_prefix(std::min(end + 1, merges_txt.size()));
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (line.empty() || (line.starts_with("#version") && file.merges.empty())) continue;
    const size_t space = line.find(' ');
    if (!(space != std::string_view::npos && line.find(' ', space + 1) == std::string_view::npos)) {
      fail("{}/merges.txt: '{}' is not two tokens with a space between", where, printable(line));
    }
    file.merges.emplace_back(line.substr(0, space), line.substr(space + 1));
  }
  TokenizerParts parts;
  parts.byte_level = true;
  parts.pre_tokenizer.add_byte_level(prefix_space, true);
  parts.decoder.add_byte_level();
  parts.model = build_bpe(file, Json::object(), parts, where);
  if (const int32_t end = id_of(parts, "<|endoftext|>"); end >= 0) {
    parts.added.add({end, "<|endoftext|>", true});
    parts.bos = parts.eos = end;
  }
  return finish(std::move(parts), config, where);
}

}  // namespace fathom
