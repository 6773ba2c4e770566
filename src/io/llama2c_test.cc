#include "io/llama2c.h"

#include "io/test_bytes.h"

namespace fathom {
namespace {

using namespace testing_io;

struct Header {
  int32_t dim = 4, hidden = 6, layers = 2, heads = 2, kv_heads = 1, vocab = 3, seq_len = 5;
};

// Floats of all parts: embedding, norms, q, k, v, o, gate, down, up, final norm, two tables, output.
size_t floats_of(const Header& h) {
  const auto dim = static_cast<size_t>(h.dim), hidden = static_cast<size_t>(h.hidden),
             layers = static_cast<size_t>(h.layers);
  const size_t head = dim / static_cast<size_t>(h.heads), kv = head * static_cast<size_t>(h.kv_heads);
  const auto vocab = static_cast<size_t>(std::abs(h.vocab));
  return vocab * dim * (h.vocab < 0 ? 2 : 1) +
         layers * (2 * dim + 2 * dim * dim + 2 * kv * dim + 3 * hidden * dim) + dim +
         static_cast<size_t>(h.seq_len) * head;
}

// The values count up from 0 through the whole file.
std::string file_of(const Header& h, size_t floats) {
  Bytes bytes;
  for (const int32_t field : {h.dim, h.hidden, h.layers, h.heads, h.kv_heads, h.vocab, h.seq_len})
    bytes.put(field);
  for (size_t i = 0; i < floats; ++i) bytes.put(static_cast<float>(i));
  return bytes.str();
}

std::string message_of(std::string_view bytes) {
  const ExactCopy copy(bytes);
  std::string message = error_of([&] { Llama2cFile::parse(copy.bytes(), copy.memory, "bad.bin"); });
  EXPECT_TRUE(message.starts_with("bad.bin: llama2.c: ")) << message;
  return message;
}

TEST(Llama2c, PartsLieInTheirOrder) {
  for (const int32_t vocab : {3, -3}) {
    const Header h{.vocab = vocab};
    const ExactCopy copy(file_of(h, floats_of(h)));
    const auto file = Llama2cFile::parse(copy.bytes(), copy.memory, "x.bin");
    EXPECT_EQ(file->header().dim, 4);
    EXPECT_EQ(file->header().hidden_dim, 6);
    EXPECT_EQ(file->header().n_layers, 2);
    EXPECT_EQ(file->header().n_heads, 2);
    EXPECT_EQ(file->header().n_kv_heads, 1);
    EXPECT_EQ(file->header().vocab(), 3);
    EXPECT_EQ(file->header().seq_len, 5);
    EXPECT_EQ(file->header().tied(), vocab > 0);
    const struct {
      const char* name;
      Shape shape;
      float first;
    } expected[] = {
        {"token_embedding", {3, 4}, 0}, {"attention_norm", {2, 4}, 12}, {"wq", {2, 4, 4}, 20},
        {"wk", {2, 2, 4}, 52},          {"wv", {2, 2, 4}, 68},          {"wo", {2, 4, 4}, 84},
        {"ffn_norm", {2, 4}, 116},      {"w1", {2, 6, 4}, 124},         {"w2", {2, 4, 6}, 172},
        {"w3", {2, 6, 4}, 220},         {"final_norm", {4}, 268},
    };
    ASSERT_EQ(file->tensors().size(), std::size(expected) + (vocab < 0 ? 1 : 0));
    for (const auto& part : expected) {
      EXPECT_EQ(file->tensor(part.name).shape(), part.shape) << part.name;
      EXPECT_EQ(file->tensor(part.name).data<float>()[0], part.first) << part.name;
    }
    // After the two tables of 5 x 1.
    if (vocab < 0) {
      EXPECT_EQ(file->tensor("output").data<float>()[0], 282.0f);
    }
    EXPECT_THROW(file->tensor("absent"), std::logic_error);
  }
}

TEST(Llama2c, TruncatedOrLongerFilesAreRefused) {
  const Header h;
  const std::string whole = file_of(h, floats_of(h));
  for (size_t length = 0; length < whole.size(); ++length) message_of(whole.substr(0, length));
  EXPECT_NE(message_of(whole.substr(0, 20)).find("truncated: the header of 7 integers"), std::string::npos);
  EXPECT_NE(message_of(whole.substr(0, whole.size() - 4)).find("asks for 1156 bytes, the file has 1152"),
            std::string::npos);
  EXPECT_NE(message_of(whole + "x").find("asks for 1156 bytes, the file has 1157"), std::string::npos);
}

TEST(Llama2c, HeadersNoModelHasAreRefused) {
  const struct {
    Header header;
    const char* expected;
  } cases[] = {
      {{.dim = 0}, "dim must be at least 1, got 0"},
      {{.dim = -4}, "dim must be at least 1, got -4"},
      {{.hidden = 0}, "hidden_dim must be at least 1"},
      {{.layers = -1}, "n_layers must be at least 1, got -1"},
      {{.heads = 0}, "n_heads must be at least 1"},
      {{.kv_heads = 0}, "n_kv_heads must be at least 1"},
      {{.vocab = 0}, "vocab_size must not be 0"},
      {{.vocab = INT32_MIN}, "vocab_size must not be -2147483648"},
      {{.seq_len = 0}, "seq_len must be at least 1"},
      {{.heads = 3}, "dim 4 is not a multiple of n_heads 3"},
      {{.kv_heads = 3}, "n_heads 2 is not a multiple of n_kv_heads 3"},
      {{.heads = 4}, "must be even for the rotary pairs, got 1"},
      {{.dim = 0x7FFFFFFC, .layers = 0x7FFFFFFF}, "asks for more than 2^63 bytes"},
      {{.dim = 0x616b3432, .hidden = 1}, "a versioned checkpoint ('ak42', version 1)"},
  };
  for (const auto& [header, expected] : cases) {
    const std::string message = message_of(file_of(header, 20));
    EXPECT_NE(message.find(expected), std::string::npos) << message;
  }
}

TEST(Llama2c, IsRecognisedByItsSize) {
  const Header h;
  const std::string whole = file_of(h, floats_of(h));
  const auto bytes = std::as_bytes(std::span<const char>(whole));
  EXPECT_TRUE(looks_like_llama2c(bytes.first(28), whole.size()));
  EXPECT_FALSE(looks_like_llama2c(bytes.first(28), whole.size() + 4));
  EXPECT_FALSE(looks_like_llama2c(bytes.first(27), whole.size()));
  EXPECT_FALSE(looks_like_llama2c(std::as_bytes(std::span("GGUFGGUFGGUFGGUFGGUFGGUFGGUFGGUF")), 32));
}

TEST(Llama2c, BytesAtAnOddAddressAreCopied) {
  const Header h;
  const ExactCopy copy("x" + file_of(h, floats_of(h)));
  const auto file = Llama2cFile::parse(copy.bytes().subspan(1), copy.memory, "odd");
  EXPECT_EQ(file->tensor("final_norm").data<float>()[1], 269.0f);
}

}  // namespace
}  // namespace fathom
