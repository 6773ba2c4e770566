#include "load/event_reader.h"

#include <strings.h>

#include <algorithm>
#include <cstdlib>

namespace fathom {
namespace {

// Returns "" where the head has no such field. `name` with its colon.
std::string header(const std::string& head, const char* name) {
  const std::string_view wanted(name);
  for (size_t at = head.find("\r\n"); at != std::string::npos; at = head.find("\r\n", at + 2)) {
    if (strncasecmp(head.c_str() + at + 2, name, wanted.size()) != 0) continue;
    const size_t begin = head.find_first_not_of(' ', at + 2 + wanted.size());
    return head.substr(begin, head.find("\r\n", begin) - begin);
  }
  return "";
}

}  // namespace

EventReader::EventReader(std::function<void(std::string_view)> event) : event_(std::move(event)) {}

void EventReader::take(std::string_view bytes) {
  input_ += bytes;
  while (step()) {
  }
}

// Returns false where more bytes are needed.
bool EventReader::step() {
  switch (state_) {
    case State::kHead:
      return read_head();
    case State::kChunkSize:
      return read_chunk_size();
    case State::kLength:
    case State::kChunk:
    case State::kUntilClose:
      return read_bytes();
    case State::kWhole:
      return false;
  }
  return false;
}

bool EventReader::read_head() {
  const size_t end = input_.find("\r\n\r\n");
  if (end == std::string::npos) return false;
  const std::string head = input_.substr(0, end + 2);
  input_.erase(0, end + 4);
  const size_t space = head.find(' ');
  status_ = space == std::string::npos ? -1 : std::atoi(head.c_str() + space);
  events_ = header(head, "Content-Type:").starts_with("text/event-stream");
  const std::string length = header(head, "Content-Length:");
  left_ = std::strtoull(length.c_str(), nullptr, 10);
  if (header(head, "Transfer-Encoding:") == "chunked")
    state_ = State::kChunkSize;
  else
    state_ = length.empty() ? State::kUntilClose : left_ > 0 ? State::kLength : State::kWhole;
  return true;
}

bool EventReader::read_chunk_size() {
  if (input_.starts_with("\r\n")) input_.erase(0, 2);  // the end of the chunk before
  const size_t end = input_.find("\r\n");
  if (end == std::string::npos) return false;
  left_ = std::strtoull(input_.c_str(), nullptr, 16);
  input_.erase(0, end + 2);
  state_ = left_ > 0 ? State::kChunk : State::kWhole;
  return true;
}

bool EventReader::read_bytes() {
  const bool counted = state_ != State::kUntilClose;
  const size_t bytes = counted ? std::min(left_, input_.size()) : input_.size();
  if (bytes == 0) return false;
  put(std::string_view(input_).substr(0, bytes));
  input_.erase(0, bytes);
  left_ -= counted ? bytes : 0;
  if (counted && left_ == 0) state_ = state_ == State::kChunk ? State::kChunkSize : State::kWhole;
  return true;
}

void EventReader::put(std::string_view bytes) {
  body_ += bytes;
  if (!events_) return;
  size_t begin = 0;
  for (size_t end = body_.find('\n'); end != std::string::npos; end = body_.find('\n', begin)) {
    const std::string_view line = std::string_view(body_).substr(begin, end - begin);
    if (line.starts_with("data: ")) event_(line.substr(6));
    begin = end + 1;
  }
  body_.erase(0, begin);
}

}  // namespace fathom
