#include "text/llama2c_tokenizer.h"

#include "base/format.h"
#include "io/byte_reader.h"
#include "text/bpe.h"
#include "text/pipeline_tokenizer.h"

namespace fathom {
namespace {

// Fixed by that program: not in the file.
constexpr int32_t kUnk = 0, kBos = 1, kEos = 2, kFirstByte = 3;

}  // namespace

std::shared_ptr<const Tokenizer> llama2c_tokenizer(std::string_view bytes, int64_t vocab_size,
                                                   const std::string& where) {
  ByteReader in(std::as_bytes(std::span(bytes.data(), bytes.size())), where);
  const auto longest = in.read<int32_t>("the longest token's length");
  require(longest > 0 && static_cast<size_t>(longest) < bytes.size(),
          "{}: not a llama2.c tokenizer: longest token {}", where, longest);
  Vocabulary vocabulary;
  std::vector<float> scores;
  while (vocab_size < 0 ? in.left() > 0 : static_cast<int64_t>(scores.size()) < vocab_size) {
    scores.push_back(in.read<float>("a token's score"));
    const auto size = in.read<int32_t>("a token's length");
    require(size >= 0 && size <= longest, "{}: token {} has {} bytes, the longest should have {}", where,
            scores.size() - 1, size, longest);
    vocabulary.add(in.read_bytes(static_cast<uint64_t>(size), "a token"),
                   static_cast<int32_t>(scores.size() - 1));
  }
  require(scores.size() >= kFirstByte + 256, "{}: {} tokens, but a llama2.c tokenizer begins with {}", where,
          scores.size(), kFirstByte + 256);
  RankedBpeOptions options;
  options.fallback_first = true;
  options.unk = kUnk;
  options.ranks = ranks_of_scores(scores);
  for (int32_t byte = 0; byte < 256; ++byte) {
    options.byte_ids[byte] = kFirstByte + byte;
    if (!(byte_of_token(vocabulary.text(kFirstByte + byte)) == byte)) {
      fail("{}: token {} should be the byte {}, is '{}'", where, kFirstByte + byte, byte,
           printable(vocabulary.text(kFirstByte + byte)));
    }
  }
  TokenizerParts parts;
  parts.kind = "llama2.c BPE";
  parts.bos = kBos;
  parts.eos = kEos;
  parts.before = {kBos};
  parts.added.add({kBos, "<s>", true});
  parts.added.add({kEos, "</s>", true});
  parts.normalizer.add_prepend(" ");
  parts.decoder.add_byte_fallback();
  parts.decoder.add_fuse();
  parts.decoder.add_strip(" ", 1, 0);
  parts.model = std::make_unique<RankedBpeModel>(std::move(vocabulary), std::move(options));
  return std::make_shared<PipelineTokenizer>(std::move(parts));
}

}  // namespace fathom
