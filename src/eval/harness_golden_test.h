// tests/data/eval/harness.json (tools/make_eval_goldens.py).
#pragma once

#include <fstream>
#include <nlohmann/json.hpp>

namespace fathom {

inline nlohmann::json harness_goldens() {
  std::ifstream file(FATHOM_TEST_DATA "/eval/harness.json");
  return nlohmann::json::parse(file);
}

}  // namespace fathom
