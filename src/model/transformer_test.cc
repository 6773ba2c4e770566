// The forward pass under packing, skipping and repetition.
#include "model/transformer.h"

#include <gtest/gtest.h>

#include <map>
#include <memory>

#include "base/rng.h"
#include "model/flops.h"
#include "model/load.h"
#include "quant/matmul.h"
#include "support/heap_allocations.h"
#include "support/test_paths.h"
#include "tensor/arena.h"

namespace fathom {

namespace {

std::string fixture(const char* name) {
  return std::string(FATHOM_TEST_DATA) + "/models/" + name;
}

std::vector<int32_t> random_ids(int64_t vocab, size_t count, uint64_t seed) {
  Rng rng(seed);
  std::vector<int32_t> ids;
  for (size_t i = 0; i < count; ++i)
    ids.push_back(static_cast<int32_t>(rng.below(static_cast<uint32_t>(vocab))));
  return ids;
}

std::vector<float> step(Context& ctx, const Model& model, KvCache& cache, std::span<const BatchRow> rows,
                        const SkipPolicy& policy) {
  const ArenaScope scope(ctx);
  PolicyState state;
  std::map<int32_t, int64_t> counts;
  for (const BatchRow& row : rows) ++counts[row.sequence];
  for (const auto& [sequence, count] : counts) cache.reserve(ctx, sequence, count);
  const Tensor logits = forward(ctx, model, make_batch(ctx, rows), cache, policy, state);
  std::vector<float> out(static_cast<size_t>(logits ? logits.numel() : 0));
  if (logits) copy_to_host(ctx, logits, out);
  return out;
}

std::vector<float> alone(Context& ctx, const Model& model, const std::vector<int32_t>& ids,
                         const SkipPolicy& policy) {
  KvCache cache(ctx, model.config, {.sequences = 1, .context = 128});
  std::vector<BatchRow> rows;
  for (size_t i = 0; i < ids.size(); ++i) rows.push_back({ids[i], static_cast<int32_t>(i), 0, true});
  return step(ctx, model, cache, rows, policy);
}

class Formats : public testing::TestWithParam<DType> {};

// One row, a few and many, through the whole model.
TEST_P(Formats, ArrangedWeightsGiveTheSameBits) {
  for (const char* name : {"llama3", "smollm2", "qwen2"}) {  // untied, tied, with biases
    Context ctx({.threads = 2});
    const Model model = load_model(ctx, fixture(name), {.dtype = GetParam()});
    Model arranged = load_model(ctx, fixture(name), {.dtype = GetParam()});
    arrange_weights(ctx, arranged);
    const bool fours = takes_fours(matmul_kernels(ctx.isa()), model.weights.blocks[0].q.dtype());
    EXPECT_EQ(arranged.weights.blocks[0].q.layout(), fours ? Layout::kFours : Layout::kRows);
    EXPECT_EQ(arranged.weights.output.layout(), fours ? Layout::kFours : Layout::kRows);
    EXPECT_EQ(arranged.weights.embedding.layout(),  // one that is not multiplied stays
              fours && model.config.tied ? Layout::kFours : Layout::kRows);
    EXPECT_EQ(arranged.weight_bytes(), model.weight_bytes());
    for (const size_t count : {1, 2, 3, 4, 5, 8, 13, 40}) {
      const std::vector<int32_t> ids = random_ids(model.config.vocab, count, count);
      EXPECT_EQ(alone(ctx, arranged, ids, DensePolicy()), alone(ctx, model, ids, DensePolicy()))
          << name << ", " << count << " rows";
    }
  }
}

// Many sequences of different lengths in one packed pass, rows interleaved, each bit-equal to the same
// sequence run alone.
TEST_P(Formats, PackedSequencesEqualEachAlone) {
  Context ctx({.threads = 2}), one({.threads = 1});
  const Model model = load_model(ctx, fixture("llama3"), {.dtype = GetParam()});
  const DensePolicy dense;
  const std::vector<size_t> lengths{1, 17, 5, 33, 8, 2, 21};
  std::vector<std::vector<int32_t>> ids;
  std::vector<std::vector<float>> expected;
  for (size_t s = 0; s < lengths.size(); ++s) {
    ids.push_back(random_ids(model.config.vocab, lengths[s], s));
    expected.push_back(alone(one, model, ids[s], dense));
  }
  KvCache cache(ctx, model.config, {.sequences = static_cast<int64_t>(lengths.size()), .context = 128});
  std::vector<std::vector<float>> got(lengths.size());
  const auto vocab = static_cast<size_t>(model.config.vocab);
  for (size_t begin = 0; begin < 33; begin += 11) {  // three passes, the sequences leaving one by one
    std::vector<BatchRow> rows;
    for (size_t i = begin; i < begin + 11; ++i) {
      for (size_t s = 0; s < lengths.size(); ++s) {
        if (i < lengths[s])
          rows.push_back({ids[s][i], static_cast<int32_t>(i), static_cast<int32_t>(s), true});
      }
    }
    const std::vector<float> logits = step(ctx, model, cache, rows, dense);
    for (size_t r = 0; r < rows.size(); ++r) {
      auto& target = got[static_cast<size_t>(rows[r].sequence)];
      target.insert(target.end(), logits.begin() + static_cast<int64_t>(r * vocab),
                    logits.begin() + static_cast<int64_t>((r + 1) * vocab));
    }
  }
  for (size_t s = 0; s < lengths.size(); ++s) EXPECT_EQ(got[s], expected[s]) << "sequence " << s;
}

INSTANTIATE_TEST_SUITE_P(All, Formats,
                         testing::Values(DType::kF32, DType::kF16, DType::kBF16, DType::kQ8_0, DType::kQ4_0,
                                         DType::kQ4_1),
                         [](const auto& format) { return std::string(name_of(format.param)); });

// Keeps the rows that a table of random bits names: what a method's decisions look like to the model.
class TablePolicy final : public SkipPolicy {
 public:
  TablePolicy(SkippedKv skipped, double keep, uint64_t seed) : skipped_(skipped), keep_(keep), seed_(seed) {}

