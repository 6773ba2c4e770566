#include "eval/harness_golden_test.h"

#include <fstream>
#include <nlohmann/json.hpp>

namespace fathom {

const nlohmann::json& harness_goldens() {
  static const nlohmann::json goldens = [] {
    std::ifstream file(FATHOM_TEST_DATA "/eval/harness.json");
    return nlohmann::json::parse(file);
  }();
  return goldens;
}

}  // namespace fathom
