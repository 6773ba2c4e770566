// The invariants over every value of every enumeration and switch of every method, alone and in pairs. The
// cases come from the field lists, so that a new key is tested without being named here.
#include <gtest/gtest.h>

#include "base/error.h"
#include "skip/methods.h"
#include "skip/tiny_model_test.h"

namespace fathom {
namespace {

struct Setting {
  std::string field, value;  // value: as JSON has it
};
using Settings = std::vector<Setting>;

// Read by training alone: no pass at inference can tell.
constexpr std::string_view kOfTraining[] = {"train_skipped_kv", "objective", "share",      "st_skipped",
                                            "frozen_backbone",  "sparsity",  "controller", "loss",
                                            "detached"};

// What is refused, by name: the words of the refusal.
constexpr const char* kRefusals[] = {
    "two_stage needs placement after",
    "a unit that every row skips makes no keys and values",
    "init harm_order sets the routers' biases",
};

std::string json_of(const std::string& method, const Settings& settings) {
  std::string json = R"({"name": ")" + method + "\"";
  if (method == "mind_skip") json += R"(, "pool": "prefix:3", "layers": [0, 1, 2, 3])";
  for (const Setting& each : settings) json += ", \"" + each.field + "\": " + each.value;
  return json + "}";
}

// Every other value than the default one.
Settings other_values(const std::string& method) {
  Settings all;
  const auto policy = MethodPolicy::from_json(json_of(method, {}), "test");
  for (const Field& field : policy->fields()) {
    if (const auto* e = std::get_if<EnumField>(&field.value)) {
      for (size_t i = 0; i < e->names.size(); ++i) {
        if (i != *e->value) all.push_back({field.name, "\"" + std::string(e->names[i]) + "\""});
      }
    } else if (const auto* b = std::get_if<bool*>(&field.value)) {
      all.push_back({field.name, **b ? "false" : "true"});
    }
  }
  return all;
}

bool trains_only(const Setting& setting) {
  return std::find(std::begin(kOfTraining), std::end(kOfTraining), setting.field) != std::end(kOfTraining);
}

std::vector<Settings> cases_of(const std::string& method) {
  const Settings values = other_values(method);
  std::vector<Settings> cases{{}};
  for (size_t i = 0; i < values.size(); ++i) {
    cases.push_back({values[i]});
    for (size_t j = i + 1; j < values.size(); ++j) {
      const bool same = values[i].field == values[j].field;
      if (!same && !trains_only(values[i]) && !trains_only(values[j]))
        cases.push_back({values[i], values[j]});
    }
  }
  return cases;
}

// I2: the rows that ran, masked; and nobody.
void expect_masked_equals_physical(Rig& rig, const Rows& rows) {
  std::vector<std::vector<uint8_t>> ran = rig.fresh(rows).kept;
  for (const bool nobody : {false, true}) {
    if (nobody) {
      for (auto& unit : ran) std::fill(unit.begin(), unit.end(), uint8_t{0});
    }
    const std::vector<RowSet> replay = owned_rows(ran);
    const Seen physical = rig.fresh(rows, {.replay = &replay}),
               masked = rig.fresh(rows, {.masked = true, .replay = &replay});
    for (size_t i = 0; i < physical.logits.size(); ++i)
      ASSERT_NEAR(physical.logits[i], masked.logits[i], 1e-5f * (1 + std::abs(masked.logits[i])))
          << (nobody ? "nobody runs" : "as decided") << ", number " << i;
  }
}

// I3 and I4: all sequences in one pass, and each alone, row by row, in another slot.
void expect_rows_alone_change_no_bit(Rig& rig, const Rows& rows, int32_t sequences) {
  ByRow whole, whole_kept, alone, alone_kept;
  TinyRun together(rig, sequences);
  collect(rows, together.pass(rows), whole, whole_kept);
  for (int32_t s = 0; s < sequences; ++s) {
    TinyRun session(rig, 3);
    for (BatchRow row : rows) {
      if (row.sequence != s) continue;
      row.sequence = 2;
      collect({row}, session.pass({row}), alone, alone_kept);
    }
  }
  EXPECT_TRUE(alone_kept == whole_kept) << "decisions";
  EXPECT_TRUE(alone == whole) << "logits";
}

class Variants : public testing::TestWithParam<std::string> {};

TEST_P(Variants, KeepTheInvariants) {
  const Rows rows = random_rows({9, 1, 7});
  for (const Settings& settings : cases_of(GetParam())) {
    const std::string json = json_of(GetParam(), settings);
    SCOPED_TRACE(json);
    try {
      Rig rig(json);
      for (const float budget : {0.0f, 0.5f}) {  // by its own rule, then at thresholds
        if (budget > 0) rig.calibrate(budget);
        expect_masked_equals_physical(rig, rows);
        if (!rig.policy->needs_whole_prompt()) expect_rows_alone_change_no_bit(rig, rows, 3);
      }
    } catch (const UserError& error) {
      const std::string what = error.what();
      EXPECT_TRUE(std::any_of(std::begin(kRefusals), std::end(kRefusals), [&](const char* words) {
        return what.find(words) != std::string::npos;
      })) << what;
    }
    if (HasFatalFailure()) return;
  }
}

std::vector<std::string> names() {
  std::vector<std::string> all;
  for (const MethodEntry& method : methods()) all.emplace_back(method.name);
  return all;
}

INSTANTIATE_TEST_SUITE_P(All, Variants, testing::ValuesIn(names()),
                         [](const auto& each) { return each.param; });

}  // namespace
}  // namespace fathom
