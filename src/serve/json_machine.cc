#include "serve/json_machine.h"

#include <algorithm>
#include <array>

namespace fathom {
namespace {

constexpr uint32_t kNone = JsonGrammar::kNone;

// Where a text inside a string stands.
enum Inside : uint8_t {
  kBetween,  // two characters
  kEscape,   // behind a backslash
  kHex4,     // behind \u
  kHex3,     // three digits are missing
  kHex2,
  kHex1,
  kHexD,   // behind \uD: the next digit says whether it is a pair
  kHigh2,  // the first half of a pair: two digits are missing
  kHigh1,
  kLow,  // its backslash
  kLowU,
  kLowD,
  kLowDigit,
  kTail1,  // bytes of UTF-8: one is missing
  kTail2,
  kTail3,
  kAfterE0,
  kAfterED,
  kAfterF0,
  kAfterF4,
  kInsideStates,
  kWrong = 255,
};

using InsideTable = std::array<std::array<uint8_t, 256>, kInsideStates>;

void set(InsideTable& table, Inside from, int lowest, int highest, Inside to) {
  for (int byte = lowest; byte <= highest; ++byte) table[from][static_cast<size_t>(byte)] = to;
}

void set_hex(InsideTable& table, Inside from, Inside to) {
  set(table, from, '0', '9', to);
  set(table, from, 'a', 'f', to);
  set(table, from, 'A', 'F', to);
}

void set_utf8(InsideTable& table) {
  set(table, kBetween, 0xC2, 0xDF, kTail1);
  set(table, kBetween, 0xE1, 0xEF, kTail2);
  set(table, kBetween, 0xE0, 0xE0, kAfterE0);
  set(table, kBetween, 0xED, 0xED, kAfterED);
  set(table, kBetween, 0xF1, 0xF3, kTail3);
  set(table, kBetween, 0xF0, 0xF0, kAfterF0);
  set(table, kBetween, 0xF4, 0xF4, kAfterF4);
  set(table, kTail1, 0x80, 0xBF, kBetween);
  set(table, kTail2, 0x80, 0xBF, kTail1);
  set(table, kTail3, 0x80, 0xBF, kTail2);
  set(table, kAfterE0, 0xA0, 0xBF, kTail1);
  set(table, kAfterED, 0x80, 0x9F, kTail1);
  set(table, kAfterF0, 0x90, 0xBF, kTail2);
  set(table, kAfterF4, 0x80, 0x8F, kTail2);
}

void set_escapes(InsideTable& table) {
  for (const char c : {'"', '\\', '/', 'b', 'f', 'n', 'r', 't'}) set(table, kEscape, c, c, kBetween);
  set(table, kBetween, '\\', '\\', kEscape);
  set(table, kEscape, 'u', 'u', kHex4);
  set_hex(table, kHex4, kHex3);
  for (const char c : {'d', 'D'}) set(table, kHex4, c, c, kHexD);
  set_hex(table, kHex3, kHex2);
  set_hex(table, kHex2, kHex1);
  set_hex(table, kHex1, kBetween);
  set(table, kHexD, '0', '7', kHex2);
  set_hex(table, kHigh2, kHigh1);
  set_hex(table, kHigh1, kLow);
  set(table, kHexD, '8', '9', kHigh2);
  set(table, kLow, '\\', '\\', kLowU);
  set(table, kLowU, 'u', 'u', kLowD);
  for (const int lower : {0, 0x20}) {
    set(table, kHexD, 'A' + lower, 'B' + lower, kHigh2);
    set(table, kLowD, 'D' + lower, 'D' + lower, kLowDigit);
    set(table, kLowDigit, 'C' + lower, 'F' + lower, kHex2);
  }
}

const InsideTable kInside = [] {
  InsideTable table;
  for (auto& row : table) row.fill(kWrong);
  set(table, kBetween, 0x20, 0x7F, kBetween);
  table[kBetween]['"'] = kWrong;  // the end: its own case
  set_escapes(table);
  set_utf8(table);
  return table;
}();

}  // namespace

JsonMachine::JsonMachine(std::shared_ptr<const JsonGrammar> grammar)
    : grammar_(std::move(grammar)), ways_{0}, frames_(2), keys_(1) {
  frames_[1].phase = kDone;
}

std::span<const uint32_t> JsonMachine::ways() const {
  return std::span(ways_).subspan(levels_.empty() ? 0 : levels_.back().ways);
}

bool JsonMachine::step(uint8_t byte) {
  const size_t begin = levels_.empty() ? 0 : levels_.back().ways;
  const Level level{ways_.size(), frames_.size(), keys_.size()};
  text_.push_back(static_cast<char>(byte));
  levels_.push_back(level);
  const size_t end = tries_ < most_tries_ ? level.ways : begin + 1;
  for (size_t i = begin; i < end; ++i) advance(ways_[i], byte);
  if (ways_.size() > level.ways) return true;
  back(1);
  return false;
}

void JsonMachine::back(size_t bytes) {
  if (bytes == 0) return;
  const Level level = levels_[levels_.size() - bytes];
  ways_.resize(level.ways);
  frames_.resize(level.frames);
  keys_.resize(level.keys);
  levels_.resize(levels_.size() - bytes);
  text_.resize(text_.size() - bytes);
}

bool JsonMachine::complete() const {
  const auto ends = [&](uint32_t top) {
    const Frame& frame = frames_[top];
    if (frame.part == kNone) return frame.phase == kDone;
    const Part& part = part_of(frame);
    return frame.parent == 1 && part.kind == JsonGrammar::Kind::kDfa && part.dfa.accepts(frame.count);
  };
  return std::any_of(ways().begin(), ways().end(), ends);
}

// Whether a value fits into the depth.
bool JsonMachine::fits(ValueId value, const Frame& around) const {
  return value != kNone && around.depth + grammar_->values[value].height <= JsonGrammar::kMostDepth;
}

// Two stacks of frames that can go on alike.
bool JsonMachine::same(uint32_t a, uint32_t b) const {
  while (a != b) {
    const Frame &x = frames_[a], &y = frames_[b];
    if (x.part != y.part || x.phase != y.phase || x.inside != y.inside || x.depth != y.depth ||
        x.count != y.count || x.which != y.which || x.place != y.place || x.used != y.used)
      return false;
    a = x.parent;
    b = y.parent;
  }
  return true;
}

void JsonMachine::add_way(uint32_t top) {
  const size_t begin = levels_.back().ways;
  if (ways_.size() - begin == kMostWays) return;
  for (size_t i = begin; i < ways_.size(); ++i) {
    if (same(ways_[i], top)) return;
  }
  ways_.push_back(top);
}

void JsonMachine::add_frame(const Frame& frame) {
  frames_.push_back(frame);
  add_way(static_cast<uint32_t>(frames_.size() - 1));
}

void JsonMachine::advance(uint32_t top, uint8_t byte) {
  ++tries_;
  const Frame frame = frames_[top];
  if (frame.part == kNone) {
    if (frame.phase == kDone) return;
    for (const PartId part : grammar_->values[grammar_->root].parts) begin_part(part, 1, byte);
    return;
  }
  switch (part_of(frame).kind) {
    case JsonGrammar::Kind::kDfa:
      return advance_dfa(frame, byte);
    case JsonGrammar::Kind::kString:
      return advance_string(top, byte);
    case JsonGrammar::Kind::kArray:
      return advance_array(frame, byte);
    case JsonGrammar::Kind::kObject:
      return advance_object(frame, byte);
  }
}

void JsonMachine::begin_value(ValueId value, const Frame& after, uint8_t byte) {
  frames_.push_back(after);
  const auto parent = static_cast<uint32_t>(frames_.size() - 1);
  for (const PartId part : grammar_->values[value].parts) begin_part(part, parent, byte);
}

void JsonMachine::begin_part(PartId id, uint32_t parent, uint8_t byte) {
  ++tries_;
  const Part& part = grammar_->parts[id];
  const int depth = frames_[parent].depth;
  if (depth + part.height > JsonGrammar::kMostDepth) return;
  if (part.kind == JsonGrammar::Kind::kDfa) {
    const int32_t state = part.dfa.next(0, byte);
    if (state >= 0) add_dfa(id, parent, static_cast<uint32_t>(state));
    return;
  }
  const uint8_t opens = part.kind == JsonGrammar::Kind::kString   ? '"'
                        : part.kind == JsonGrammar::Kind::kObject ? '{'
                                                                  : '[';
  if (byte != opens) return;
  Frame frame;
  frame.parent = parent;
  frame.part = id;
  frame.depth = static_cast<uint16_t>(depth + 1);
  add_frame(frame);
}

void JsonMachine::add_dfa(PartId id, uint32_t parent, uint32_t state) {
  if (grammar_->parts[id].dfa.ends(state)) return add_way(parent);
  Frame frame;
  frame.parent = parent;
  frame.part = id;
  frame.depth = static_cast<uint16_t>(frames_[parent].depth + 1);
  frame.count = state;
  add_frame(frame);
}

// A number has no end but what follows it.
void JsonMachine::advance_dfa(const Frame& frame, uint8_t byte) {
  const ByteDfa& dfa = part_of(frame).dfa;
  const int32_t state = dfa.next(frame.count, byte);
  if (state >= 0) return add_dfa(frame.part, frame.parent, static_cast<uint32_t>(state));
  if (dfa.accepts(frame.count)) advance(frame.parent, byte);
}

void JsonMachine::advance_string(uint32_t top, uint8_t byte) {
  Frame frame = frames_[top];
  const Part& part = part_of(frame);
  if (frame.inside == kBetween) {
    if (byte == '"') {
      if (frame.count >= part.least) add_way(frame.parent);
      return;
    }
    if (frame.count == part.most) return;
  }
  const uint8_t inside = kInside[frame.inside][byte];
  if (inside == kWrong) return;
  const uint32_t count = frame.count;
  if (inside == kBetween && (part.most != JsonGrammar::kUnbounded || count < part.least)) ++frame.count;
  if (inside == frame.inside && count == frame.count) return add_way(top);
  frame.inside = inside;
  add_frame(frame);
}

bool JsonMachine::more_items(const Frame& frame) const {
  const Part& part = part_of(frame);
  if (frame.count >= part.most) return false;
  return fits(frame.count < part.prefix.size() ? part.prefix[frame.count] : part.items, frame);
}

void JsonMachine::begin_item(const Frame& frame, uint8_t byte) {
  const Part& part = part_of(frame);
  if (!more_items(frame)) return;
  Frame after = frame;
  after.phase = kAfter;
  const uint32_t told = std::max(part.least, static_cast<uint32_t>(part.prefix.size()));
  if (part.most != JsonGrammar::kUnbounded || frame.count < told) ++after.count;
  begin_value(frame.count < part.prefix.size() ? part.prefix[frame.count] : part.items, after, byte);
}

void JsonMachine::advance_array(const Frame& frame, uint8_t byte) {
  const Part& part = part_of(frame);
  Frame next = frame;
  switch (frame.phase) {
    case kFirst:
    case kAfter:
      if (byte == ']') {
        if (frame.count >= part.least) add_way(frame.parent);
      } else if (frame.phase == kFirst) {
        begin_item(frame, byte);
      } else if (byte == ',' && more_items(frame)) {
        next.phase = kComma;
        add_frame(next);
      }
      return;
    case kComma:
      if (byte == ' ') {
        next.phase = kCommaSpace;
        return add_frame(next);
      }
      return begin_item(frame, byte);
    default:
      return begin_item(frame, byte);
  }
}

void JsonMachine::advance_object(const Frame& frame, uint8_t byte) {
  const Part& part = part_of(frame);
  Frame next = frame;
  const auto go = [&](Phase phase) {
    next.phase = phase;
    add_frame(next);
  };
  switch (frame.phase) {
    case kFirst:
    case kAfter:
      if (byte == '}' && part.required_from[frame.count] == part.properties.size())
        return add_way(frame.parent);
      if (frame.phase == kFirst && byte == '"') return begin_key(frame);
      if (frame.phase == kAfter && byte == ',' && more_keys(frame)) go(kComma);
      return;
    case kDeclared:
      return advance_declared(frame, byte);
    case kFree:
      return advance_free(frame, byte);
    case kColon:
      if (byte == ':') go(kColonSpace);
      return;
    case kColonSpace:
      if (byte == ' ') return go(kValue);
      [[fallthrough]];
    case kValue:
      next.phase = kAfter;
      next.which = 0;
      return begin_value(frame.which, next, byte);
    case kComma:
      if (byte == ' ') return go(kCommaSpace);
      [[fallthrough]];
    default:
      if (byte == '"') begin_key(frame);
  }
}

// Whether a declared property that has not been passed may be the next one.
bool JsonMachine::may_come(const Frame& frame, uint32_t property) const {
  const Part& part = part_of(frame);
  return property >= frame.count && property <= part.required_from[frame.count] &&
         fits(part.properties[property].value, frame);
}

bool JsonMachine::any_declared(const Frame& frame) {
  const Part& part = part_of(frame);
  const auto end =
      std::min(part.required_from[frame.count] + 1, static_cast<uint32_t>(part.properties.size()));
  uint32_t i = frame.count;
  while (i < end && !may_come(frame, i)) ++i;
  tries_ += (i - frame.count) / kLooks;
  return i < end;
}

// The same for a part of those that are sorted by key.
bool JsonMachine::any_between(const Frame& frame, uint32_t first, uint32_t until) {
  const std::vector<uint32_t>& by_key = part_of(frame).by_key;
  uint32_t i = first;
  while (i < until && !may_come(frame, by_key[i])) ++i;
  tries_ += (i - first) / kLooks;
  return i < until;
}

bool JsonMachine::more_keys(const Frame& frame) {
  const Part& part = part_of(frame);
  if (any_declared(frame)) return true;
  return part.required_from[frame.count] == part.properties.size() && fits(part.additional, frame);
}

void JsonMachine::begin_key(const Frame& frame) {
  const Part& part = part_of(frame);
  Frame next = frame;
  if (any_declared(frame)) {
    next.phase = kDeclared;
    next.which = 0;
    next.until = static_cast<uint32_t>(part.by_key.size());
    next.place = 0;
    add_frame(next);
  }
  if (part.required_from[frame.count] != part.properties.size() || !fits(part.additional, frame)) return;
  next.phase = kFree;
  next.inside = kBetween;
  next.which = next.until = 0;
  next.place = static_cast<uint32_t>(text_.size());
  next.count = static_cast<uint32_t>(part.properties.size());
  add_frame(next);
}

// The keys that begin as this one does stand together in by_key, and are sorted by the byte that follows. No
// key is the beginning of another one: each ends with its quote.
void JsonMachine::advance_declared(const Frame& frame, uint8_t byte) {
  const Part& part = part_of(frame);
  const auto at = [&](uint32_t property) {
    return static_cast<uint8_t>(part.properties[property].key[frame.place]);
  };
  const auto begin = part.by_key.begin();
  const auto first = std::partition_point(begin + frame.which, begin + frame.until,
                                          [&](uint32_t property) { return at(property) < byte; });
  const auto until = std::partition_point(first, begin + frame.until,
                                          [&](uint32_t property) { return at(property) == byte; });
  Frame next = frame;
  next.which = static_cast<uint32_t>(first - begin);
  next.until = static_cast<uint32_t>(until - begin);
  next.place = frame.place + 1;
  if (!any_between(frame, next.which, next.until)) return;
  const JsonGrammar::Property& property = part.properties[*first];
  if (next.place == property.key.size()) {
    next.phase = kColon;
    next.count = *first + 1;
    next.which = property.value;
    next.until = next.place = 0;
  }
  add_frame(next);
}

bool JsonMachine::taken(const Frame& frame, std::string_view name) {
  const std::vector<std::string>& reserved = part_of(frame).reserved;
  if (std::binary_search(reserved.begin(), reserved.end(), name)) return true;
  size_t looks = 0;
  bool found = false;
  for (uint32_t i = frame.used; i != 0 && !found; i = keys_[i].before, ++looks)
    found = std::string_view(text_).substr(keys_[i].begin, keys_[i].size) == name;
  tries_ += looks / kLooks;
  return found;
}

// Without escapes a name has one spelling.
void JsonMachine::advance_free(const Frame& frame, uint8_t byte) {
  Frame next = frame;
  if (frame.inside == kBetween && byte == '"') {
    const auto size = static_cast<uint32_t>(text_.size()) - 1 - frame.place;
    if (taken(frame, std::string_view(text_).substr(frame.place, size))) return;
    keys_.push_back({frame.used, frame.place, size});
    next.phase = kColon;
    next.which = part_of(frame).additional;
    next.place = 0;
    next.used = static_cast<uint32_t>(keys_.size() - 1);
    return add_frame(next);
  }
  next.inside = byte == '\\' ? uint8_t{kWrong} : kInside[frame.inside][byte];
  if (next.inside != kWrong) add_frame(next);
}

uint32_t JsonMachine::room_of(const Frame& frame) const {
  if (frame.part == kNone || frame.inside != kBetween) return 0;
  const Part& part = part_of(frame);
  if (part.kind == JsonGrammar::Kind::kObject) return frame.phase == kFree ? JsonGrammar::kUnbounded : 0;
  if (part.kind != JsonGrammar::Kind::kString) return 0;
  return part.most == JsonGrammar::kUnbounded ? part.most : part.most - frame.count;
}

// Every way is inside a string when one is. Those inside a pattern or a declared key know better.
uint32_t JsonMachine::plain_room() const {
  uint32_t room = 0;
  bool all = true;
  for (const uint32_t top : ways()) {
    const uint32_t here = room_of(frames_[top]);
    all &= here > 0;
    room = std::max(room, here);
  }
  return all || room == JsonGrammar::kUnbounded ? room : 0;
}

void JsonMachine::sign(const Frame& frame, std::string& out) const {
  const auto put = [&](uint32_t value) { out.append(reinterpret_cast<const char*>(&value), sizeof value); };
  put(frame.part);
  put(static_cast<uint32_t>(frame.phase) | uint32_t{frame.inside} << 8 | uint32_t{frame.depth} << 16);
  put(frame.count);
  put(frame.which);
  if (frame.phase == kFree) {
    out += std::string_view(text_).substr(frame.place);
    out.push_back('"');
  } else {
    put(frame.place);
  }
  for (uint32_t i = frame.used; i != 0; i = keys_[i].before) {
    out += std::string_view(text_).substr(keys_[i].begin, keys_[i].size);
    out.push_back('"');
  }
  out.push_back('"');
}

void JsonMachine::signature(std::string& out) const {
  out.clear();
  for (const uint32_t top : ways()) {
    out.push_back(static_cast<char>(frames_[top].depth));
    out.push_back(static_cast<char>(frames_[top].phase));
    for (uint32_t i = top; frames_[i].part != kNone; i = frames_[i].parent) sign(frames_[i], out);
  }
}

}  // namespace fathom
