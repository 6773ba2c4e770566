#include "serve/schema_order.h"

#include <gtest/gtest.h>

#include "serve/api_error.h"
#include "serve/api_request.h"

namespace fathom {
namespace {

std::string body_with(const std::string& schema, const std::string& more = "") {
  return R"({"a": {"schema": 1}, "response_format": {"x": [{"y": 1}], "json_schema": {"name": "n", "schema": )" +
         schema + R"(}, "z": {}}, "messages": [{"role": "user", "schema": {}}])" + more + "}";
}

TEST(SchemaOrder, MembersStayAsTheyWereWritten) {
  const std::string schema =
      R"({"type":"object","properties":{"z":{"type":"string"},"a":{"enum":[{"c":1,"b":2}]},"m":{}}})";
  EXPECT_EQ(schema_in_order(body_with(schema)), schema);
  EXPECT_EQ(schema_in_order(body_with("true")), "true");
  EXPECT_EQ(schema_in_order(body_with("{}")), "{}");
}

TEST(SchemaOrder, TheLastOfEqualMembersCounts) {
  const std::string again = R"(, "response_format": {"json_schema": {"schema": {"b": 1, "a": 2}}})";
  EXPECT_EQ(schema_in_order(body_with("{\"c\": 1}", again)), R"({"b":1,"a":2})");
}

TEST(SchemaOrder, RequestsOfBothKindsKeepIt) {
  const std::string schema = R"({"properties":{"z":{},"a":{}}})";
  const std::string format =
      R"("response_format": {"type": "json_schema", "json_schema": {"schema": )" + schema + "}}}";
  EXPECT_EQ(parse_completion_request(R"({"prompt": "a", )" + format, {}).format.schema, schema);
  const std::string chat = R"({"messages": [{"role": "user", "content": "a"}], )" + format;
  EXPECT_EQ(parse_chat_request(chat, {}).format.schema, schema);
}

TEST(SchemaOrder, MembersAreBounded) {
  std::string many = "{";
  for (int i = 0; i < 20000; ++i) many += (i ? ",\"" : "\"") + std::to_string(i) + "\":1";
  EXPECT_THROW(schema_in_order(body_with(many + "}")), ApiError);
  std::string lists = "{\"enum\":[0";  // the parser's time grows with their square
  for (int i = 0; i < 20000; ++i) lists += ",[]";
  EXPECT_THROW(schema_in_order(body_with(lists + "]}")), ApiError);
  std::string numbers = "{\"enum\":[0";
  for (int i = 0; i < 20000; ++i) numbers += ",1";
  EXPECT_THROW(schema_in_order(body_with(numbers + "]}")), ApiError);
  const std::string outside = R"(, "other": )" + many + "}";
  EXPECT_EQ(schema_in_order(body_with("{\"c\":1}", outside)), "{\"c\":1}");
}

}  // namespace
}  // namespace fathom
