// From a source file to its tokens: made once per content, tokenizer and options, then found again.
#pragma once

#include <atomic>
#include <string>

#include "tensor/context.h"
#include "train/document.h"
#include "train/token_shard.h"

namespace fathom {

struct ShardCacheOptions {
  std::string folder;  // "": $XDG_CACHE_HOME/fathom/tokens or ~/.cache/fathom/tokens
  DocumentOptions documents;
  const std::atomic<bool>* cancel = nullptr;  // when set, it ends with PrepareCancelled
};

// `folder`, or the one that an empty name stands for.
std::string shard_cache_folder(const std::string& folder);

// The cached shard where it is there and whole, else it is made (with a bar). No documents in the source, or
// a token that the model's vocabulary of `vocab` has not, is a UserError.
std::shared_ptr<const TokenShard> tokenized_source(Context& ctx, const std::string& path,
                                                   const Tokenizer& tokenizer, int64_t vocab,
                                                   const ShardCacheOptions& options);

}  // namespace fathom
