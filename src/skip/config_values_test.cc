// Every value of every method's config changes a number: what is inferred, trained, or remembered.
#include <fstream>
#include <iterator>

#include "skip/method_policy.h"
#include "skip/methods.h"
#include "skip/training_test.h"
#include "support/test_paths.h"

namespace fathom {
namespace {

struct Value {
  std::string method, field, value, with;  // with: what else must be set for the field to matter

  std::string json(bool changed) const {
    return R"({"name": ")" + method + "\"" + with + (changed ? ", \"" + field + "\": " + value : "") + "}";
  }
};

// Fields that matter only beside others, and values that cannot be guessed from the default.
struct Hint {
  const char *method, *field;
  const char* with = "";
  std::vector<std::string> values = {};  // empty: guessed
};
const Hint kHints[] = {
    {"mind_skip", "", R"(, "pool": "prefix:4")"},
    {"mind_skip", "pool", R"(, "pool": "prefix:4")", {R"("prefix:3")", R"("prompt")", R"("full")"}},
    {"mind_skip", "layers", R"(, "pool": "prefix:4")", {"[0, 3]"}},
    {"mind_skip", "router_input", R"(, "pool": "prefix:4", "units": "mlp")"},
    {"skip_middle", "mean_weight", R"(, "controller": "sparsity")"},
    {"skip_middle", "variance_weight", R"(, "controller": "sparsity_variance")"},
    {"skip_middle", "l2_weight", R"(, "controller": "sparsity_variance_l2")"},
    {"skip_middle", "tolerance", "", {"0.4"}},
    {"skip_middle", "short_steps", R"(, "controller": "proportional_derivative")", {"3"}},
    {"skip_middle", "long_steps", R"(, "controller": "proportional_derivative")", {"2"}},
    {"gate_skip", "copy_kv", R"(, "skip": "attention")"},
    {"skip_layer", "units", "", {R"("mlp")"}},
    {"wide_ffn", "units", "", {R"("block")"}},
    {"attention_drop", "count", "", {"2"}},
    {"attention_drop", "drop_share", "", {"0.75"}},
    {"attention_drop", "drop", "", {"[0]"}},
    {"short_gpt", "count", "", {"2"}},
    {"short_gpt", "drop_share", "", {"0.75"}},
    {"short_gpt", "drop", "", {"[0, 1]"}},
    {"harm_order", "cost_context", "", {"1"}},
    {"harm_order", "drop", "", {"[0, 7]"}},
    {"harm_order", "order", "", {"[7, 6, 5, 4, 3, 2, 1, 0]"}},
    {"harm_order",
     "counted_kv",
     R"(, "kept": 0.5, "cost_context": 16, "order": [3, 6, 1, 0, 2, 4, 5, 7])",
     {R"("project")"}},
    {"mixture_of_depths", "start", "", {R"("open")", R"("released")"}},
    {"harm_order", "search", R"(, "kept": 0.03)"},  // six of the eight units go
    {"harm_order", "greedy_until", R"(, "search": "greedily", "kept": 0.95, "share_end": 0.03)", {"0.02"}},
    {"calm", "threshold", "", {"0.02"}},
    {"calm", "exit_every", R"(, "threshold": 0.02)", {"2"}},
    {"free", "threshold", "", {"0.02"}},
    {"free", "exit_layer", "", {"2"}},
    {"nested", "lists", "", {"[0.5]"}},
    {"nested", "layer", "", {"2"}},
    {"nested", "band", "", {"0", "2"}},
    {"nested", "centre_block", "", {"4"}},
    {"nested", "sequence_spread", "", {"1"}},
    {"nested", "row_spread", "", {"0"}},
    {"nested", "regression_rows", "", {"5"}},
    {"nested", "search",
     R"(, "layer": 0, "cost_context": 16, "lists": [0.95, 0.85, 0.75, 0.65, 0.5, 0.35, 0.2])"},
    {"nested", "cost_context", "", {"1"}},
    {"nested", "seed", R"(, "choice": "random")"},
    {"nested", "order", "", {"[7, 6, 5, 4, 3, 2]"}},
    {"layer_skip", "loss_every", "", {"2"}},
};

// Of the options of every method (shown on gate_skip), those that this folder acts on.
const Value kOptions[] = {
    {"gate_skip", "objective", R"("distill")", ""},
    {"gate_skip", "share", R"("falling")", ""},
    {"gate_skip", "share", R"("sampled")", ""},
    {"gate_skip", "share_start", "0.4", R"(, "share": "falling")"},
    {"gate_skip", "share_end", "0.4", ""},
    {"gate_skip", "share_grid", "[0.3]", R"(, "share": "sampled")"},
    {"gate_skip", "protect", "[1]", ""},
    {"gate_skip", "init", R"("harm_order")", ""},
    {"gate_skip", "skipped_kv", R"("copy")", ""},
    {"gate_skip", "skipped_kv", R"("hide")", ""},
    {"gate_skip", "train_skipped_kv", R"("copy")", ""},
    {"gate_skip", "train_skipped_kv", R"("hide")", ""},
    {"skip_middle", "skipped_kv", R"("project")", ""},
    {"skip_middle", "train_skipped_kv", R"("project")", ""},
    {"mind_skip", "st_skipped", R"("drop")", R"(, "level": "token")"},
    {"skip_middle", "blend", R"("gate_skip")", ""},
    {"gate_skip", "score", R"("random")", ""},
    {"gate_skip", "decide", R"("random")", R"(, "score": "random")"},
    {"skip_layer", "objective_of", R"("random")", ""},
};

std::string number(double value) {
  return std::to_string(value);
}

// Other values than the field has.
std::vector<std::string> guesses(const Field& field) {
  const auto of_enum = [](const EnumField& value) {
    std::vector<std::string> others;
    for (size_t i = 0; i < value.names.size(); ++i) {
      if (i != *value.value) others.push_back("\"" + std::string(value.names[i]) + "\"");
    }
    return others;
  };
  if (const auto* e = std::get_if<EnumField>(&field.value)) return of_enum(*e);
  if (const auto* b = std::get_if<bool*>(&field.value)) return {**b ? "false" : "true"};
  if (const auto* f = std::get_if<float*>(&field.value))
    return {number(0.5 * static_cast<double>(**f) + 0.13)};
  if (const auto* i = std::get_if<int32_t*>(&field.value)) return {std::to_string(**i / 2 + 1)};
  if (const auto* i = std::get_if<int64_t*>(&field.value)) return {std::to_string(**i / 2 + 1)};
  if (const auto* i = std::get_if<uint64_t*>(&field.value)) return {std::to_string(**i + 1)};
  return {};
}

std::vector<Value> config_values() {
  std::vector<Value> all(std::begin(kOptions), std::end(kOptions));
  for (const MethodEntry& entry : methods()) {
    const std::unique_ptr<Method> method = entry.make();
    for (const Field& field : method->fields()) {
      std::string with;
      std::vector<std::string> values = guesses(field);
      for (const Hint& hint : kHints) {
        if (entry.name != hint.method || (*hint.field && field.name != hint.field)) continue;
        with = hint.with;
        if (!hint.values.empty()) values = hint.values;
      }
      EXPECT_FALSE(values.empty()) << entry.name << "." << field.name << " needs a hint";
      for (const std::string& value : values) {
        all.push_back({std::string(entry.name), field.name, value, with});
      }
    }
  }
  return all;
}

TEST(ConfigValues, EachChangesANumber) {
  std::map<std::string, std::vector<float>> bases;
  for (const Value& value : config_values()) {
    std::vector<float>& base = bases[value.json(false)];
    try {
      if (base.empty()) base = numbers_of(value.json(false));
      EXPECT_TRUE(numbers_of(value.json(true)) != base) << value.json(true);
    } catch (const UserError& error) {
      ADD_FAILURE() << value.json(true) << ": " << error.what();
    }
  }
}

std::string rows_of(const std::vector<Field>& fields) {
  std::string rows;
  for (const Field& field : fields) {
    const std::string value = field_text(field);
    EXPECT_FALSE(field.help.empty()) << field.name;
    rows +=
        "| `" + field.name + "` | " + (value.empty() ? "" : "`" + value + "`") + " | " + field.help + " |\n";
  }
  return rows;
}

// docs/methods.md has a section for every method that has keys, with each one's help and what it is unless
// set.
TEST(ConfigValues, EachIsDocumented) {
  std::ifstream file(FATHOM_TEST_DATA "/../../docs/methods.md");
  const std::string docs{std::istreambuf_iterator<char>(file), {}};
  SkipOptions options;
  std::string missing;
  const auto expect_section = [&](const std::string& title, const std::string& rows) {
    const std::string section = "### " + title + "\n\n| key | unless set | |\n|---|---|---|\n" + rows;
    if (!rows.empty() && docs.find(section) == std::string::npos) missing += section + "\n";
  };
  expect_section("Of every method", rows_of(fields_of(options)));
  for (const MethodEntry& entry : methods())
    expect_section("`" + std::string(entry.name) + "`", rows_of(entry.make()->fields()));
  EXPECT_EQ(missing, "") << "these sections belong into docs/methods.md";
}

}  // namespace
}  // namespace fathom
