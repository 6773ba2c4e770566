// The bytes of a connection become requests, or a fault with its HTTP status. Pure: no sockets and no clock.
//
// Requests are parsed here and not by Beast: version 1.74 ignores transfer codings that it does not know, so
// that the body of a request with `Transfer-Encoding: gzip` would be read as the next request. What a proxy
// before us and we could read in two ways is refused (RFC 9112, with no leniency).
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "serve/http.h"

namespace fathom {

struct HttpLimits {
  std::size_t header_bytes =
      16 << 10;  // request line and headers; also trailers, and chunk extensions in sum
  std::size_t headers = 100;
  std::size_t body_bytes = 4 << 20;
};

struct HttpFault {
  int status = 0;
  std::string message;
};

struct RequestHead {
  std::string method;
  std::string path, query;  // of the target, around the first '?'; not decoded
  int minor = 1;            // HTTP/1.minor
  HttpHeaders headers;      // names in lower case
  bool chunked = false;
  uint64_t length = 0;  // of a body that is not chunked
  bool keep_alive = true;
  bool expects_continue = false;

  bool has_body() const { return chunked || length > 0; }
  const std::string* find(std::string_view name) const;  // the first of that name (lower case), or null
};

std::string ascii_lower(std::string_view ascii);
// Tabs and spaces around the text are left out.
std::string_view trimmed(std::string_view text);

// Reads one request after the other.
class RequestReader {
 public:
  enum class Step : uint8_t { kHead, kBody, kWhole, kFault };

  explicit RequestReader(const HttpLimits& limits) : limits_(limits) {}

  // Takes what belongs to this request from the front of `bytes` and returns how many bytes that is. It stops
  // behind the head, so that the head can be judged before its body is read, and behind the body. The rest of
  // `bytes` is to be handed in again.
  std::size_t take(std::string_view bytes);

  Step step() const;
  bool started() const { return started_; }  // a byte of this request has come
  const RequestHead& head() const { return head_; }
  const HttpFault& fault() const { return fault_; }
  std::size_t body_size() const { return body_.size(); }  // so far
  // The body of a whole request, once.
  std::string take_body() { return std::move(body_); }
  // Makes ready for the next request.
  void restart();

 private:
  enum class Phase : uint8_t {
    kRequestLine,
    kHeaders,
    kFixedBody,
    kChunkSize,
    kChunkData,
    kChunkEnd,
    kTrailers,
    kWhole,
    kFault,
  };

  bool in_head() const { return phase_ == Phase::kRequestLine || phase_ == Phase::kHeaders; }
  std::size_t take_line(std::string_view bytes);
  std::size_t take_data(std::string_view bytes);
  const char* line_fault(char c) const;
  void count_line_byte();
  void end_line(std::string_view line);
  void request_line(std::string_view line);
  void target(std::string_view text);
  void header_line(std::string_view line);
  void singleton(std::string_view name, std::string_view value);
  void end_head();
  void content_length(std::string_view value);
  void connection_options(std::string_view value);
  void chunk_size(std::string_view line);
  void trailer_line(std::string_view line);
  void refuse(int status, std::string message);

  HttpLimits limits_;
  Phase phase_ = Phase::kRequestLine;
  bool started_ = false;
  std::string line_;            // what has come of the line that is being read
  std::size_t line_bytes_ = 0;  // of lines so far: of the head, then of chunk extensions and trailers
  std::size_t trailers_ = 0;
  uint64_t left_ = 0;                  // bytes of the body or of the chunk that are still to come
  std::string authority_;              // of a target in absolute form
  unsigned seen_ = 0;                  // which headers that may come once have come
  bool close_ = false, keep_ = false;  // named by Connection
  RequestHead head_;
  std::string body_;
  HttpFault fault_;
};

}  // namespace fathom
