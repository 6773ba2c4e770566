// Answers that are JSON: masks over a vocabulary (Request::mask).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "infer/fathom.h"
#include "text/tokenizer.h"

namespace fathom {

class JsonMaskMaker;  // json_mask.cc

// Makes masks. Its functions may be called from any thread; what they return outlives it.
class JsonMasks {
 public:
  using Factory = std::function<std::unique_ptr<TokenMask>()>;

  // `end_ids`: the tokens that end an answer, which may come exactly when the text is complete. Special
  // tokens never come. A vocabulary in which some ASCII character cannot be written is a UserError.
  JsonMasks(const Tokenizer& tokenizer, std::vector<int32_t> end_ids);
  ~JsonMasks();

  Factory any_object() const;
  // A schema that compile_json_schema refuses is a UserError. The last few schemas stay compiled.
  Factory schema(const std::string& schema_json) const;

 private:
  std::shared_ptr<JsonMaskMaker> maker_;
};

}  // namespace fathom
