#include "serve/api_error.h"

#include <nlohmann/json.hpp>

namespace fathom {
namespace {

const char* type_of(int status) {
  switch (status) {
    case 404:
      return "not_found_error";
    case 429:
      return "rate_limit_error";
    case 500:
      return "server_error";
    case 503:
      return "unavailable_error";
    case 504:
      return "timeout_error";
    default:
      return "invalid_request_error";
  }
}

}  // namespace

void refuse_field(const std::string& field, const std::string& message) {
  throw ApiError(400, message, field);
}

std::string error_json(const ApiError& error) {
  const auto or_null = [](const std::string& text) {
    return text.empty() ? nlohmann::ordered_json() : nlohmann::ordered_json(text);
  };
  nlohmann::ordered_json inner;
  inner["message"] = error.what();
  inner["type"] = type_of(error.status());
  inner["param"] = or_null(error.param());
  inner["code"] = or_null(error.code());
  const nlohmann::ordered_json whole{{"error", std::move(inner)}};
  return whole.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace fathom
