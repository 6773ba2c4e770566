// What an offline batch asks: the lines of a file, and texts that begin from nothing.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "base/mapped_file.h"
#include "infer/fathom.h"
#include "model/model.h"
#include "text/chat_template.h"

namespace fathom {

struct BatchSourceOptions {
  std::string file = {};           // JSONL; "": none
  int64_t unconditional = 0;       // texts after the file's
  std::string start = {};          // what those begin with; "": BOS, or the token that ends texts
  Request defaults = {};           // of lines that say nothing else
  std::string chat_template = {};  // prompts become a user's message; "": they stay as they are
  std::string system = {};         // before that message
};

struct BatchItem {
  std::string id;  // the line's own, as JSON; "": none
  Request request;
};

// Each line is {"prompt": text} or {"messages": [{"role", "content"}, …]}, with id, max_tokens, seed, budget
// and temperature where they differ. Empty lines do not count.
class BatchSource {
 public:
  // The model outlives it.
  BatchSource(const Model& model, BatchSourceOptions options);

  int64_t size() const { return std::ssize(lines_) + options_.unconditional; }
  // A line that cannot be answered is a UserError that says why.
  BatchItem at(int64_t index) const;
  std::string where(int64_t index) const;  // "line 3", for messages
  std::string identity() const;            // of the file
  const Request& defaults() const { return options_.defaults; }

 private:
  struct Line {
    size_t begin, size;
    int64_t number;  // in the file, from 1
  };
  void find_lines();
  std::string_view text() const;
  void parse(const Line& line, BatchItem& item) const;
  std::vector<int32_t> encode(const std::string& prompt) const;
  std::vector<int32_t> start() const;

  const Model& model_;
  const BatchSourceOptions options_;
  std::shared_ptr<const MappedFile> file_;  // null: none
  std::vector<Line> lines_;
};

// The list "messages" of a conversation: each has a role that chats know and a text. Any other list is a
// UserError that names the message.
std::vector<ChatMessage> chat_messages_of(const nlohmann::json& list);

// The seed of request number `index` where it names none: the first one has the run's.
uint64_t batch_seed(uint64_t seed, int64_t index);

}  // namespace fathom
