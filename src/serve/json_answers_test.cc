// Answers of a model under a schema, through the engine.
#include <gtest/gtest.h>

#include "infer/engine.h"
#include "infer/model_runtime.h"
#include "serve/json_machine.h"
#include "serve/json_mask.h"
#include "serve/json_schema.h"
#include "serve/json_validator_test.h"
#include "support/test_paths.h"

namespace fathom {
namespace {

const std::vector<std::string> kSchemas{
    R"({"type": "object", "properties": {"name": {"type": "string", "maxLength": 12}, "age": {"type": "integer",
        "minimum": 1, "maximum": 99}, "tags": {"type": "array", "items": {"enum": ["big", "small", "red"]},
        "maxItems": 3}}, "required": ["name", "age", "tags"], "additionalProperties": false})",
    R"({"type": "array", "items": {"anyOf": [{"type": "boolean"}, {"type": "string", "maxLength": 6}]}, "minItems": 2,
        "maxItems": 5})",
    R"({"type": "object", "properties": {"day": {"type": "string", "format": "date"}, "next": {"anyOf": [{"$ref": "#"},
        {"type": "null"}]}}, "required": ["day", "next"]})",
};

struct Told {
  std::vector<int32_t> ids;
  std::string text;
  AnswerEnd end;
};

class JsonAnswers : public testing::Test {
 protected:
  static constexpr const char* kFolder = FATHOM_TEST_DATA "/stories260k/";

  JsonAnswers()
      : tokenizer_(load_tokenizer(std::string(kFolder) + "tokenizer.bin")),
        masks_(*tokenizer_, {tokenizer_->eos()}),
        runtime_(story_model()) {
    runtime_.use_drafts({.kind = DraftKind::kExit});
    runtime_.make_cache(-1, 8, EngineOptions().rows);
    engine_ = std::make_unique<Engine>(make_engine(runtime_.feeder(), runtime_.engine_options()));
  }

  static ModelRuntime::Options story_model() {
    ModelRuntime::Options options;
    options.source = {.model = std::string(kFolder) + "stories260K.bin",
                      .tokenizer = std::string(kFolder) + "tokenizer.bin",
                      .where = {.device = Device::kCpu, .threads = 2}};
    return options;
  }

  Request request(const JsonMasks::Factory& mask, int64_t tokens = 200) const {
    Request request;
    request.prompt = tokenizer_->encode("Once upon a time, there was a little");
    request.sampler.temperature = 0;
    request.max_tokens = tokens;
    request.mask = mask;
    return request;
  }

  std::vector<Told> told(const Request& request) {
    std::vector<Told> all;
    for (Answer& answer : engine_->submit(request)) {
      Told one;
      while (const std::optional<Token> token = answer.next()) {
        one.text += token->text;
        if (!token->ends) one.ids.push_back(token->id);
      }
      one.end = answer.end();
      one.text += one.end.text;
      all.push_back(one);
    }
    return all;
  }

  std::shared_ptr<const Tokenizer> tokenizer_;
  JsonMasks masks_;
  ModelRuntime runtime_;
  std::unique_ptr<Engine> engine_;
};

TEST_F(JsonAnswers, TheSameTextWithDrafts) {
  int64_t rejected = 0;
  for (const std::string& schema : kSchemas) {
    Request plain = request(masks_.schema(schema));
    const Told expected = told(plain)[0];
    ASSERT_EQ(expected.end.error, "");
    ASSERT_EQ(expected.end.reason, FinishReason::kStop) << expected.text;
    EXPECT_TRUE(JsonValidator(schema)(expected.text)) << expected.text;
    for (const int64_t drafts : {1, 3, 6}) {
      plain.speculate = DraftOptions{.drafts = drafts, .kind = DraftKind::kExit, .budget = 0.6};
      const Told drafted = told(plain)[0];
      EXPECT_EQ(drafted.ids, expected.ids) << drafted.text << " instead of " << expected.text;
      EXPECT_EQ(drafted.text, expected.text);
      const SpeculationCounts& counts = drafted.end.stats.speculation;
      EXPECT_GT(counts.accepted, 0);
      rejected += counts.drafted - counts.accepted;
    }
  }
  EXPECT_GT(rejected, 0) << "nothing was rolled back";
}

TEST_F(JsonAnswers, SampledAnswersAreValidOrCut) {
  int stopped = 0, cut = 0;
  for (const bool drafts : {false, true}) {
    for (const std::string& schema : kSchemas) {
      Request many = request(masks_.schema(schema), 60);
      many.answers = 6;
      many.sampler.temperature = 1.2f;
      many.sampler.top_k = 0;
      many.sampler.seed = 4;
      if (drafts) many.speculate = DraftOptions{.drafts = 3, .kind = DraftKind::kExit, .budget = 0.6};
      const auto grammar = std::make_shared<const JsonGrammar>(compile_json_schema(schema));
      for (const Told& one : told(many)) {
        ASSERT_EQ(one.end.error, "") << one.text;
        if (one.end.reason == FinishReason::kStop) {
          ++stopped;
          EXPECT_TRUE(JsonValidator(schema)(one.text)) << one.text;
          continue;
        }
        ++cut;
        ASSERT_EQ(one.end.reason, FinishReason::kLength);
        EXPECT_EQ(std::ssize(one.ids), 60);
        JsonMachine machine(grammar);
        std::string bytes;
        for (const int32_t id : one.ids) bytes += tokenizer_->piece(id);
        for (const char c : bytes) ASSERT_TRUE(machine.step(static_cast<uint8_t>(c))) << one.text;
      }
    }
  }
  EXPECT_GT(stopped, 5);
  EXPECT_GT(cut, 0);
}

TEST_F(JsonAnswers, AnyObject) {
  Request any = request(masks_.any_object(), 120);
  any.sampler.temperature = 1;
  any.answers = 4;
  for (const Told& one : told(any)) {
    ASSERT_EQ(one.end.error, "");
    EXPECT_EQ(one.text.front(), '{');
    if (one.end.reason == FinishReason::kStop) {
      EXPECT_TRUE(JsonValidator(R"({"type": "object"})")(one.text)) << one.text;
    }
  }
}

}  // namespace
}  // namespace fathom
