#include "text/decoder.h"

#include "text/bpe.h"
#include "text/byte_level.h"
#include "text/normalizer.h"

namespace fathom {

void Decoder::add_byte_level() {
  steps_.push_back({Kind::kByteLevel, "", ""});
}
void Decoder::add_replace(std::string what, std::string with) {
  steps_.push_back({Kind::kReplace, std::move(what), std::move(with)});
}
void Decoder::add_byte_fallback() {
  steps_.push_back({Kind::kByteFallback, "", ""});
}
void Decoder::add_fuse() {
  steps_.push_back({Kind::kFuse, "", ""});
}
void Decoder::add_strip(std::string content, size_t start, size_t stop) {
  steps_.push_back({Kind::kStrip, std::move(content), "", start, stop});
}
void Decoder::add_metaspace(std::string replacement, bool strip_first) {
  steps_.push_back({Kind::kMetaspace, std::move(replacement), "", 0, 0, strip_first});
}
void Decoder::add_sentencepiece(bool strip_first, bool all_leading) {
  steps_.push_back({Kind::kSentencePiece, "\u2581", " ", 0, 0, strip_first, all_leading});
}
void Decoder::add_join_with_spaces() {
  steps_.push_back({Kind::kJoinWithSpaces, "", ""});
}

void Decoder::apply_to_token(const Step& step, std::string& token, bool first) {
  switch (step.kind) {
    case Kind::kByteLevel: {
      std::string bytes;
      if (from_byte_level(token, &bytes)) token = bytes;
      break;
    }
    case Kind::kReplace:
      token = replace_all(token, step.what, step.with);
      break;
    case Kind::kByteFallback:
      if (const int byte = byte_of_token(token); byte >= 0) token.assign(1, static_cast<char>(byte));
      break;
    case Kind::kStrip: {
      for (size_t i = 0; i < step.start && token.starts_with(step.what); ++i)
        token.erase(0, step.what.size());
      for (size_t i = 0; i < step.stop && token.ends_with(step.what); ++i)
        token.resize(token.size() - step.what.size());
      break;
    }
    case Kind::kMetaspace:
      token = replace_all(token, step.what, first && step.first ? "" : " ");
      break;
    case Kind::kSentencePiece:
      if (first && step.first && token.starts_with(step.what)) token.erase(0, step.what.size());
      token = replace_all(token, step.what, step.with);
      break;
    case Kind::kFuse:
    case Kind::kJoinWithSpaces:
      break;
  }
}

std::string Decoder::decode(std::vector<std::string> tokens) const {
  const auto join = [&](std::string_view between) {
    std::string all;
    for (size_t i = 0; i < tokens.size(); ++i) {
      if (i > 0) all += between;
      all += tokens[i];
    }
    tokens.clear();
    tokens.push_back(std::move(all));
  };
  for (const Step& step : steps_) {
    bool first = true;
    for (std::string& token : tokens) {
      apply_to_token(step, token, first);
      const bool looks_on = step.kind == Kind::kSentencePiece && step.all_leading && token.empty();
      if (!looks_on) first = false;
    }
    if (step.kind == Kind::kFuse || step.kind == Kind::kByteLevel) join("");
    if (step.kind == Kind::kJoinWithSpaces) join(" ");
  }
  join("");
  return std::move(tokens[0]);
}

std::string Decoder::piece(std::string token) const {
  bool fused = false;
  for (const Step& step : steps_) {
    fused = fused || step.kind == Kind::kFuse;
    if (fused && step.kind == Kind::kStrip) continue;
    apply_to_token(step, token, false);
  }
  return token;
}

}  // namespace fathom
