// Text to ids and back. One interface, whatever file the vocabulary came from.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace fathom {

class GgufFile;

struct TextRange {
  size_t begin = 0, end = 0;  // bytes
};

struct EncodeOptions {
  bool add_special = true;    // BOS/EOS as the tokenizer's own rule says
  bool parse_special = true;  // special tokens written in the text ("<|im_start|>") become their ids
  // Used with parse_special: parts of the text, ascending, in which special tokens stay text. There the added
  // tokens `marks`, which the vocabulary does not call special, stay text too.
  std::span<const TextRange> literal = {};
  std::span<const int32_t> marks = {};
};

class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  virtual std::vector<int32_t> encode(std::string_view text, EncodeOptions options = {}) const = 0;

  // The bytes of one token as it stands inside a text ("" for special tokens unless `show_special`). Bytes of
  // one character may be spread over several tokens. Does not strip a leading space: decode() does that.
  virtual std::string piece(int32_t id, bool show_special = false) const = 0;

  // The text of `ids`, with the tokenizer's own clean-up (a SentencePiece dummy space at the start is
  // removed).
  virtual std::string decode(const std::vector<int32_t>& ids, bool show_special = false) const = 0;

  virtual int32_t vocab_size() const = 0;                   // largest id + 1
  virtual int32_t id_of(std::string_view token) const = 0;  // by its written form; -1: none
  virtual std::string token(int32_t id) const = 0;          // the written form, as the vocabulary spells it
  virtual bool is_special(int32_t id) const = 0;

  virtual int32_t bos() const = 0;  // -1: none
  virtual int32_t eos() const = 0;
  virtual bool adds_bos() const = 0;
  virtual bool adds_eos() const = 0;
  virtual std::string kind() const = 0;  // "HF byte-level BPE", "SentencePiece unigram", …
  virtual int32_t pad() const { return -1; }

  // The file's chat template (Jinja text) or "".
  const std::string& chat_template() const { return chat_template_; }
  void set_chat_template(std::string text) { chat_template_ = std::move(text); }

 private:
  std::string chat_template_;
};

// A folder with tokenizer.json, tokenizer.model or vocab.json + merges.txt (and tokenizer_config.json
// beside), or one such file: tokenizer.json, SentencePiece or tiktoken tokenizer.model, .gguf, llama2.c
// tokenizer .bin (`vocab_size` is not in that file: pass the model's, or -1 to read to its end).
std::shared_ptr<const Tokenizer> load_tokenizer(const std::string& path, int64_t vocab_size = -1);
std::shared_ptr<const Tokenizer> tokenizer_from_gguf(const GgufFile& file);

}  // namespace fathom
