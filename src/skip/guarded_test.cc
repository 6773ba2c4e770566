// Every method on the guarded device: what it infers, trains and remembers is the CPU's bit for bit, and host
// code that touches the device's memory ends the test.
#include "skip/methods.h"
#include "skip/training_test.h"

namespace fathom {
namespace {

std::vector<std::string> guarded_recipes() {
  std::vector<std::string> all;
  for (const MethodEntry& method : methods()) {
    const char* extra = method.name == "mind_skip" ? R"(, "pool": "prefix:4")" : "";
    all.push_back(R"({"name": ")" + std::string(method.name) + "\"" + extra + "}");
    all.push_back(R"({"name": ")" + std::string(method.name) +
                  R"(", "share": "falling", "share_end": 0.5, "objective": "distill")" + extra + "}");
  }
  for (const char* more :
       {R"({"name": "mind_skip", "level": "token", "units": "block"})",
        R"({"name": "mind_skip", "pool": "prompt", "init": "harm_order", "bias": true})",
        R"({"name": "priced", "init": "harm_order", "share_end": 0.6})",
        R"({"name": "priced", "st_skipped": "drop", "share_end": 0.6})",
        R"({"name": "gate_skip", "init": "harm_order", "copy_kv": true})",
        R"({"name": "gate_skip", "two_stage": true, "net": "mlp"})",
        R"({"name": "gate_skip", "sparsity": "kl", "share_end": 0.5})",
        R"({"name": "nested", "init": "harm_order", "ridge": 0.1, "regression_rows": 5})",
        R"({"name": "nested", "centre_block": 4, "alpha": 0.5, "protect_rows": 2})",
        R"({"name": "nested", "choice": "random"})", R"({"name": "random", "keyed_by": "text"})",
        R"({"name": "skip_middle", "controller": "adaptive"})",
        R"({"name": "calm", "confidence": "similarity"})", R"({"name": "free", "state_weight": 0.5})",
        R"({"name": "skip_layer", "units": "both", "router": "sigmoid"})"})
    all.emplace_back(more);
  return all;
}

class EveryMethod : public ::testing::TestWithParam<std::string> {};

TEST_P(EveryMethod, IsTheCpusOnTheGuardedDevice) {
  const std::vector<float> cpu = numbers_of(GetParam()), guarded = numbers_of(GetParam(), Device::kGuarded);
  ASSERT_EQ(cpu.size(), guarded.size());
  for (size_t i = 0; i < cpu.size(); ++i)
    ASSERT_EQ(std::bit_cast<uint32_t>(cpu[i]), std::bit_cast<uint32_t>(guarded[i])) << "number " << i;
}

INSTANTIATE_TEST_SUITE_P(Guarded, EveryMethod, ::testing::ValuesIn(guarded_recipes()));

}  // namespace
}  // namespace fathom
