#include "eval/harness_golden_test.h"

#include <fstream>
#include <nlohmann/json.hpp>

namespace fathom {

nlohmann::json harness_goldens() {
  std::ifstream file(FATHOM_TEST_DATA "/eval/harness.json");
  return nlohmann::json::parse(file);
}

}  // namespace fathom
