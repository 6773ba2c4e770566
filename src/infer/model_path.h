// What the name of a model may be, as files.
#pragma once

#include <string>

namespace fathom {

struct ModelFiles {
  std::string model;      // file or folder
  std::string tokenizer;  // "": what the model's own files hold; llama2.c: tokenizer.bin beside it
};

// A path; `org/name` in the local Hugging Face cache; or `builtin`, the model that ships. What cannot be
// found is a UserError that says where it was looked for.
ModelFiles find_model(const std::string& name);

// Where a model keeps the method it was trained with: FOLDER/skip, FILE.skip for FILE.gguf.
std::string own_method_place(const std::string& model);
// The same if it is there, otherwise "".
std::string own_method(const std::string& model);

}  // namespace fathom
