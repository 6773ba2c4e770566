// The order of a schema's members, which a parsed body has lost.
#pragma once

#include <string>

namespace fathom {

// response_format.json_schema.schema of a body, as JSON with its members in the order in which the client
// wrote them. `body` is JSON that holds it. More members than a schema may have are an ApiError.
std::string schema_in_order(const std::string& body);

}  // namespace fathom
