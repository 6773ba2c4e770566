#include "skip/adapter.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>

#include "base/mapped_file.h"
#include "io/atomic_file.h"
#include "io/safetensors.h"
#include "model/load.h"
#include "skip/tiny_model_test.h"
#include "support/test_paths.h"

namespace fathom {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

std::string fixture(const std::string& name) {
  return std::string(FATHOM_TEST_DATA) + "/models/" + name;
}

class AdapterTest : public testing::Test {
 protected:
  void SetUp() override {
    const testing::TestInfo* info = testing::UnitTest::GetInstance()->current_test_info();
    root_ = fs::temp_directory_path() / ("fathom_adapter_" + std::string(info->name()) + "_" +
                                         std::to_string(static_cast<int64_t>(::getpid())));
    fs::remove_all(root_);
    fs::create_directories(root_);
  }
  void TearDown() override { fs::remove_all(root_); }
  std::string at(const std::string& name) const { return (root_ / name).string(); }

  // A priced adapter with numbers everywhere, saved as `name`.
  void save(Rig& rig, const std::string& name) {
    float value = 0.1f;
    for (float* controller : rig.policy->controllers()) *controller = value += 0.0137f;
    save_adapter(rig.ctx, at(name), *rig.policy, rig.model, {"org/base", R"({"grid": [0.5, 0.1]})"});
  }
  Json config(const std::string& name) const {
    return Json::parse(read_text_file(at(name) + "/adapter_config.json"));
  }
  // The saved adapter with its config changed.
  std::string changed(const std::string& name, const std::function<void(Json&)>& change) {
    const std::string other = "changed" + std::to_string(++copies_);
    fs::copy(at(name), at(other), fs::copy_options::recursive);
    Json json = config(name);
    change(json);
    write_file_atomically(at(other) + "/adapter_config.json", json.dump());
    return at(other);
  }
  std::string with_tensors(const std::string& name,
                           const std::function<void(std::vector<NamedTensor>&)>& change) {
    const std::string other = "changed" + std::to_string(++copies_);
    fs::copy(at(name), at(other), fs::copy_options::recursive);
    std::vector<NamedTensor> tensors =
        SafetensorsFile::open(at(name) + "/adapter_model.safetensors")->tensors();
    change(tensors);
    write_safetensors(at(other) + "/adapter_model.safetensors", tensors);
    return at(other);
  }

  fs::path root_;
  int copies_ = 0;
};

std::string refusal(Rig& rig, const std::string& folder, bool force = false) {
  try {
    load_adapter(rig.ctx, folder, rig.model, force);
  } catch (const UserError& error) {
    EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos);
    return error.what();
  }
  return "";
}

#define EXPECT_REFUSED(folder, words) \
  EXPECT_NE(refusal(rig, folder).find(words), std::string::npos) << refusal(rig, folder)

TEST_F(AdapterTest, RoundTripIsBitExact) {
  for (const char* json : {R"({"name": "priced", "protect": [0], "price_decay": 0.7})",
                           R"({"name": "gate_skip", "two_stage": true})",
                           R"({"name": "harm_order", "kept": 0.6})", R"({"name": "skip_middle"})"}) {
    Rig rig(json);
    const std::string name = rig.policy->name();
    save(rig, name);
    Adapter back = load_adapter(rig.ctx, at(name), rig.model);
    EXPECT_EQ(back.policy->to_json(), rig.policy->to_json());
    EXPECT_EQ(back.extra.base_model, "org/base");
    EXPECT_EQ(Json::parse(back.extra.calibration), Json::parse(R"({"grid": [0.5, 0.1]})"));
    const auto ours = rig.policy->parameters(rig.model.config),
               theirs = back.policy->parameters(rig.model.config);
    ASSERT_EQ(ours.size(), theirs.size());
    for (size_t i = 0; i < ours.size(); ++i) {
      EXPECT_EQ(ours[i].name, theirs[i].name);
      EXPECT_EQ(std::memcmp(ours[i].tensor->raw(), theirs[i].tensor->raw(),
                            static_cast<size_t>(ours[i].tensor->nbytes())),
                0);
    }
    for (size_t i = 0; i < rig.policy->controllers().size(); ++i)
      EXPECT_EQ(*rig.policy->controllers()[i], *back.policy->controllers()[i]);
    const Rows rows = random_rows({13, 8});
    const Seen before = rig.fresh(rows);
    rig.policy = std::move(back.policy);
    EXPECT_EQ(rig.fresh(rows).logits, before.logits);
  }
}

