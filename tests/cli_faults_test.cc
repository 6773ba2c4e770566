// What goes wrong in the middle of the work, as a person meets it: one line that names it.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "infer/story_model_test.h"
#include "model/save.h"
#include "program.h"

namespace fathom {
namespace {

// The exit code, nothing on stdout, and one line on stderr that holds `part`.
void expect_refused(const Words& arguments, int code, const std::string& part) {
  const ProgramResult r = run_fathom(arguments);
  EXPECT_EQ(r.exit_code, code) << r.err;
  EXPECT_EQ(r.out, "");
  EXPECT_TRUE(r.err.starts_with("fathom: ")) << r.err;
  EXPECT_EQ(r.err.find('\n'), r.err.size() - 1) << r.err;
  EXPECT_NE(r.err.find(part), std::string::npos) << r.err;
}

// The model that ships with the first number of one matrix changed, as a folder.
std::string spoiled(const TemporaryFolder& folder, const std::string& name, int layer,
                    Tensor BlockWeights::*matrix, float value) {
  StoryModel story;
  Tensor& weight = story.model.weights.blocks[static_cast<size_t>(layer)].*matrix;
  const Tensor stored = weight;
  weight = Tensor::owned(Device::kCpu, DType::kF32, stored.shape());
  std::memcpy(weight.raw(), stored.raw(), static_cast<size_t>(stored.nbytes()));
  weight.data<float>()[0] = value;
  save_hf(story.ctx, story.model, folder / name, DType::kF32);
  return folder / name;
}

TEST(CliFaults, ANumberThatIsNoneNamesItsLayer) {
  const TemporaryFolder folder;
  const std::string ffn = spoiled(folder, "ffn", 2, &BlockWeights::down, INFINITY),
                    attention = spoiled(folder, "attention", 4, &BlockWeights::o, NAN);
  const std::string ids = folder.write("ids.json", "[1, 403, 407, 261, 378]");
  for (const Words& verb :
       {Words{"generate", "-p", "Once upon a time", "-n", "5", "--temp", "0"},
        Words{"generate", "-p", "Once upon a time", "-n", "5", "--json"},
        Words{"generate", "-p", "Once", "-n", "9", "--speculate", "2", "--draft", "exit"},
        Words{"score", "--ids", ids, "--json"}, Words{"score", "--ids", ids, "--chunk", "1"}}) {
    for (const auto& [model, part] :
         {std::pair{ffn, "first not finite after the FFN of layer 2"},
          std::pair{attention, "first not finite after the attention of layer 4"}}) {
      Words words = verb;
      words.insert(words.end(), {"-m", model, "-q"});
      expect_refused(words, 1, part);
    }
  }
}

TEST(CliFaults, BudgetsOutOfRange) {
  for (const char* verb : {"generate", "score", "inspect"}) {
    const auto refused = [&](const char* option, const char* value, const std::string& part) {
      Words words{verb, "-m", kStories, "-p", "Once upon a time", option, value};
      if (words[0] == "inspect") words.insert(words.end(), {"-o", "nowhere"});
      expect_refused(words, 2, part);
    };
    for (const char* value : {"0", "-0.5", "1.01"})
      refused("--budget", value, std::string("the budget must be above 0 and at most 1, got ") + value);
    refused("--saved", "1", "the budget must be above 0 and at most 1, got 0");
    refused("--saved", "-0.1", "the budget must be above 0 and at most 1, got 1.1");
    for (const char* value : {"nan", "inf", "much"}) {
      refused("--budget", value, std::string("--budget must be a number, got '") + value);
      refused("--saved", value, std::string("--saved must be a number, got '") + value);
    }
  }
}

}  // namespace
}  // namespace fathom
