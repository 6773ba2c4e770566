// The reply to one HTTP request, from its bytes as they come: status, headers, chunks, server-sent events.
#pragma once

#include <functional>
#include <string>
#include <string_view>

namespace fathom {

class EventReader {
 public:
  // `event` gets what follows "data: ", without the line's end.
  explicit EventReader(std::function<void(std::string_view)> event);

  void take(std::string_view bytes);

  int status() const { return status_; }  // 0: the head is not there yet
  bool whole() const { return state_ == State::kWhole; }
  const std::string& body() const { return body_; }  // of a reply that is no stream

 private:
  enum class State { kHead, kLength, kChunk, kChunkSize, kUntilClose, kWhole };

  bool step();
  bool read_head();
  bool read_chunk_size();
  bool read_bytes();
  void put(std::string_view bytes);

  std::function<void(std::string_view)> event_;
  State state_ = State::kHead;
  int status_ = 0;
  bool events_ = false;
  size_t left_ = 0;    // bytes of the chunk or of the body
  std::string input_;  // that is not read yet
  std::string body_;   // of a stream: the line that is not whole yet
};

}  // namespace fathom