TEST_F(AdapterTest, IsWhatPeftCallsAnAdapter) {
  Rig rig(R"({"name": "priced"})");
  save(rig, "a");
  const Json json = config("a");
  EXPECT_EQ(json["peft_type"], "FATHOM_SKIP");
  EXPECT_EQ(json["base_model_name_or_path"], "org/base");
  EXPECT_TRUE(json["target_modules"].is_array());
  const auto file = SafetensorsFile::open(at("a") + "/adapter_model.safetensors");
  for (const NamedTensor& tensor : file->tensors())
    EXPECT_TRUE(tensor.name.starts_with("base_model.model.priced.layers."));
  EXPECT_THROW(save(rig, "a"), UserError);  // never over another one
  save_calibration(at("a"), R"({"grid": [1]})");
  Json now = config("a");
  EXPECT_EQ(now["calibration"].dump(), R"({"grid":[1]})");
  now["calibration"] = json["calibration"];
  EXPECT_EQ(now, json);
  EXPECT_THROW(save_calibration(at("a"), "[]"), UserError);
  *rig.policy->parameters(rig.model.config)[0].tensor->data<float>() = NAN;
  EXPECT_THROW(save(rig, "b"), UserError);
  EXPECT_FALSE(fs::exists(at("b")));
}

// The same model in other files has the same print; another one has not.
TEST_F(AdapterTest, FingerprintIsOfTheModelNotOfTheFile) {
  Context ctx({.threads = 1});
  for (const char* name : {"llama3", "gemma2", "olmo2", "qwen3"}) {
    if (!fs::exists(fixture(name) + "/model.gguf")) continue;
    const Fingerprint hf = fingerprint(ctx, load_model(ctx, fixture(name)));
    const Fingerprint gguf = fingerprint(ctx, load_model(ctx, fixture(name) + "/model.gguf"));
    const Fingerprint quantised = fingerprint(ctx, load_model(ctx, fixture(name), {.dtype = DType::kQ8_0}));
    EXPECT_FALSE(hf.tokenizer.empty()) << name;
    EXPECT_EQ(hf.tokenizer, gguf.tokenizer) << name;
    for (const Fingerprint& other : {gguf, quantised}) {
      EXPECT_EQ(other.shape, hf.shape) << name;
      EXPECT_EQ(other.norms, hf.norms) << name;
      EXPECT_EQ(fingerprint_difference(hf, other), "") << name;
    }
  }
  Rig rig(R"({"name": "dense"})");
  const Fingerprint tiny = fingerprint(ctx, rig.model);
  Model model = rig.model;
  Tensor changed = host_tensor(std::vector<float>(32, 1.5f), {32});
  model.weights.blocks[3].ffn_norm = changed;
  EXPECT_NE(fingerprint_difference(tiny, fingerprint(ctx, model)).find("RMSNorm"), std::string::npos);
  Fingerprint other = tiny;
  other.tokenizer = "one";
  EXPECT_EQ(fingerprint_difference(other, tiny), "");  // this model has no tokenizer to compare
  Fingerprint third = other;
  third.tokenizer = "two";
  EXPECT_NE(fingerprint_difference(other, third).find("tokenizer"), std::string::npos);
}

TEST_F(AdapterTest, AnotherModelIsRefusedUnlessForced) {
  Rig rig(R"({"name": "priced"})");
  save(rig, "a");
  Rig other(R"({"name": "priced"})");
  other.model.weights.final_norm.data<float>()[3] += 0.5f;
  EXPECT_NE(refusal(other, at("a")).find("other RMSNorm weights"), std::string::npos);
  EXPECT_EQ(refusal(other, at("a"), true), "");
  ModelConfig wide = tiny_config();
  wide.ffn_width = 64;
  Rig third(R"({"name": "priced"})", wide);
  EXPECT_NE(refusal(third, at("a")).find("ffn_width 40"), std::string::npos);
  EXPECT_EQ(refusal(third, at("a"), true), "");  // no tensor of this method is as wide as an FFN
  ModelConfig deep = tiny_config();
  deep.layers = 5;
  deep.windows.assign(5, 0);
  Rig fourth(R"({"name": "priced"})", deep);
  const std::string deeper = refusal(fourth, at("a"), true);
  EXPECT_NE(deeper.find("cannot be forced onto this model: it was made for a model of width"),
            std::string::npos)
      << deeper;
}

