// Lists, dicts and strings as Python prints them: some datasets keep such text in a field.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string_view>

namespace fathom {

// `text`: valid UTF-8. Anything else than lists, dicts with strings as keys, and strings, at most 8 deep, is
// a UserError that says where it stands.
nlohmann::json parse_python_literal(std::string_view text);

}  // namespace fathom
