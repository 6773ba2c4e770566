#include "train/shard_cache.h"

#include <cstdlib>
#include <filesystem>

#include "base/format.h"
#include "base/log.h"
#include "base/progress.h"
#include "base/sha256.h"
#include "skip/method.h"
#include "train/encode_document.h"

namespace fathom {
namespace {

namespace fs = std::filesystem;

constexpr size_t kSampleBytes = size_t{1} << 16;  // of the source, encoded to tell tokenizers apart
constexpr size_t kGroupBytes = size_t{1} << 22;   // of text held while its tokens are made
constexpr const char* kLayout =
    "tokens 3;";  // changes with the file's form, and when documents become tokens in another way

std::string shard_name(const std::string& path, std::string_view content, const Tokenizer& tokenizer,
                       const DocumentOptions& options) {
  Sha256 hash;
  hash.add(kLayout);
  hash.add(fs::path(path).extension().string() + ";");  // decides how the file is read
  hash.add(options.chat_template + (options.prompts_as_chat ? ";chat;" : ";plain;"));
  hash.add(tokenizer_hash(tokenizer, content.substr(0, kSampleBytes)));
  hash.add(content);
  return hash.hex().substr(0, 32) + ".tokens";
}

// Documents are encoded by all threads, a group at a time, and written in order.
void write_shard(Context& ctx, DocumentReader& reader, const Tokenizer& tokenizer, const std::string& source,
                 const std::string& target, const std::atomic<bool>* cancel) {
  TokenShardWriter writer(target);
  Progress bar("tokens of " + fs::path(source).filename().string(), static_cast<int64_t>(reader.bytes()));
  std::vector<Document> group;
  std::vector<std::vector<uint32_t>> tokens;
  bool more = true;
  int64_t documents = 0;
  while (more) {
    if (cancel && cancel->load(std::memory_order_relaxed)) throw PrepareCancelled{};
    group.clear();
    size_t held = 0;
    const size_t before = reader.bytes_read();
    Document document;
    while (held < kGroupBytes && (more = reader.next(document))) {
      held += document.text.size();
      group.push_back(std::move(document));
    }
    tokens.assign(group.size(), {});
    ctx.pool().parallel_for(static_cast<int64_t>(group.size()), 1, [&](int64_t begin, int64_t end) {
      for (auto i = static_cast<size_t>(begin); i < static_cast<size_t>(end); ++i)
        tokens[i] = encode_document(tokenizer, group[i]);
    });
    for (const std::vector<uint32_t>& one : tokens) writer.add(one);
    documents += static_cast<int64_t>(group.size());
    bar.add(static_cast<int64_t>(reader.bytes_read() - before));
  }
  if (documents == 0) fail("{}: expected text to train on, it has none", printable(source));
  writer.commit();
}

}  // namespace

std::string shard_cache_folder(const std::string& folder) {
  if (!folder.empty()) return folder;
  if (const char* cache = std::getenv("XDG_CACHE_HOME"); cache && *cache)
    return std::string(cache) + "/fathom/tokens";
  if (const char* home = std::getenv("HOME"); home && *home)
    return std::string(home) + "/.cache/fathom/tokens";
  fail("no place for tokenized data: set data_cache, or XDG_CACHE_HOME or HOME in the environment");
}

std::shared_ptr<const TokenShard> tokenized_source(Context& ctx, const std::string& path,
                                                   const Tokenizer& tokenizer, int64_t vocab,
                                                   const ShardCacheOptions& options) {
  DocumentReader reader(path, tokenizer, options.documents);
  const std::string folder = shard_cache_folder(options.folder);
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) fail("cannot create the folder {} for tokenized data: {}", printable(folder), error.message());
  const std::string target = folder + "/" + shard_name(path, reader.content(), tokenizer, options.documents);

  std::shared_ptr<const TokenShard> shard;
  if (fs::exists(target)) {
    try {
      shard = TokenShard::open(target);
    } catch (const UserError& damage) {
      log_warn(fmt::format("{}; it is made again", damage.what()));
    }
  }
  if (!shard) {
    write_shard(ctx, reader, tokenizer, path, target, options.cancel);
    shard = TokenShard::open(target);
  }
  if (shard->ids() > vocab) {
    fail("{}: the tokenizer gives the id {}, and the model's vocabulary is {}: they do not belong together",
         printable(path), shard->ids() - 1, vocab);
  }
  return shard;
}

}  // namespace fathom
