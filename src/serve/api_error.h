// A request that is not answered as it was meant: the status and OpenAI's error object.
#pragma once

#include <string>

#include "base/error.h"

namespace fathom {

class ApiError : public UserError {
 public:
  // `param`: the field that is wrong, or ""; `code`: a word for programs, or "".
  ApiError(int status, const std::string& message, std::string param = "", std::string code = "")
      : UserError(message), status_(status), param_(std::move(param)), code_(std::move(code)) {}

  int status() const { return status_; }
  const std::string& param() const { return param_; }
  const std::string& code() const { return code_; }

 private:
  int status_;
  std::string param_, code_;
};

// A 400 that names the field.
[[noreturn]] void refuse_field(const std::string& field, const std::string& message);

// {"error": {"message", "type", "param", "code"}}
std::string error_json(const ApiError& error);

}  // namespace fathom
