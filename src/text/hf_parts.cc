#include "text/hf_parts.h"

#include <nlohmann/json.hpp>

#include "base/format.h"
#include "text/base64.h"
#include "text/growth.h"
#include "text/unicode.h"

namespace fathom {
namespace {

using Json = nlohmann::json;

std::string type_of(const Json& part, const char* what) {
  require(part.is_object(), "tokenizer.json: {} must be an object, got {}", what, part.type_name());
  return json_string(part, "type");
}

// {"String": " "} or {"Regex": "\\s"}.
std::pair<std::string, bool> read_pattern(const Json& part) {
  const Json* pattern = json_field(part, "pattern");
  require(pattern != nullptr && pattern->is_object() && pattern->size() == 1,
          "tokenizer.json: a pattern must be {{\"String\": …}} or {{\"Regex\": …}}");
  const bool regex = pattern->contains("Regex");
  return {json_string(*pattern, regex ? "Regex" : "String"), regex};
}

SplitBehavior read_behavior(const Json& part, const char* fallback) {
  const Json* field = json_field(part, "behavior");
  const std::string name = field ? json_string(part, "behavior") : fallback;
  if (name == "Removed") return SplitBehavior::kRemoved;
  if (name == "Isolated") return SplitBehavior::kIsolated;
  if (name == "MergedWithPrevious") return SplitBehavior::kMergedWithPrevious;
  if (name == "MergedWithNext") return SplitBehavior::kMergedWithNext;
  if (name == "Contiguous") return SplitBehavior::kContiguous;
  fail("tokenizer.json: the split behaviour '{}' is not known", printable(name));
}

// The parts of a Sequence.
const Json& sequence(const Json& part, const char* name) {
  const Json* list = json_field(part, name);
  require(list != nullptr && list->is_array(), "tokenizer.json: a Sequence must have a list '{}'", name);
  return *list;
}

bool is_bert_punctuation(char32_t value) {
  return is_punctuation(value);
}

PreTokenizer::Prepend read_prepend(const Json& part) {
  if (json_field(part, "prepend_scheme") == nullptr) {
    return json_bool(part, "add_prefix_space", true) ? PreTokenizer::Prepend::kAlways
                                                     : PreTokenizer::Prepend::kNever;
  }
  const std::string name = json_string(part, "prepend_scheme");
  if (name == "always") return PreTokenizer::Prepend::kAlways;
  if (name == "first") return PreTokenizer::Prepend::kFirst;
  if (name == "never") return PreTokenizer::Prepend::kNever;
  fail("tokenizer.json: the prepend_scheme '{}' is not always, first or never", printable(name));
}

std::vector<int32_t> template_ids(const Json& part, const std::string& name) {
  const Json* specials = json_field(part, "special_tokens");
  require(specials != nullptr && specials->is_object() && specials->contains(name),
          "tokenizer.json: the template names '{}', which its special_tokens lack", printable(name));
  const Json* ids = json_field((*specials)[name], "ids");
  require(ids != nullptr && ids->is_array(), "tokenizer.json: special token '{}' must have a list of ids",
          printable(name));
  std::vector<int32_t> out;
  for (const Json& id : *ids) {
    require(id.is_number_integer() && id >= 0 && id < INT32_MAX,
            "tokenizer.json: special token '{}' has a bad id", printable(name));
    out.push_back(id.get<int32_t>());
  }
  return out;
}

void check_template(size_t before, size_t after) {
  require(before + after <= kMostTemplateIds,
          "tokenizer.json: the template puts more than {} tokens around a text", kMostTemplateIds);
}

void read_template(const Json& part, std::vector<int32_t>& before, std::vector<int32_t>& after) {
  const Json* single = json_field(part, "single");
  require(single != nullptr && single->is_array(),
          "tokenizer.json: TemplateProcessing must have a list 'single'");
  int sequences = 0;
  for (const Json& item : *single) {
    require(item.is_object() && item.size() == 1,
            "tokenizer.json: a template is made of SpecialToken and Sequence");
    if (item.contains("Sequence")) {
      ++sequences;
      continue;
    }
    require(item.contains("SpecialToken"), "tokenizer.json: a template is made of SpecialToken and Sequence");
    const std::vector<int32_t> ids = template_ids(part, json_string(item["SpecialToken"], "id"));
    auto& side = sequences == 0 ? before : after;
    side.insert(side.end(), ids.begin(), ids.end());
    check_template(before.size(), after.size());
  }
  require(sequences == 1, "tokenizer.json: a template must name its text once, this one does {} times",
          sequences);
}

int32_t named_id(const Json& part, const char* name) {  // ["</s>", 2]
  const Json* pair = json_field(part, name);
  require(pair != nullptr && pair->is_array() && pair->size() == 2 && (*pair)[1].is_number_integer() &&
              (*pair)[1] >= 0 && (*pair)[1] < INT32_MAX,
          "tokenizer.json: '{}' must be [text, id]", name);
  return (*pair)[1].get<int32_t>();
}

}  // namespace

const Json* json_field(const Json& object, const char* name) {
  if (!object.is_object()) return nullptr;
  const auto found = object.find(name);
  return found == object.end() || found->is_null() ? nullptr : &*found;
}

bool json_bool(const Json& object, const char* name, bool fallback) {
  const Json* field = json_field(object, name);
  if (field == nullptr) return fallback;
  require(field->is_boolean(), "tokenizer: '{}' must be true or false, got {}", name, field->type_name());
  return field->get<bool>();
}

std::string json_string(const Json& object, const char* name) {
  const Json* field = json_field(object, name);
  require(field != nullptr && field->is_string(), "tokenizer: '{}' must be a text, got {}", name,
          field ? field->type_name() : "nothing");
  return field->get<std::string>();
}

int64_t json_integer(const Json& object, const char* name) {
  const Json* field = json_field(object, name);
  require(field != nullptr && field->is_number_integer(), "tokenizer: '{}' must be a whole number, got {}",
          name, field ? field->type_name() : "nothing");
  return field->get<int64_t>();
}

void read_normalizer(const Json& part, Normalizer& normalizer) {
  if (part.is_null()) return;
  const std::string type = type_of(part, "the normalizer");
  if (type == "Sequence") {
    for (const Json& one : sequence(part, "normalizers")) read_normalizer(one, normalizer);
  } else if (type == "NFC") {
    normalizer.add_normal_form(NormalForm::kNfc);
  } else if (type == "NFD") {
    normalizer.add_normal_form(NormalForm::kNfd);
  } else if (type == "NFKC") {
    normalizer.add_normal_form(NormalForm::kNfkc);
  } else if (type == "NFKD") {
    normalizer.add_normal_form(NormalForm::kNfkd);
  } else if (type == "Prepend") {
    normalizer.add_prepend(json_string(part, "prepend"));
  } else if (type == "Replace") {
    const auto [pattern, regex] = read_pattern(part);
    if (regex) {
      normalizer.add_replace(Regex(pattern), json_string(part, "content"));
    } else {
      normalizer.add_replace(pattern, json_string(part, "content"));
    }
  } else if (type == "Lowercase") {
    normalizer.add_lowercase();
  } else if (type == "Strip") {
    normalizer.add_strip(json_bool(part, "strip_left", true), json_bool(part, "strip_right", true));
  } else if (type == "StripAccents") {
    normalizer.add_strip_accents();
  } else if (type == "Precompiled") {
    normalizer.add_charsmap(
        Charsmap(from_base64(json_string(part, "precompiled_charsmap"), "precompiled_charsmap")));
  } else {
    fail("tokenizer.json: the normalizer '{}' is not supported", printable(type));
  }
}

void read_pre_tokenizer(const Json& part, PreTokenizer& out) {
  if (part.is_null()) return;
  const std::string type = type_of(part, "the pre-tokenizer");
  if (type == "Sequence") {
    for (const Json& one : sequence(part, "pretokenizers")) read_pre_tokenizer(one, out);
  } else if (type == "Split") {
    const auto [pattern, regex] = read_pattern(part);
    out.add_split(regex ? Regex(pattern) : Regex::literal(pattern), read_behavior(part, "Isolated"),
                  json_bool(part, "invert", false));
  } else if (type == "ByteLevel") {
    out.add_byte_level(json_bool(part, "add_prefix_space", true), json_bool(part, "use_regex", true));
  } else if (type == "Metaspace") {
    out.add_metaspace(json_string(part, "replacement"), read_prepend(part), json_bool(part, "split", true));
  } else if (type == "Digits") {
    out.add_classes(is_numeric, json_bool(part, "individual_digits", false) ? SplitBehavior::kIsolated
                                                                            : SplitBehavior::kContiguous);
  } else if (type == "Punctuation") {
    out.add_classes(is_punctuation, read_behavior(part, "Isolated"));
  } else if (type == "Whitespace") {
    // Here \w is another regex library's: with the joiners, without Oniguruma's odd numbers.
    const std::string word = "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}\\x{200C}\\x{200D}";
    out.add_split(Regex("[" + word + "]+|[^" + word + "\\s]+"), SplitBehavior::kRemoved, true);
  } else if (type == "WhitespaceSplit") {
    out.add_classes(is_white_space, SplitBehavior::kRemoved);
  } else if (type == "BertPreTokenizer") {
    out.add_classes(is_white_space, SplitBehavior::kRemoved);
    out.add_classes(is_bert_punctuation, SplitBehavior::kIsolated);
  } else if (type == "CharDelimiterSplit") {
    out.add_split(Regex::literal(json_string(part, "delimiter")), SplitBehavior::kRemoved, false);
  } else {
    fail("tokenizer.json: the pre-tokenizer '{}' is not supported", printable(type));
  }
}

void read_decoder(const Json& part, Decoder& decoder) {
  if (part.is_null()) return decoder.add_join_with_spaces();
  const std::string type = type_of(part, "the decoder");
  if (type == "Sequence") {
    for (const Json& one : sequence(part, "decoders")) read_decoder(one, decoder);
  } else if (type == "ByteLevel") {
    decoder.add_byte_level();
  } else if (type == "Replace") {
    const auto [pattern, regex] = read_pattern(part);
    require(!regex, "tokenizer.json: a decoder that replaces by regex is not supported");
    decoder.add_replace(pattern, json_string(part, "content"));
  } else if (type == "ByteFallback") {
    decoder.add_byte_fallback();
  } else if (type == "Fuse") {
    decoder.add_fuse();
  } else if (type == "Strip") {
    const int64_t start = json_integer(part, "start"), stop = json_integer(part, "stop");
    require(start >= 0 && stop >= 0, "tokenizer.json: the decoder Strip has a negative count");
    const std::string content = json_string(part, "content");
    require(!content.empty(), "tokenizer.json: the decoder Strip must strip some character");
    decoder.add_strip(content, static_cast<size_t>(start), static_cast<size_t>(stop));
  } else if (type == "Metaspace") {
    decoder.add_metaspace(json_string(part, "replacement"),
                          read_prepend(part) != PreTokenizer::Prepend::kNever);
  } else {
    fail("tokenizer.json: the decoder '{}' is not supported", printable(type));
  }
}

void read_post_processor(const Json& part, TokenizerParts& parts) {
  if (part.is_null()) return;
  const std::string type = type_of(part, "the post-processor");
  std::vector<int32_t> before, after;
  if (type == "Sequence") {
    for (const Json& one : sequence(part, "processors")) read_post_processor(one, parts);
  } else if (type == "TemplateProcessing") {
    read_template(part, before, after);
  } else if (type == "BertProcessing" || type == "RobertaProcessing") {
    before = {named_id(part, "cls")};
    after = {named_id(part, "sep")};
  } else if (type != "ByteLevel") {  // ByteLevel only changes offsets
    fail("tokenizer.json: the post-processor '{}' is not supported", printable(type));
  }
  check_template(parts.before.size() + before.size(), parts.after.size() + after.size());
  parts.before.insert(parts.before.begin(), before.begin(), before.end());
  parts.after.insert(parts.after.end(), after.begin(), after.end());
}

AddedToken read_added_token(const Json& part, int64_t id) {
  require(id >= 0 && id < INT32_MAX, "tokenizer: an added token has the id {}", id);
  AddedToken token;
  token.id = static_cast<int32_t>(id);
  token.content = json_string(part, "content");
  token.special = json_bool(part, "special", false);
  token.single_word = json_bool(part, "single_word", false);
  token.lstrip = json_bool(part, "lstrip", false);
  token.rstrip = json_bool(part, "rstrip", false);
  token.normalized = json_bool(part, "normalized", !token.special);
  return token;
}

}  // namespace fathom