  bool keeps(int64_t layer, Unit unit, int32_t position) const {
    Rng rng(seed_,
            {static_cast<uint32_t>(layer), static_cast<uint32_t>(unit), static_cast<uint32_t>(position)});
    return rng.uniform_double() < keep_;
  }
  Decision decide(Context& ctx, const UnitInput& input, PolicyState&) const override {
    const int64_t rows = input.h.dim(0);
    std::vector<int32_t> positions(static_cast<size_t>(rows)), ids(static_cast<size_t>(rows), 0);
    copy_to_host(ctx, input.batch.positions, positions);
    int32_t count = 0;
    for (int32_t row = 0; row < rows; ++row) {
      if (keeps(input.layer, input.unit, positions[static_cast<size_t>(row)]))
        ids[static_cast<size_t>(count++)] = row;
    }
    if (count == 0) return {RowSet::none(rows), skipped_};
    return {RowSet::some(Tensor::from(ctx, ids, {rows}),
                         Tensor::from(ctx, std::span<const int32_t>(&count, 1), {1})),
            skipped_};
  }

 private:
  SkippedKv skipped_;
  double keep_;
  uint64_t seed_;
};

TEST(Skipping, ChunksChangeNoBitUnderSkipping) {
  Context ctx({.threads = 2});
  const Model model = load_model(ctx, fixture("llama3"));
  const std::vector<int32_t> ids = random_ids(model.config.vocab, 40, 9);
  for (SkippedKv skipped : {SkippedKv::kProject, SkippedKv::kHide}) {
    for (double keep : {0.0, 0.3, 0.7, 1.0}) {
      const TablePolicy policy(skipped, keep, 3);
      const std::vector<float> whole = alone(ctx, model, ids, policy);
      KvCache cache(ctx, model.config, {.sequences = 1, .context = 128});
      std::vector<float> pieces;
      for (size_t begin = 0; begin < ids.size(); begin += 7) {
        std::vector<BatchRow> rows;
        for (size_t i = begin; i < std::min(ids.size(), begin + 7); ++i)
          rows.push_back({ids[i], static_cast<int32_t>(i), 0, true});
        const std::vector<float> part = step(ctx, model, cache, rows, policy);
        pieces.insert(pieces.end(), part.begin(), part.end());
      }
      EXPECT_EQ(pieces, whole) << "keep " << keep;
    }
  }
}

// The work of a skipped row is really not done: the counted multiply-adds are those of the kept rows.
TEST(Skipping, SkippedRowsCostNothing) {
  Context ctx({.threads = 2});
  const Model model = load_model(ctx, fixture("llama3"));
  const ModelConfig& c = model.config;
  const std::vector<int32_t> ids = random_ids(c.vocab, 24, 5);
  const TablePolicy policy(SkippedKv::kHide, 0.5, 11);
  uint64_t expected = 24 * static_cast<uint64_t>(c.vocab * c.width);
  for (int64_t layer = 0; layer < c.layers; ++layer) {
    int64_t entries = 0;
    for (int32_t position = 0; position < 24; ++position) {
      if (policy.keeps(layer, Unit::kAttention, position)) {
        ++entries;  // it sees itself and the entries that exist
        expected += static_cast<uint64_t>(2 * c.width * c.head_dim * (c.heads + c.kv_heads) +
                                          2 * entries * c.heads * c.head_dim);
      }
      if (policy.keeps(layer, Unit::kFfn, position))
        expected += static_cast<uint64_t>(3 * c.width * c.ffn_width);
    }
  }
  const Work before = ctx.counters().total();
  alone(ctx, model, ids, policy);
  EXPECT_EQ((ctx.counters().total() - before).madds, expected);
}

// What losses take instead of logits; gemma2 caps them.
TEST(Output, RowsUpToTheMatrixMakeTheLogits) {
  for (const char* name : {"llama3", "gemma2"}) {
    Context ctx({.threads = 2});
    const ArenaScope scope(ctx);
    const Model model = load_model(ctx, fixture(name));
    std::vector<BatchRow> rows;
    for (const int32_t id : random_ids(model.config.vocab, 9, 3))
      rows.push_back({id, static_cast<int32_t>(rows.size()), 0, rows.size() % 2 == 0});
    const auto values = [&](const Tensor& t) {
      std::vector<float> out(static_cast<size_t>(t.numel()));
      copy_to_host(ctx, t, out);
      return out;
    };
    PolicyState state;
    const Batch batch = make_batch(ctx, rows);
    const Work before = ctx.counters().total();
    const OutputRows output = forward_to_output(ctx, model, batch, FreshPass{}, DensePolicy(), state);
    EXPECT_EQ((ctx.counters().total() - before).madds, dense_work(model.config, rows).block_madds) << name;
    EXPECT_EQ(output.x.shape(), (Shape{5, model.config.width}));
    EXPECT_EQ(values(output_logits(ctx, output)),
              values(forward(ctx, model, batch, FreshPass{}, DensePolicy(), state)))
        << name;
    for (BatchRow& row : rows) row.wants_logits = false;
    EXPECT_FALSE(
        forward_to_output(ctx, model, make_batch(ctx, rows), FreshPass{}, DensePolicy(), state).x.defined());
  }
}

TEST(Accounting, DenseWorkMatchesTheClosedForm) {
  for (const char* name : {"llama3", "mistral", "gemma2", "qwen3"}) {
    Context ctx({.threads = 2});
    const Model model = load_model(ctx, fixture(name));
    const std::vector<int32_t> ids = random_ids(model.config.vocab, 24, 5);
    const Work before = ctx.counters().total();
    alone(ctx, model, ids, DensePolicy());
    const DenseWork dense = dense_work(model.config, 24, 0, 24);
    EXPECT_EQ((ctx.counters().total() - before).madds, dense.block_madds + dense.output_madds) << name;
  }
}

TEST(Accounting, ADecodeStepReadsEveryWeightOnce) {
  Context ctx({.threads = 2});
  const Model model = load_model(ctx, fixture("smollm2"), {.dtype = DType::kQ8_0});
  KvCache cache(ctx, model.config, {.sequences = 1, .context = 128});
  const BatchRow first{1, 0, 0, true};
  const Work before = ctx.counters().total();
  step(ctx, model, cache, std::span(&first, 1), DensePolicy());
  int64_t matrices = model.weights.embedding.nbytes();                // tied: the output's own read
  matrices += model.weights.embedding.nbytes() / model.config.vocab;  // and one row of it as the embedding
  for (const BlockWeights& b : model.weights.blocks) {
    for (const Tensor& w : {b.q, b.k, b.v, b.o, b.gate, b.up, b.down}) matrices += w.nbytes();
  }
  EXPECT_EQ((ctx.counters().total() - before).weight_bytes, static_cast<uint64_t>(matrices));
}

TEST(Decode, ASteadyStepAllocatesNothing) {
  for (DType dtype : {DType::kF32, DType::kBF16, DType::kQ8_0, DType::kQ4_1}) {
    Context ctx({.threads = 2});
    const Model model = load_model(ctx, fixture("llama3"), {.dtype = dtype});
    KvCache cache(ctx, model.config, {.sequences = 1, .context = 128});
    const DensePolicy policy;
    PolicyState state;
    size_t during = 0;
    for (int32_t position = 0; position < 100; ++position) {
      const size_t before = heap_allocations();
      {
        const ArenaScope scope(ctx);
        const BatchRow row{3, position, 0, true};
        cache.reserve(ctx, 0, 1);
        const Tensor logits = forward(ctx, model, make_batch(ctx, std::span(&row, 1)), cache, policy, state);
        ASSERT_TRUE(logits.defined());
      }
      if (position >= 70)
        during += heap_allocations() - before;  // past the second page, its first steps behind it
    }
    EXPECT_EQ(during, 0u) << name_of(dtype);
  }
}

TEST(Cache, TruncatedAndFedAgainIsTheSame) {
  Context ctx({.threads = 2});
  const Model model = load_model(ctx, fixture("llama3"));
  const std::vector<int32_t> ids = random_ids(model.config.vocab, 90, 2);
  const std::vector<float> whole = alone(ctx, model, ids, DensePolicy());
  KvCache cache(ctx, model.config, {.sequences = 1, .context = 128});
  const auto feed = [&](const std::vector<int32_t>& tokens, size_t begin, size_t end) {
    std::vector<BatchRow> rows;
    for (size_t i = begin; i < end; ++i) rows.push_back({tokens[i], static_cast<int32_t>(i), 0, true});
    return step(ctx, model, cache, rows, DensePolicy());
  };
  const std::vector<int32_t> other = random_ids(model.config.vocab, 90, 77);
  feed(ids, 0, 70);
  const int64_t held = cache.bytes_held();
  cache.truncate(ctx, 0, 30);
  EXPECT_LT(cache.bytes_held(), held);
  feed(other, 30, 90);
  cache.truncate(ctx, 0, 30);
  EXPECT_EQ(cache.rows(0), 30);
  const std::vector<float> tail = feed(ids, 30, 90);
  EXPECT_EQ(tail, std::vector<float>(whole.end() - static_cast<int64_t>(tail.size()), whole.end()));
}

TEST(Cache, SaysWhenItIsFull) {
  Context ctx({.threads = 1});
  const Model model = load_model(ctx, fixture("llama3"));
  KvCache cache(ctx, model.config, {.sequences = 1, .context = 10});
  cache.reserve(ctx, 0, 8);
  try {
    cache.reserve(ctx, 0, 3);
    FAIL() << "no error";
  } catch (const UserError& error) {
    EXPECT_STREQ(error.what(),
                 "the context is full: 8 tokens are in it, 3 more were to come, and it holds 10");
  }
}

// ‖a − b‖ / ‖b‖
double distance(const std::vector<float>& a, const std::vector<float>& b) {
  EXPECT_EQ(a.size(), b.size());
  double difference = 0, whole = 0;
  for (size_t i = 0; i < b.size(); ++i) {
    difference += std::pow(static_cast<double>(a[i]) - static_cast<double>(b[i]), 2);
    whole += std::pow(static_cast<double>(b[i]), 2);
  }
  return std::sqrt(difference / whole);
}

// The same model code on both devices, whole and with rows left out (random decisions, the same on both).
// Roundings grow more in random weights than in trained ones, most where norms follow the branches.
TEST(Cuda, ForwardAgreesWithTheCpu) {
  std::unique_ptr<Context> cuda;
  try {
    cuda = std::make_unique<Context>(ContextOptions{.device = Device::kCuda});
  } catch (const UserError& error) {
    GTEST_SKIP() << "skipped: " << error.what();
  }
  Context cpu({.threads = 2});
  for (const char* name : {"llama3", "gemma3", "qwen3", "olmo2"}) {
    const Model here = load_model(cpu, fixture(name), {.dtype = DType::kF32});
    const Model there = load_model(*cuda, fixture(name), {.dtype = DType::kF32});
    const std::vector<int32_t> ids = random_ids(here.config.vocab, 40, 4);
    for (SkippedKv skipped : {SkippedKv::kProject, SkippedKv::kHide}) {
      for (double keep : {0.0, 0.5, 1.0}) {
        const TablePolicy policy(skipped, keep, 8);
        const std::vector<float> a = alone(cpu, here, ids, policy), b = alone(*cuda, there, ids, policy);
        EXPECT_LT(distance(b, a), 5e-4) << name << ", keep " << keep;
      }
    }
  }
}

}  // namespace
}  // namespace fathom
