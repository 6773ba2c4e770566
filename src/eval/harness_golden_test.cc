#include "eval/harness_golden_test.h"

#include <fstream>
#include <nlohmann/json.hpp>

#include "support/test_paths.h"

namespace fathom {
namespace {

nlohmann::json read(const char* path) {
  std::ifstream file(path);
  return nlohmann::json::parse(file);
}

}  // namespace

const nlohmann::json& harness_goldens() {
  static const nlohmann::json goldens = read(FATHOM_TEST_DATA "/eval/harness.json");
  return goldens;
}

const nlohmann::json& task_goldens() {
  static const nlohmann::json goldens = read(FATHOM_TEST_DATA "/eval/tasks.json");
  return goldens;
}

}  // namespace fathom
