#include "serve/http_framing.h"

#define BOOST_BEAST_USE_STD_STRING_VIEW  // in all files that include Beast: this one
#include <algorithm>
#include <boost/beast/http/basic_parser.hpp>
#include <limits>
#include <utility>

namespace fathom {
namespace {

namespace http = boost::beast::http;
using boost::beast::error_code;
using boost::beast::iequals;

constexpr std::size_t kMostMethod = 32;
constexpr std::size_t kMostChunkLine = 256;  // size and extensions of one chunk
// The characters of a header's name (RFC 9110, 5.6.2).
constexpr std::string_view kNameChars =
    "!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";

// Headers that decide where a request ends or who may send it. A second one of a name is refused: which of
// the two a program before us has read is not known.
constexpr std::string_view kOnce[] = {
    "host", "content-length", "transfer-encoding", "content-type", "expect", "authorization", "origin"};

constexpr const char* kLength = "Content-Length must be one number, once, and without Transfer-Encoding";

// The line is not quoted: where a client sends no sizes, it is the body, and faults are logged.
constexpr const char* kChunkFault = "a chunk's size must be hexadecimal and its extensions ;NAME=VALUE";

}  // namespace

std::string ascii_lower(std::string_view ascii) {
  std::string out(ascii);
  for (char& c : out) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c + ('a' - 'A')) : c;
  return out;
}

std::string_view trimmed(std::string_view text) {
  const std::size_t first = text.find_first_not_of(" \t");
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(" \t") + 1 - first);
}

const std::string* RequestHead::find(std::string_view name) const {
  for (const auto& [key, value] : headers) {
    if (key == name) return &value;
  }
  return nullptr;
}

// Each line is checked byte by byte as it comes. Beast gets whole lines: the request line, then all headers,
// then the size of each chunk. It must use up what it gets, so that it never decides where a line ends.
class RequestReader::Parser : http::basic_parser<true> {
 public:
  Parser(const HttpLimits& limits, Request& request) : limits_(limits), request_(request) {
    header_limit(std::numeric_limits<uint32_t>::max());  // lines are counted here as they come
    body_limit(limits.body_bytes);
  }

  std::size_t take(std::string_view bytes) {
    const Step before = step();
    std::size_t taken = 0;
    while (taken < bytes.size() && step() == before && (before == Step::kHead || before == Step::kBody)) {
      request_.started = true;
      taken += left_ > 0 ? take_data(bytes.substr(taken, left_)) : take_line(bytes.substr(taken));
    }
    return taken;
  }

  Step step() const {
    if (request_.fault.status != 0) return Step::kFault;
    return is_done() ? Step::kWhole : is_header_done() ? Step::kBody : Step::kHead;
  }

 private:
  using View = std::string_view;
  enum class Line : uint8_t { kRequest, kHeader, kChunkSize, kChunkEnd, kTrailer };

  void refuse(int status, std::string message) {
    if (request_.fault.status == 0) request_.fault = {status, std::move(message)};
  }

  void too_long(int status, const std::string& what, std::size_t most) {
    refuse(status, what + " longer than " + std::to_string(most) + " bytes");
  }

  std::size_t take_data(View bytes) {
    give(bytes, "the body must be bytes");
    left_ -= bytes.size();
    return bytes.size();
  }

  std::size_t take_line(View bytes) {
    for (std::size_t i = 0; i < bytes.size(); ++i) {
      check_byte(bytes[i]);
      if (step() == Step::kFault) return i;
      line_ += bytes[i];
      if (bytes[i] == '\n') {
        end_line(std::exchange(line_, {}));
        return i + 1;
      }
    }
    return bytes.size();
  }

  // Only CR LF ends a line: one that ends with LF alone, or goes on behind a CR, is where two parsers
  // disagree. Sizes and ends of chunks are not counted: a body of many small chunks is no fault.
  void check_byte(char c) {
    const bool ends = line_.ends_with('\r'), control = static_cast<unsigned char>(c) < 0x20 || c == 0x7F;
    if (ends && c != '\n') return refuse(400, "a CR in a line has no LF behind it");
    if (!ends && c == '\n') return refuse(400, "a line ends with LF and without CR");
    if (!ends && control && c != '\t' && c != '\r') return refuse(400, "a line has a control character");
    if (kind_ == Line::kChunkEnd) {
      if (!ends && c != '\r') refuse(400, "a chunk is longer than its size says");
    } else if (kind_ != Line::kChunkSize) {
      count_bytes(1);
    } else if (line_.size() >= kMostChunkLine) {
      too_long(400, "a chunk's size and extensions are", kMostChunkLine);
    }
  }