TEST_F(AdapterTest, ConfigsThatAreNotOursAreRefused) {
  Rig rig(R"({"name": "priced"})");
  save(rig, "a");
  const auto refuse = [&](const std::function<void(Json&)>& change, const char* words) {
    const std::string folder = changed("a", change);
    EXPECT_REFUSED(folder, words);
  };
  EXPECT_REFUSED(at("nowhere"), "no adapter_config.json");
  refuse([](Json& j) { j["peft_type"] = "LORA"; }, "'r' must be a number");
  refuse([](Json& j) { j["peft_type"] = "IA3"; }, "FATHOM_SKIP");
  refuse([](Json& j) { j.erase("peft_type"); }, "peft_type");
  refuse([](Json& j) { j["format_version"] = 2; }, "format_version 2");
  refuse([](Json& j) { j["format_version"] = 1.5; }, "format_version");
  refuse([](Json& j) { j.erase("format_version"); }, "format_version");
  refuse([](Json& j) { j.erase("method"); }, "'method' must be an object");
  refuse([](Json& j) { j["method"]["name"] = "nothing"; }, "no method 'nothing'");
  refuse([](Json& j) { j["method"]["price_decoy"] = 1; }, "price_decay");
  refuse([](Json& j) { j["method"]["protect"] = Json::array({17}); }, "17");
  refuse([](Json& j) { j["controllers"].erase(0); }, "19 controllers, got 18");
  refuse([](Json& j) { j["controllers"][0] = "x"; }, "controller 0");
  refuse([](Json& j) { j["controllers"][0] = 1e300; }, "controller 0");
  refuse([](Json& j) { j["controllers"] = 1; }, "controllers");
  refuse([](Json& j) { j["fingerprint"] = 1; }, "fingerprint");
  refuse([](Json& j) { j["fingerprint"].erase("norms"); }, "norms");
  refuse([](Json& j) { j["calibration"] = 1; }, "calibration");
  refuse([](Json& j) { j["base_model_name_or_path"] = 1; }, "base_model_name_or_path");
  const std::string folder = changed("a", [](Json&) {});
  for (const std::string& text :
       std::vector<std::string>{"", "[]", "{\"a\": ", "\xff\xfe", "{\"peft_type\": "}) {
    write_file_atomically(folder + "/adapter_config.json", text);
    EXPECT_NE(refusal(rig, folder), "") << text.substr(0, 20);
  }
  // Deep enough to end the process of whoever walks it by recursion.
  std::string deep = config("a").dump();
  deep.insert(1, "\"x\": " + std::string(500000, '[') + std::string(500000, ']') + ", ");
  write_file_atomically(folder + "/adapter_config.json", deep);
  EXPECT_REFUSED(folder, "nested more than 32 deep");
}

TEST_F(AdapterTest, OldNamesAreRead) {
  Rig rig(R"({"name": "mind_skip", "units": "mlp", "pool": "full"})");
  save(rig, "saved");
  const std::string old = changed("saved", [](Json& json) {
    json["method"]["unit"] = json["method"]["units"].get<std::string>();
    json["method"].erase("units");
  });
  testing::internal::CaptureStderr();
  const Adapter adapter = load_adapter(rig.ctx, old, rig.model);
  const std::string said = testing::internal::GetCapturedStderr();
  EXPECT_NE(said.find("'unit' is now called 'units'"), std::string::npos) << said;
  EXPECT_EQ(adapter.policy->to_json(), rig.policy->to_json());
}

TEST_F(AdapterTest, TensorsThatDoNotFitAreRefused) {
  Rig rig(R"({"name": "priced"})");
  save(rig, "a");
  using Tensors = std::vector<NamedTensor>;
  const auto refuse = [&](const std::function<void(Tensors&)>& change, const char* words) {
    const std::string folder = with_tensors("a", change);
    EXPECT_REFUSED(folder, words);
  };
  refuse([](Tensors& t) { t.pop_back(); }, "missing");
  refuse([](Tensors& t) { t.push_back({"base_model.model.more", t[0].tensor}); }, "is no tensor of priced");
  refuse([](Tensors& t) { t[0].tensor = host_tensor({1, 2}, {1, 2}); }, "must be f32");
  refuse([](Tensors& t) { t[0].tensor = Tensor::owned(Device::kCpu, DType::kBF16, t[0].tensor.shape()); },
         "must be f32");
  refuse(
      [](Tensors& t) {
        t[0].tensor = host_tensor(std::vector<float>(static_cast<size_t>(t[0].tensor.numel()), INFINITY),
                                  t[0].tensor.shape());
      },
      "not finite");
  const std::string folder = with_tensors("a", [](Tensors&) {});
  fs::resize_file(folder + "/adapter_model.safetensors", 100);
  EXPECT_REFUSED(folder, "safetensors");
  fs::remove(folder + "/adapter_model.safetensors");
  EXPECT_NE(refusal(rig, folder), "");
  write_file_atomically(folder + "/adapter_model.bin", "pickle");
  EXPECT_REFUSED(folder, "pickle");
}

}  // namespace
}  // namespace fathom
