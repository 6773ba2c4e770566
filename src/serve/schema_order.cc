#include "serve/schema_order.h"

#include <array>
#include <nlohmann/json.hpp>

#include "base/format.h"
#include "serve/api_error.h"

namespace fathom {
namespace {

using OrderedJson = nlohmann::ordered_json;

constexpr std::array<const char*, 3> kPath{"response_format", "json_schema", "schema"};
// JSON in order looks through its members for each new one, and the parser through a list at each end of a
// list or object in it.
constexpr int64_t kMostMembers = 8192;
constexpr int64_t kMostValues = 16384;

void bound(int64_t count, int64_t most, const char* what) {
  if (count > most)
    refuse_field("response_format",
                 fmt::format("response_format: a schema may have {} {}, got more", most, what));
}

}  // namespace

// Keeps the members that lead to the schema and drops the others as they are read.
std::string schema_in_order(const std::string& body) {
  using Event = OrderedJson::parse_event_t;
  int64_t members = 0, values = 0;
  bool inside = false;  // the schema
  const auto keep = [&](int depth, Event event, OrderedJson& value) {
    const auto level = static_cast<std::size_t>(depth) - 1;
    if (event == Event::key && level < kPath.size()) {
      const bool leads = value == kPath[level];
      inside = leads && level + 1 == kPath.size();
      return leads;
    }
    const bool grows = event == Event::key || event == Event::object_start || event == Event::array_start;
    if (inside && grows) bound(++members, kMostMembers, "members, lists and objects");
    if (inside && event == Event::value) bound(++values, kMostValues, "texts and numbers");
    return true;
  };
  const OrderedJson kept = OrderedJson::parse(body, keep);
  return kept.at(kPath[0]).at(kPath[1]).at(kPath[2]).dump();
}

}  // namespace fathom
