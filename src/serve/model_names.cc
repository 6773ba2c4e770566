#include "serve/model_names.h"

#include <algorithm>

#include "base/format.h"
#include "serve/api_error.h"

namespace fathom {

void unknown_model(const std::string& name) {
  throw ApiError(404, fmt::format("the model '{}' does not exist here: see /v1/models", printable(name)),
                 "model", "model_not_found");
}

void check_model_name(const std::string& name, const std::vector<std::string>& names) {
  if (!name.empty() && std::find(names.begin(), names.end(), name) == names.end()) unknown_model(name);
}

}  // namespace fathom
