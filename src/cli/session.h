// A model that is ready to run, from the options that verbs share.
#pragma once

#include "cli/options.h"
#include "infer/chat_encoding.h"
#include "infer/model_runtime.h"

namespace fathom {

LoadRequest load_request(const ModelOptions& options);

class Session : public ModelRuntime {
 public:
  // Options that make no sense together are a UsageError.
  explicit Session(const ModelOptions& options);

  const Tokenizer& tokenizer() const;  // none: a UserError that says what to give
};

// --chat-template: chat_template_of(), with errors that name the option.
ChatTemplate chat_template_option(const Session& session, const std::string& name);

// The error with the command that makes the table. `adapter`: "": the model's own method.
[[noreturn]] void fail_without_calibration(const NoCalibration& error, const std::string& model,
                                           const std::string& adapter);

// The whole of a text file, or of stdin for "-".
std::string read_input(const std::string& path);

// A warning where a text that is to be tokenized is no UTF-8: a vocabulary without bytes loses them.
void warn_about_bytes(const std::string& text);

// A JSON list of token ids, each in [0, vocab). A UserError names the file and the first entry that is not.
std::vector<int32_t> read_ids(const std::string& path, int64_t vocab);

}  // namespace fathom
