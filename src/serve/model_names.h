// The names that a request may give the model.
#pragma once

#include <string>
#include <vector>

namespace fathom {

[[noreturn]] void unknown_model(const std::string& name);  // 404
// An empty name is the model that is served.
void check_model_name(const std::string& name, const std::vector<std::string>& names);

}  // namespace fathom
