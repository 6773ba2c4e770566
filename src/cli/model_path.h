// What -m may be, as files.
#pragma once

#include <string>

namespace fathom {

struct ModelFiles {
  std::string model;      // file or folder
  std::string tokenizer;  // "": what the model's own files hold
};

// A path; `org/name` in the local Hugging Face cache; or `builtin`, the model that ships. What cannot be
// found is a UserError that says where it was looked for.
ModelFiles find_model(const std::string& name);

}  // namespace fathom
