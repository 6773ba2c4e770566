#pragma once

#include <string>
#include <string_view>

namespace fathom {

std::string to_base64(std::string_view bytes);
// `where` starts the message when `text` is no base64.
std::string from_base64(std::string_view text, const std::string& where);

}  // namespace fathom