  void count_bytes(std::size_t count) {
    if ((line_bytes_ += count) <= limits_.header_bytes) return;
    too_long(431,
             is_header_done() ? "the chunk extensions and trailers are" : "the request line and headers are",
             limits_.header_bytes);
  }

  void end_line(const std::string& line) {
    const bool empty = line == "\r\n", header = kind_ == Line::kHeader, trailer = kind_ == Line::kTrailer;
    if (!empty && (header || trailer) && ++fields_ > limits_.headers) {
      const std::string most = std::to_string(limits_.headers);
      return refuse(431, "the request has more than " + most + (header ? " headers" : " trailers"));
    }
    switch (kind_) {
      case Line::kRequest:
        // One empty line before a request is left out, as RFC 9112, 2.2 asks; the next one is a fault.
        if (empty && line_bytes_ == 2) return;
        kind_ = Line::kHeader;
        return give(line, "the request line must be METHOD TARGET HTTP/1.1");
      case Line::kHeader:
        lines_ += line;
        if (empty) return end_head();
        if (line[0] == ' ' || line[0] == '\t') refuse(400, "a header goes on in the next line");
        return;
      case Line::kChunkSize:
        return chunk_size(line);
      case Line::kChunkEnd:
        lines_ = line;  // Beast takes it with the next size
        kind_ = Line::kChunkSize;
        return;
      case Line::kTrailer:
        // Trailers are checked and left out: what comes behind a body decides nothing. Beast gets the last
        // chunk without them.
        if (empty) return give(lines_ + line, kChunkFault);
        if (const std::size_t colon = line.find_first_not_of(kNameChars); colon == 0 || line[colon] != ':') {
          refuse(400, "a trailer must be NAME: VALUE");
        }
    }
  }

  void chunk_size(const std::string& line) {
    const std::size_t end = line.find_first_not_of("0123456789abcdefABCDEF");
    if (end == 0 || (line[end] != ';' && line[end] != '\r')) return refuse(400, kChunkFault);
    if (line[end] == ';') count_bytes(line.size() - end - 1);
    lines_ += line;
    const bool last = line.find_first_not_of('0') == end;
    kind_ = last ? Line::kTrailer : Line::kChunkEnd;
    if (!last) give(std::exchange(lines_, {}), kChunkFault);
  }

  void end_head() {
    give(std::exchange(lines_, {}), "a header must be NAME: VALUE without spaces before the colon");
    if (step() == Step::kFault) return;
    judge_head();
    RequestHead& head = request_.head;
    head.chunked = chunked();
    head.length = left_ = content_length().value_or(0);
    head.keep_alive = !closes_ && (head.minor >= 1 || keeps_);  // Beast would read Proxy-Connection too
    head.expects_continue = head.find("expect") && head.minor >= 1 && head.has_body();
    line_bytes_ = fields_ = 0;
    kind_ = Line::kChunkSize;
  }

  // Beast uses up all of `bytes` or there is a fault: it waits for the end of a quoted text, say, but the
  // line is at its end.
  void give(View bytes, const std::string& expected) {
    error_code error;
    const std::size_t used = put(boost::asio::const_buffer(bytes.data(), bytes.size()), error);
    if (error == http::error::body_limit) {
      too_long(413, "the body is", limits_.body_bytes);
    } else if (error == http::error::bad_content_length) {
      refuse(400, kLength);
    } else if (error == http::error::bad_transfer_encoding) {
      refuse(400, "Transfer-Encoding must come once, and without Content-Length");
    } else if (error == http::error::bad_value) {
      refuse(400, "Connection and Proxy-Connection must be lists of names");
    } else if (used < bytes.size() || (error && error != http::error::need_more)) {
      refuse(400, expected);
    }
  }

