// load_tokenizer(): which kind of file a path is.
#include <filesystem>

#include "base/format.h"
#include "base/mapped_file.h"
#include "io/gguf.h"
#include "text/hf_tokenizer.h"
#include "text/llama2c_tokenizer.h"
#include "text/sentencepiece.h"
#include "text/tiktoken.h"
#include "text/tokenizer.h"

namespace fathom {
namespace {

namespace fs = std::filesystem;

bool is_file(const fs::path& path) {
  std::error_code ignored;
  return fs::is_regular_file(path, ignored);
}

std::string text_or_nothing(const fs::path& path) {
  return is_file(path) ? read_text_file(path.string()) : std::string();
}

HfConfigText config_in(const fs::path& folder) {
  return {text_or_nothing(folder / "tokenizer_config.json"), text_or_nothing(folder / "chat_template.jinja")};
}

std::shared_ptr<const Tokenizer> load_model_file(const fs::path& path) {
  const std::string where = path.string();
  const std::string bytes = read_text_file(where);
  if (!is_tiktoken(bytes)) return sentencepiece_tokenizer(bytes, config_in(path.parent_path()), where);
  // The file does not say how words are cut: that is known for Llama-3 alone, which is told by its size.
  constexpr int32_t kLlama3Ranks = 128000;
  const TiktokenRules rules = llama3_rules();
  auto tokenizer = tiktoken_tokenizer(bytes, rules, where);
  const auto ranks = tokenizer->vocab_size() - static_cast<int32_t>(rules.special.size());
  require(ranks == kLlama3Ranks, "{}: a tiktoken file of {} ranks: only Llama-3's, with {}, is supported",
          where, ranks, kLlama3Ranks);
  return tokenizer;
}

std::shared_ptr<const Tokenizer> load_folder(const fs::path& folder) {
  if (is_file(folder / "tokenizer.json")) return load_tokenizer((folder / "tokenizer.json").string());
  if (is_file(folder / "tokenizer.model")) return load_model_file(folder / "tokenizer.model");
  if (is_file(folder / "vocab.json") && is_file(folder / "merges.txt")) {
    return gpt2_tokenizer(read_text_file((folder / "vocab.json").string()),
                          read_text_file((folder / "merges.txt").string()), config_in(folder),
                          folder.string());
  }
  fail("{}: no tokenizer here: expected tokenizer.json, tokenizer.model, or vocab.json with merges.txt",
       folder.string());
}

}  // namespace

std::shared_ptr<const Tokenizer> load_tokenizer(const std::string& path, int64_t vocab_size) {
  std::error_code ignored;
  if (fs::is_directory(path, ignored)) return load_folder(path);
  const fs::path file(path);
  const std::string extension = file.extension().string();
  if (extension == ".json") {
    if (file.filename() == "vocab.json" && !is_file(file.parent_path() / "tokenizer.json"))
      return load_folder(file.parent_path());
    return hf_tokenizer(read_text_file(path), config_in(file.parent_path()), path);
  }
  if (extension == ".gguf") return tokenizer_from_gguf(*GgufFile::open(path));
  if (extension == ".bin") return llama2c_tokenizer(read_text_file(path), vocab_size, path);
  if (extension == ".model") return load_model_file(file);
  require(fs::exists(path, ignored), "{}: no such file or folder", path);
  fail("{}: not a tokenizer: expected a folder, or a .json, .model, .gguf or .bin file", path);
}

}  // namespace fathom
