#include "text/tokenizer_json.h"

#include <nlohmann/json.hpp>

#include "base/format.h"
#include "io/json_stream.h"

namespace fathom {
namespace {

using Json = nlohmann::json;

constexpr int kMaxDepth = 64;

class Reader {
 public:
  enum class Shape { kTokenizer, kTree, kVocab };

  Reader(Shape shape, const std::string& where, TokenizerJson& out)
      : shape_(shape), where_(where), out_(out) {}

  bool null() { return scalar(nullptr); }
  bool boolean(bool value) { return scalar(value); }
  bool binary(Json::binary_t&) { return bad("binary data"); }
  bool number_integer(int64_t value) { return number(value, static_cast<double>(value), true); }
  bool number_unsigned(uint64_t value) {
    const bool fits = value <= static_cast<uint64_t>(INT64_MAX);
    return number(fits ? static_cast<int64_t>(value) : INT64_MAX, static_cast<double>(value), true);
  }
  bool number_float(double value, const std::string&) { return number(0, value, false); }

  bool string(std::string& value) {
    switch (list_) {
      case List::kNone:
        add(std::move(value));
        return true;
      case List::kMerges:
        return merge(value);
      case List::kPieces:
        if (depth_ != list_depth_ + 1 || parts_ != 0) return bad("a list of [text, score]");
        out_.pieces.emplace_back(std::move(value), 0.0);
        ++parts_;
        return true;
      case List::kVocab:
        break;
    }
    return bad("an id");
  }

  bool key(std::string& value) {
    if (list_ == List::kVocab) {
      out_.vocab.emplace_back(std::move(value), -1);
      return true;
    }
    if (list_ != List::kNone) return bad("a list");
    if (depth_ == 1) in_model_ = value == "model";
    key_ = std::move(value);
    return true;
  }

  bool start_object(size_t) {
    enter();
    const bool vocab = (shape_ == Shape::kTokenizer && depth_ == 3 && in_model_ && key_ == "vocab") ||
                       (shape_ == Shape::kVocab && depth_ == 1);
    if (list_ == List::kNone && vocab) return begin(List::kVocab);
    if (list_ != List::kNone) return bad(list_ == List::kVocab ? "an id" : "a list");
    open_.push_back(&add(Json::object()));
    return true;
  }

  bool start_array(size_t) {
    enter();
    if (list_ == List::kNone && shape_ == Shape::kTokenizer && depth_ == 3 && in_model_ &&
        open_.back()->is_object()) {
      if (key_ == "vocab") return begin(List::kPieces);
      if (key_ == "merges") {
        out_.has_merges = true;
        return begin(List::kMerges);
      }
    }
    if (list_ == List::kNone) {
      open_.push_back(&add(Json::array()));
      return true;
    }
    if (list_ == List::kVocab || depth_ != list_depth_ + 1) return bad("a flat list");
    parts_ = 0;
    return true;
  }

  bool end_object() { return leave(); }

  bool end_array() {
    if (list_ != List::kNone && depth_ == list_depth_ + 1 && parts_ != 2) return bad("pairs");
    return leave();
  }

  bool parse_error(size_t position, const std::string&, const nlohmann::detail::exception& error) {
    fail("{}: not JSON at byte {}: {}", where_, position, printable(json_problem(error.what())));
  }

 private:
  enum class List { kNone, kVocab, kPieces, kMerges };

  [[noreturn]] bool bad(std::string_view expected) const {
    fail("{}: expected {} in '{}'", where_, expected, printable(list_ == List::kVocab ? "vocab" : key_));
  }

  void enter() {
    if (++depth_ > kMaxDepth) fail("{}: nested more than {} deep", where_, kMaxDepth);
  }

  bool begin(List list) {
    list_ = list;
    list_depth_ = depth_;
    return true;
  }

  bool leave() {
    if (list_ == List::kNone) {
      open_.pop_back();
    } else if (depth_ == list_depth_) {
      list_ = List::kNone;
    }
    --depth_;
    return true;
  }

  bool scalar(Json value) {
    if (list_ != List::kNone) return bad("texts and numbers");
    add(std::move(value));
    return true;
  }

  bool number(int64_t whole, double value, bool is_whole) {
    if (list_ == List::kVocab) {
      if (!is_whole) return bad("an id");
      out_.vocab.back().second = whole;
      return true;
    }
    if (list_ == List::kPieces) {
      if (depth_ != list_depth_ + 1 || parts_ != 1) return bad("a list of [text, score]");
      out_.pieces.back().second = value;
      ++parts_;
      return true;
    }
    return is_whole ? scalar(whole) : scalar(value);
  }

  bool merge(std::string& value) {
    if (depth_ == list_depth_ + 1) {  // ["a", "b"]
      if (parts_ == 0) {
        out_.merges.emplace_back(std::move(value), std::string());
      } else {
        out_.merges.back().second = std::move(value);
      }
      ++parts_;
      return true;
    }
    const size_t space = value.find(' ');
    const bool two = space != std::string::npos && value.find(' ', space + 1) == std::string::npos;
    if (!two) fail("{}: the merge '{}' is not two tokens with a space between", where_, printable(value));
    out_.merges.emplace_back(value.substr(0, space), value.substr(space + 1));
    return true;
  }

  Json& add(Json value) {
    if (open_.empty()) {
      *out_.rest = std::move(value);
      return *out_.rest;
    }
    Json& parent = *open_.back();
    if (parent.is_array()) {
      parent.push_back(std::move(value));
      return parent.back();
    }
    if (parent.contains(key_)) fail("{}: the key '{}' comes twice", where_, printable(key_));
    return parent[key_] = std::move(value);
  }

  const Shape shape_;
  const std::string& where_;
  TokenizerJson& out_;
  std::vector<Json*> open_;
  std::string key_;
  int depth_ = 0;
  bool in_model_ = false;
  List list_ = List::kNone;
  int list_depth_ = 0;
  int parts_ = 0;  // of the pair being read
};

TokenizerJson read(Reader::Shape shape, std::string_view text, const std::string& where) {
  TokenizerJson out;
  Reader reader(shape, where, out);
  Json::sax_parse(text.begin(), text.end(), &reader);
  return out;
}

}  // namespace

TokenizerJson::TokenizerJson() : rest(std::make_unique<Json>()) {}
TokenizerJson::~TokenizerJson() = default;
TokenizerJson::TokenizerJson(TokenizerJson&&) noexcept = default;

TokenizerJson read_tokenizer_json(std::string_view text, const std::string& where) {
  return read(Reader::Shape::kTokenizer, text, where);
}

std::unique_ptr<Json> read_json_tree(std::string_view text, const std::string& where) {
  return std::move(read(Reader::Shape::kTree, text, where).rest);
}

std::vector<std::pair<std::string, int64_t>> read_vocab_json(std::string_view text,
                                                             const std::string& where) {
  return std::move(read(Reader::Shape::kVocab, text, where).vocab);
}

}  // namespace fathom
