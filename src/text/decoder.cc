#include "text/decoder.h"

#include "text/bpe.h"
#include "text/byte_level.h"
#include "text/growth.h"
#include "text/normalizer.h"

namespace fathom {

namespace {

constexpr const char* kDecoder = "the decoder";

size_t total_bytes(const std::vector<std::string>& tokens) {
  size_t total = 0;
  for (const std::string& token : tokens) total += token.size();
  return total;
}

// `content` off the start of a token, at most `start` times, then off its end.
void strip(std::string& token, std::string_view content, size_t start, size_t stop) {
  std::string_view rest = token;
  for (size_t i = 0; i < start && rest.starts_with(content); ++i) rest.remove_prefix(content.size());
  for (size_t i = 0; i < stop && rest.ends_with(content); ++i) rest.remove_suffix(content.size());
  token = std::string(rest);
}

}  // namespace

void Decoder::add(Step step) {
  steps_.push_back(std::move(step));
  check_steps(steps_.size(), kDecoder);
}

void Decoder::add_byte_level() {
  add({Kind::kByteLevel, "", ""});
}
void Decoder::add_replace(std::string what, std::string with) {
  add({Kind::kReplace, std::move(what), std::move(with)});
}
void Decoder::add_byte_fallback() {
  add({Kind::kByteFallback, "", ""});
}
void Decoder::add_fuse() {
  add({Kind::kFuse, "", ""});
}
void Decoder::add_strip(std::string content, size_t start, size_t stop) {
  add({Kind::kStrip, std::move(content), "", start, stop});
}
void Decoder::add_metaspace(std::string replacement, bool strip_first) {
  add({Kind::kMetaspace, std::move(replacement), "", 0, 0, strip_first});
}
void Decoder::add_sentencepiece(bool strip_first, bool all_leading) {
  add({Kind::kSentencePiece, "\u2581", " ", 0, 0, strip_first, all_leading});
}
void Decoder::add_join_with_spaces() {
  add({Kind::kJoinWithSpaces, "", ""});
}

void Decoder::apply_to_token(const Step& step, std::string& token, bool first, size_t most) {
  switch (step.kind) {
    case Kind::kByteLevel: {
      std::string bytes;
      if (from_byte_level(token, &bytes)) token = bytes;
      break;
    }
    case Kind::kReplace:
      token = replace_all(token, step.what, step.with, most, kDecoder);
      break;
    case Kind::kByteFallback:
      if (const int byte = byte_of_token(token); byte >= 0) token.assign(1, static_cast<char>(byte));
      break;
    case Kind::kStrip:
      strip(token, step.what, step.start, step.stop);
      break;
    case Kind::kMetaspace:
      token = replace_all(token, step.what, first && step.first ? "" : " ", most, kDecoder);
      break;
    case Kind::kSentencePiece:
      if (first && step.first && token.starts_with(step.what)) token.erase(0, step.what.size());
      token = replace_all(token, step.what, step.with, most, kDecoder);
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
  const size_t most = most_bytes(total_bytes(tokens) + tokens.size(), kDecoderGrowth);
  for (const Step& step : steps_) {
    bool first = true;
    size_t total = 0;
    for (std::string& token : tokens) {
      apply_to_token(step, token, first, most);
      total += token.size();
      check_growth(total, most, kDecoder);
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
  const size_t most = most_bytes(token.size(), kDecoderGrowth);
  bool fused = false;
  for (const Step& step : steps_) {
    fused = fused || step.kind == Kind::kFuse;
    if (fused && step.kind == Kind::kStrip) continue;
    apply_to_token(step, token, false, most);
  }
  return token;
}

}  // namespace fathom
