#include "serve/fake_reply_test.h"

#include <nlohmann/json.hpp>

namespace fathom {

nlohmann::json FakeReply::json() const {
  return nlohmann::json::parse(body);
}

std::vector<std::string> FakeReply::events() const {
  std::vector<std::string> list;
  size_t at = 0;
  while (at < body.size()) {
    const size_t end = body.find("\n\n", at);
    if (end == std::string::npos || body.compare(at, 6, "data: ") != 0) {
      ADD_FAILURE() << "no event at byte " << at << " of " << body;
      return list;
    }
    list.push_back(body.substr(at + 6, end - at - 6));
    EXPECT_EQ(list.back().find('\n'), std::string::npos);
    at = end + 2;
  }
  return list;
}

std::vector<nlohmann::json> FakeReply::chunks() const {
  std::vector<std::string> all = events();
  if (all.empty() || all.back() != "[DONE]") {
    ADD_FAILURE() << "the last event is no [DONE]: " << body;
    return {};
  }
  all.pop_back();
  std::vector<nlohmann::json> chunks;
  for (const std::string& event : all) chunks.push_back(nlohmann::json::parse(event));
  return chunks;
}

}  // namespace fathom
