// Methods and the cache: sequences that share their beginning, and memory that skipping really saves.
#include <gtest/gtest.h>

#include "skip/methods.h"
#include "skip/tiny_model_test.h"

namespace fathom {
namespace {

ModelConfig config_of(int64_t layers, int64_t context, int64_t head_dim = 8) {
  ModelConfig config = tiny_config();
  config.layers = layers;
  config.windows.assign(static_cast<size_t>(layers), 0);
  config.context = context;
  config.head_dim = head_dim;
  return config;
}

Rows rows_of(const Rows& rows, int32_t sequence, int64_t begin, int64_t end) {
  Rows out(rows.begin() + begin, rows.begin() + end);
  for (BatchRow& row : out) row.sequence = sequence;
  return out;
}

// The logits of a whole sequence fed alone.
std::vector<float> alone(Rig& rig, const Rows& rows, DType type) {
  TinyRun session(rig, 1, type);
  return session.pass(rows_of(rows, 0, 0, static_cast<int64_t>(rows.size()))).logits;
}

// Two continuations of one beginning, in the slots of a sequence and its fork.
Rows continued(const Rows& rows, int64_t shared, uint64_t seed) {
  Rows out = random_rows({static_cast<int>(rows.size())}, seed);
  std::copy(rows.begin(), rows.begin() + shared, out.begin());
  return out;
}

void expect_tail(const std::vector<float>& tail, const std::vector<float>& whole, const std::string& what) {
  ASSERT_LT(tail.size(), whole.size()) << what;
  EXPECT_TRUE(std::equal(tail.begin(), tail.end(), whole.end() - static_cast<int64_t>(tail.size()))) << what;
}

// A fork, and whom it came from, go on bit-equal to sequences fed alone: in a page that they share, behind
// it, and when the other one is gone.
TEST(Forks, ContinueAsIfFedAlone) {
  constexpr int64_t kRows = 80;
  std::vector<std::string> methods_json;
  for (const MethodEntry& method : methods()) {
    const std::string extra = method.name == "mind_skip" ? R"(, "pool": "prefix:5")" : "";
    methods_json.push_back(R"({"name": ")" + std::string(method.name) + "\"" + extra + "}");
  }
  methods_json.push_back(R"({"name": "random", "skipped_kv": "hide"})");
  methods_json.push_back(R"({"name": "random", "skipped_kv": "copy"})");
  methods_json.push_back(R"({"name": "random", "keyed_by": "text"})");
  methods_json.push_back(R"({"name": "gate_skip", "skipped_kv": "copy"})");
  const size_t plain = methods_json.size();
  methods_json.push_back(R"({"name": "gate_skip"})");
  methods_json.push_back(R"({"name": "mixture_of_depths"})");
  methods_json.push_back(R"({"name": "calm", "confidence": "similarity"})");
  for (size_t i = 0; i < methods_json.size(); ++i) {
    const std::string& json = methods_json[i];
    Rig rig(json, config_of(4, 128, 32));
    i < plain ? rig.calibrate(0.5f) : rig.calibrate_steered(0.5f);
    for (const DType type : {DType::kF16, DType::kQ8_0}) {
      for (const int64_t shared : {7, 70}) {
        const std::string what = json + " " + name_of(type) + " " + std::to_string(shared);
        const Rows first = random_rows({kRows}), second = continued(first, shared, 55);
        const std::vector<float> one = alone(rig, first, type), two = alone(rig, second, type);
        TinyRun session(rig, 3, type);
        session.pass(rows_of(first, 0, 0, shared + 2));
        ASSERT_EQ(session.fork(0, 2, shared), shared) << what;
        session.pass(rows_of(second, 2, shared, shared + 3));
        expect_tail(session.pass(rows_of(first, 0, shared + 2, kRows)).logits, one, what);
        session.truncate(0, 0);
        expect_tail(session.pass(rows_of(second, 2, shared + 3, kRows)).logits, two, what + ", the fork");
        session.truncate(2, 0);
        EXPECT_EQ(session.cache().bytes_held(), 0) << what;
      }
    }
  }
}

// Rows that are taken back and fed again, with others between: as if those had never been.
TEST(Truncated, SequencesGoOnAsIfFedAlone) {
  for (const char* json : {R"({"name": "gate_skip"})", R"({"name": "mixture_of_depths"})",
                           R"({"name": "calm", "confidence": "similarity"})"}) {
    Rig rig(json, config_of(4, 128, 32));
    rig.calibrate_steered(0.5f);
    const Rows rows = random_rows({120}), others = random_rows({120}, 77);
    const std::vector<float> whole = alone(rig, rows, DType::kF16);
    for (const int64_t back : {20, 64, 70}) {
      TinyRun session(rig, 2, DType::kF16);
      session.pass(rows_of(rows, 1, 0, back));
      session.pass(rows_of(others, 1, back, 110));
      ASSERT_EQ(session.truncate(1, back), back);
      session.pass(rows_of(rows, 1, back, back + 1));
      expect_tail(session.pass(rows_of(rows, 1, back + 1, 120)).logits, whole, json);
    }
  }
}

// Share of the (layer, row) pairs that have an entry of their own.
double own_share(const Seen& seen) {
  double own = 0, all = 0;
  for (size_t unit = 0; unit < seen.kept.size(); unit += 2) {
    const auto& kept = seen.kept[unit];
    const bool projects = seen.skipped_kv[unit] == SkippedKv::kProject;
    own += static_cast<double>(projects ? kept.size() : std::count(kept.begin(), kept.end(), 1));
    all += static_cast<double>(kept.size());
  }
  return own / all;
}

// With half of the entries hidden, or shared with the layer below, the cache holds about half of a dense one.
TEST(CacheMemory, FollowsTheEntriesThatExist) {
  for (const char* json : {R"({"name": "mixture_of_depths"})", R"({"name": "skip_middle"})",
                           R"({"name": "gate_skip", "gate": "scalar", "skipped_kv": "hide"})",
                           R"({"name": "gate_skip", "gate": "scalar", "skipped_kv": "copy"})",
                           R"({"name": "random", "units": "block", "skipped_kv": "copy"})"}) {
    Rig rig(json, config_of(8, 1024));
    const Rows rows = random_rows({1024});
    double share = 1, held = 0, dense = 1;
    for (float kept = 0.55f; share > 0.5; kept -= 0.06f) {
      rig.thresholds = {};
      rig.calibrate(kept);
      TinyRun session(rig, 1, DType::kF16);
      share = own_share(session.pass(rows));
      held = static_cast<double>(session.cache().bytes_held());
      dense = static_cast<double>(session.cache().bytes_dense());
    }
    EXPECT_GE(share, 0.2) << json;
    EXPECT_LE(held, 0.55 * dense) << json;
    EXPECT_LE(held, (share + 0.05) * dense) << json;  // no more than the pages' edges
  }
}

// A row that copies lists the slot of the nearest layer below with the same RoPE, whatever the windows; the
// first layer of a kind projects.
TEST(CopiedEntries, ComeFromTheNearestLayerOfTheSameKind) {
  for (const bool local_rope : {false, true}) {
    ModelConfig config = tiny_config(Shaped::kGemma);
    config.has_local_rope = local_rope;  // Gemma-3; without: Gemma-2
    Rig rig(R"({"name": "random", "rows_kept": 0.5, "skipped_kv": "copy"})", config);
    const Rows rows = random_rows({30});
    TinyRun session(rig, 1);
    const Seen seen = session.pass(rows);
    int copied = 0;
    for (int64_t layer = 0; layer < 4; ++layer) {
      const int64_t below = local_rope ? layer - 2 : layer - 1;
      const auto slots = [&](int64_t of) { return session.cache().layer(of).entries.data<int32_t>(); };
      ASSERT_EQ(session.cache().layer(layer).lengths.data<int32_t>()[0], 30);
      for (size_t r = 0; r < 30; ++r) {
        if (seen.kept[static_cast<size_t>(2 * layer)][r]) continue;
        for (int64_t other = 0; other < layer; ++other) {
          if (other == below) {
            EXPECT_EQ(slots(layer)[r], slots(below)[r]) << layer << " " << r;
            ++copied;
          } else if (below < 0 || slots(other)[r] != slots(below)[r]) {
            EXPECT_NE(slots(layer)[r], slots(other)[r]) << layer << " " << r;
          }
        }
      }
      EXPECT_EQ(seen.skipped_kv[static_cast<size_t>(2 * layer)],
                below < 0 ? SkippedKv::kProject : SkippedKv::kCopyFromBelow);
    }
    EXPECT_GT(copied, 10);
  }
}

// A fixed list makes no keys and values where nobody looks.
TEST(FixedLists, HoldNothingInWhatTheyDrop) {
  Rig rig(R"({"name": "harm_order", "drop": [2, 3, 4]})");
  const Rows rows = random_rows({20});
  TinyRun session(rig, 1);
  const Seen seen = session.pass(rows);
  for (int64_t layer = 0; layer < 4; ++layer)
    EXPECT_EQ(session.cache().layer(layer).lengths.data<int32_t>()[0], layer == 1 || layer == 2 ? 0 : 20);
  const ModelConfig& c = rig.model.config;
  const int64_t q_width = c.heads * c.head_dim, kv_width = c.kv_heads * c.head_dim;
  const int64_t attention = 20 * (2 * c.width * q_width + 2 * c.width * kv_width) + 2 * q_width * 20 * 21 / 2;
  EXPECT_EQ(
      seen.work.madds - seen.work.policy_madds,
      static_cast<uint64_t>(2 * attention + 3 * 20 * 3 * c.width * c.ffn_width + 20 * c.vocab * c.width));
  for (const char* rule : {"project", "copy"})
    EXPECT_THROW(Rig(R"({"name": "short_gpt", "skipped_kv": ")" + std::string(rule) + R"("})"), UserError);
}

// What a policy never leaves out costs nothing to look for, and nothing is given back.
TEST(CacheMemory, ADenseModelHoldsEverything) {
  Rig rig(R"({"name": "dense"})", config_of(4, 128));
  TinyRun session(rig, 1);
  session.pass(random_rows({100}));
  EXPECT_EQ(session.cache().bytes_held(), session.cache().bytes_dense());
  EXPECT_EQ(session.cache().bytes_dense(), 2 * 4 * KvCache::kPage * session.cache().bytes_per_entry());
}

}  // namespace
}  // namespace fathom
