#include "text/pipeline_tokenizer.h"

#include <algorithm>
#include <utility>

#include "base/format.h"
#include "text/byte_level.h"
#include "text/unicode.h"

namespace fathom {

namespace {

// with_stand_ins(text); `ranges` of the text become those of the result.
std::string with_stand_ins_in(std::string_view text, std::vector<TextRange>& ranges) {
  std::string out;
  size_t done = 0;
  for (TextRange& range : ranges) {
    out += with_stand_ins(text.substr(done, range.begin - done));
    const size_t begin = out.size();
    out += with_stand_ins(text.substr(range.begin, range.end - range.begin));
    done = range.end;
    range = {begin, out.size()};
  }
  return out + with_stand_ins(text.substr(done));
}

// The parts of `ranges` in [begin, begin + size), counted from `begin`.
std::vector<TextRange> ranges_within(std::span<const TextRange> ranges, size_t begin, size_t size) {
  std::vector<TextRange> out;
  for (const TextRange& range : ranges) {
    const size_t from = std::max(range.begin, begin), to = std::min(range.end, begin + size);
    if (from < to) out.push_back({from - begin, to - begin});
  }
  return out;
}

}  // namespace

PipelineTokenizer::PipelineTokenizer(TokenizerParts parts) : parts_(std::move(parts)) {
  parts_.added.prepare(parts_.normalizer);
}

std::vector<int32_t> PipelineTokenizer::encode(std::string_view text, EncodeOptions options) const {
  ModelScratch scratch;
  std::string changed;
  std::vector<TextRange> literal = ranges_within(options.literal, 0, text.size());
  if (!is_valid_utf8(text)) {
    changed = with_stand_ins_in(text, literal);
    text = changed;
    scratch.stand_ins = true;
  }
  options.literal = literal;
  std::vector<int32_t> out;
  out.reserve(text.size() / 3 + 8);
  if (options.add_special) out = parts_.before;
  std::vector<Segment> segments;
  parts_.added.split(text, false, options, segments);
  for (const Segment& segment : segments) {
    if (segment.id >= 0) {
      out.push_back(segment.id);
      continue;
    }
    const auto begin = static_cast<size_t>(segment.text.data() - text.data());
    const std::vector<TextRange> inside = ranges_within(literal, begin, segment.text.size());
    options.literal = inside;
    encode_segment(segment.text, begin == 0, options, scratch, out);
  }
  if (options.add_special) out.insert(out.end(), parts_.after.begin(), parts_.after.end());
  return out;
}

void PipelineTokenizer::encode_segment(std::string_view text, bool at_start, const EncodeOptions& options,
                                       ModelScratch& scratch, std::vector<int32_t>& out) const {
  if (parts_.normalizer.empty()) return encode_normalized(text, at_start, options, scratch, out);
  const auto normalized = [&](size_t size) {
    return parts_.normalizer.apply(std::string(text.substr(0, size)));
  };
  std::vector<TextRange> literal;
  if (parts_.added.any(true)) {
    for (const TextRange& range : options.literal)
      literal.push_back({normalized(range.begin).size(), normalized(range.end).size()});
  }
  EncodeOptions moved = options;
  moved.literal = literal;
  encode_normalized(normalized(text.size()), at_start, moved, scratch, out);
}

void PipelineTokenizer::encode_normalized(std::string_view text, bool at_start, const EncodeOptions& options,
                                          ModelScratch& scratch, std::vector<int32_t>& out) const {
  if (!parts_.added.any(true)) return encode_pieces(text, at_start, scratch, out);
  std::vector<Segment> segments;
  parts_.added.split(text, true, options, segments);
  for (const Segment& segment : segments) {
    if (segment.id >= 0) {
      out.push_back(segment.id);
    } else {
      encode_pieces(segment.text, at_start && segment.text.data() == text.data(), scratch, out);
    }
  }
}

void PipelineTokenizer::encode_pieces(std::string_view text, bool at_start, ModelScratch& scratch,
                                      std::vector<int32_t>& out) const {
  Pieces pieces;
  pieces.text = text;
  pieces.at_start = at_start;
  pieces.stand_ins = scratch.stand_ins;
  parts_.pre_tokenizer.run(pieces);
  const bool stand_ins = std::exchange(scratch.stand_ins, pieces.stand_ins);
  for (const TextSpan& piece : pieces.spans) {
    parts_.model->encode(pieces.text.substr(piece.begin, piece.end - piece.begin), scratch, out);
  }
  scratch.stand_ins = stand_ins;
}

std::string PipelineTokenizer::token(int32_t id) const {
  if (const AddedToken* added = parts_.added.find(id)) return added->content;
  if (const auto unspelt = parts_.unspelt.find(id); unspelt != parts_.unspelt.end()) return unspelt->second;
  const std::string_view text = parts_.model->vocabulary().text(id);
  return parts_.byte_level ? to_byte_level(text) : std::string(text);
}

bool PipelineTokenizer::is_special(int32_t id) const {
  const AddedToken* added = parts_.added.find(id);
  return added != nullptr && added->special;
}

std::string PipelineTokenizer::piece(int32_t id, bool show_special) const {
  if (!show_special && is_special(id)) return {};
  if (const auto shown = parts_.shown_as.find(id); shown != parts_.shown_as.end()) return shown->second;
  return parts_.decoder.piece(token(id));
}

std::string PipelineTokenizer::decode(const std::vector<int32_t>& ids, bool show_special) const {
  std::vector<std::string> tokens;
  tokens.reserve(ids.size());
  for (const int32_t id : ids) {
    require(id >= 0 && id < vocab_size(), "tokenizer: there is no token {}: ids go from 0 to {}", id,
            vocab_size() - 1);
    if (!show_special && is_special(id)) continue;
    const auto shown = parts_.shown_as.find(id);
    tokens.push_back(shown != parts_.shown_as.end() ? shown->second : token(id));
  }
  return parts_.decoder.decode(std::move(tokens));
}

int32_t PipelineTokenizer::vocab_size() const {
  const int32_t unspelt = parts_.unspelt.empty() ? 0 : parts_.unspelt.rbegin()->first + 1;
  return std::max({parts_.model->vocabulary().size(), parts_.added.size(), unspelt});
}

int32_t PipelineTokenizer::id_of(std::string_view token) const {
  if (const AddedToken* added = parts_.added.find(token)) return added->id;
  for (const auto& [id, text] : parts_.unspelt) {
    if (text == token) return id;
  }
  if (!parts_.byte_level) return parts_.model->vocabulary().find(token);
  std::string bytes;
  return from_byte_level(token, &bytes) ? parts_.model->vocabulary().find(bytes) : -1;
}

bool PipelineTokenizer::adds_bos() const {
  return parts_.bos >= 0 && !parts_.before.empty() && parts_.before.front() == parts_.bos;
}

bool PipelineTokenizer::adds_eos() const {
  return parts_.eos >= 0 && !parts_.after.empty() && parts_.after.back() == parts_.eos;
}

}  // namespace fathom
