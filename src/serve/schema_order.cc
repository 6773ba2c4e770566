#include "serve/schema_order.h"

#include <array>
#include <nlohmann/json.hpp>

#include "base/format.h"
#include "serve/api_error.h"

namespace fathom {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::array<const char*, 3> kPath{"response_format", "json_schema", "schema"};
constexpr int64_t kMostMembers = 16384;  // JSON in order looks through its members for each new one

}  // namespace

// Keeps the members that lead to the schema and drops the others as they are read.
std::string schema_in_order(const std::string& body) {
  int64_t members = 0;
  const auto keep = [&](int depth, Json::parse_event_t event, Json& value) {
    if (event != Json::parse_event_t::key) return true;
    const auto level = static_cast<std::size_t>(depth) - 1;
    if (level < kPath.size() && value != kPath[level]) return false;
    if (++members > kMostMembers)
      refuse_field("response_format",
                   fmt::format("response_format: a schema may have {} members, got more", kMostMembers));
    return true;
  };
  const Json kept = Json::parse(body, keep);
  return kept.at(kPath[0]).at(kPath[1]).at(kPath[2]).dump();
}

}  // namespace fathom