  // What Beast takes and we do not. It ignores codings that it does not know: their bodies would be read as
  // the next request.
  void judge_head() {
    const RequestHead& head = request_.head;
    for (const View name : kOnce) {
      const auto same = [&](const auto& header) { return header.first == name; };
      if (std::count_if(head.headers.begin(), head.headers.end(), same) > 1) {
        return refuse(400, "the header " + std::string(name) + " comes twice");
      }
    }
    const std::string *host = head.find("host"), *length = head.find("content-length"),
                      *coding = head.find("transfer-encoding"), *expect = head.find("expect");
    if (!host && head.minor >= 1) return refuse(400, "the header Host is missing");
    if (!authority_.empty() && (!host || !iequals(*host, authority_))) {
      return refuse(400, "the target and the header Host name different hosts");
    }
    if (length && length->find_first_not_of("0123456789") != std::string::npos) return refuse(400, kLength);
    if (coding && (!iequals(*coding, "chunked") || !chunked())) {
      return refuse(400, "the only Transfer-Encoding that is read is chunked");
    }
    if (coding && head.minor == 0) return refuse(400, "Transfer-Encoding is not part of HTTP/1.0");
    const bool met = !expect || iequals(*expect, "100-continue");
    if (!met) refuse(417, "Expect: only 100-continue is supported");
  }

  void judge_target(View text) {
    if (std::any_of(text.begin(), text.end(), [](char c) { return c == '#' || c < '!' || c > '~'; })) {
      return refuse(400, "the request's target has characters that a target may not have");
    }
    const std::size_t scheme = text.find("://");
    if (scheme != View::npos && text.front() != '/') {
      const std::string name = ascii_lower(text.substr(0, scheme));
      if (name != "http" && name != "https") return refuse(400, "the request's target is no HTTP address");
      text.remove_prefix(scheme + 3);
      authority_ = text.substr(0, text.find_first_of("/?"));
      text.remove_prefix(authority_.size());
      if (authority_.empty()) return refuse(400, "the request's target names no host");
    } else if (text.front() != '/' && !(text == "*" && request_.head.method == "OPTIONS")) {
      return refuse(400, "the request's target must begin with '/'");
    }
    const std::size_t mark = std::min(text.find('?'), text.size());
    request_.head.path = mark == 0 ? "/" : text.substr(0, mark);
    request_.head.query = text.substr(std::min(mark + 1, text.size()));
  }

  void on_request_impl(http::verb, View method, View target, int version, error_code&) override {
    if (method.size() > kMostMethod) return refuse(400, "the request's method is too long");
    request_.head.method = method;
    request_.head.minor = version % 10;
    judge_target(target);
  }
  void on_field_impl(http::field field, View name, View value, error_code&) override {
    if (field == http::field::connection) {
      closes_ = closes_ || http::token_list(value).exists("close");
      keeps_ = keeps_ || http::token_list(value).exists("keep-alive");
    }
    request_.head.headers.emplace_back(ascii_lower(name), value);
  }
  void on_chunk_header_impl(uint64_t size, View, error_code&) override { left_ = size; }
  std::size_t on_body_impl(View data, error_code&) override {
    request_.body += data;
    return data.size();
  }
  std::size_t on_chunk_body_impl(uint64_t, View data, error_code& error) override {
    return on_body_impl(data, error);
  }
  void on_response_impl(int, View, int, error_code&) override {}
  void on_header_impl(error_code&) override {}
  void on_body_init_impl(const boost::optional<uint64_t>&, error_code&) override {}
  void on_finish_impl(error_code&) override {}

  const HttpLimits& limits_;
  Request& request_;
  Line kind_ = Line::kRequest;           // of the line that is being read
  std::string line_;                     // what has come of it
  std::string lines_;                    // whole ones that Beast has not got
  std::size_t line_bytes_ = 0;           // of the head, then of chunk extensions and trailers
  std::size_t fields_ = 0;               // headers, then trailers
  uint64_t left_ = 0;                    // bytes of the body or of the chunk that are still to come
  std::string authority_;                // of a target in absolute form
  bool closes_ = false, keeps_ = false;  // named by Connection
};

RequestReader::RequestReader(const HttpLimits& limits) : limits_(limits) {
  restart();
}

RequestReader::~RequestReader() = default;

void RequestReader::restart() {
  request_ = {};
  parser_ = std::make_unique<Parser>(limits_, request_);
}

std::size_t RequestReader::take(std::string_view bytes) {
  return parser_->take(bytes);
}

RequestReader::Step RequestReader::step() const {
  return parser_->step();
}

}  // namespace fathom
