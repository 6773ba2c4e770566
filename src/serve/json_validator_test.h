// JSON Schema as a validator sees it: the judge of the tests, which shares no code with the compiler.
#pragma once

#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>

namespace fathom {

class JsonValidator {
 public:
  explicit JsonValidator(const std::string& schema);
  bool operator()(const std::string& text) const;  // text that is not JSON throws

 private:
  std::shared_ptr<const nlohmann::ordered_json> schema_;
};

}  // namespace fathom
