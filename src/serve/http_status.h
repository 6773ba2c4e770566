// The text of replies: status lines, headers, and OpenAI's error object.
#pragma once

#include <string>
#include <string_view>

#include "serve/http.h"

namespace fathom {

const char* reason_phrase(int status);  // "OK", …; "" where the status is not known

// {"error": {"message", "type", "param", "code"}}; an empty `code` is null, param is null.
std::string error_object(int status, std::string_view message, std::string_view code);

// The status line and the headers, up to the empty line and without it; a Date is added. Control characters
// in a header become spaces: no value can begin a header.
std::string reply_head(int status, const HttpHeaders& headers);

}  // namespace fathom
