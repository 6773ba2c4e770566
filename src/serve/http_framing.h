// The bytes of a connection become requests, or a fault with its HTTP status. Pure: no sockets and no clock.
//
// Beast parses the requests. Its version 1.74 is lenient in places: it ignores transfer codings that it does
// not know, so that the body of a request with `Transfer-Encoding: gzip` would be read as the next request.
// Our own checks around it refuse what a proxy before us and we could read in two ways (RFC 9112, with no
// leniency).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

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

  explicit RequestReader(const HttpLimits& limits);
  ~RequestReader();

  // Takes what belongs to this request from the front of `bytes` and returns how many bytes that is. It stops
  // behind the head, so that the head can be judged before its body is read, and behind the body. The rest of
  // `bytes` is to be handed in again.
  std::size_t take(std::string_view bytes);

  Step step() const;
  bool started() const { return request_.started; }  // a byte of this request has come
  const RequestHead& head() const { return request_.head; }
  const HttpFault& fault() const { return request_.fault; }
  std::size_t body_size() const { return request_.body.size(); }  // so far
  // The body of a whole request, once.
  std::string take_body() { return std::move(request_.body); }
  // Makes ready for the next request.
  void restart();

 private:
  class Parser;  // derives from Beast's
  struct Request {
    bool started = false;
    RequestHead head;
    std::string body;
    HttpFault fault;
  };

  HttpLimits limits_;
  Request request_;
  std::unique_ptr<Parser> parser_;  // fills request_
};

}  // namespace fathom
