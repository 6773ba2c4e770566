#include "serve/http_framing.h"

#include <algorithm>
#include <array>
#include <cassert>
#include <charconv>
#include <utility>

#include "base/error.h"

namespace fathom {
namespace {

constexpr std::size_t kMostMethod = 32;
constexpr std::size_t kMostChunkLine = 256;  // size and extensions of one chunk

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}
bool is_letter(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}
bool is_visible(char c) {
  return c > 0x20 && c < 0x7F;
}
bool is_control(char c) {
  return static_cast<unsigned char>(c) < 0x20 || c == 0x7F;
}

// A character of a method or a header's name (RFC 9110, 5.6.2).
bool is_token_char(char c) {
  return is_digit(c) || is_letter(c) || std::string_view("!#$%&'*+-.^_`|~").find(c) != std::string_view::npos;
}

bool is_token(std::string_view text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), is_token_char);
}

char lower(char c) {
  return c >= 'A' && c <= 'Z' ? static_cast<char>(c + ('a' - 'A')) : c;
}

bool same_letters(std::string_view a, std::string_view b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](char x, char y) { return lower(x) == lower(y); });
}

// Headers that decide where a request ends or who may send it. A second one of a name is refused: which of
// the two a program before us has read is not known.
constexpr std::array<std::string_view, 7> kOnce = {
    "host", "content-length", "transfer-encoding", "content-type", "expect", "authorization", "origin"};

struct HeaderField {
  std::string name;  // in lower case; "" where the line is no field
  std::string_view value;
};

HeaderField parse_field(std::string_view line) {
  const std::size_t colon = line.find(':');
  if (colon == std::string_view::npos || !is_token(line.substr(0, colon))) return {};
  return {ascii_lower(line.substr(0, colon)), trimmed(line.substr(colon + 1))};
}

}  // namespace

std::string ascii_lower(std::string_view ascii) {
  std::string out(ascii);
  std::transform(out.begin(), out.end(), out.begin(), lower);
  return out;
}

std::string_view trimmed(std::string_view text) {
  const std::size_t first = text.find_first_not_of(" \t");
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(" \t") + 1 - first);
}

const std::string* RequestHead::find(std::string_view name) const {
  const auto at =
      std::find_if(headers.begin(), headers.end(), [&](const auto& h) { return h.first == name; });
  return at == headers.end() ? nullptr : &at->second;
}

RequestReader::Step RequestReader::step() const {
  if (phase_ == Phase::kFault) return Step::kFault;
  if (phase_ == Phase::kWhole) return Step::kWhole;
  return in_head() ? Step::kHead : Step::kBody;
}

void RequestReader::restart() {
  *this = RequestReader(limits_);
}

void RequestReader::refuse(int status, std::string message) {
  phase_ = Phase::kFault;
  fault_ = {status, std::move(message)};
}

std::size_t RequestReader::take(std::string_view bytes) {
  std::size_t taken = 0;
  const bool was_in_head = in_head();
  while (taken < bytes.size() && phase_ != Phase::kWhole && phase_ != Phase::kFault) {
    if (was_in_head && !in_head()) break;
    started_ = true;
    const bool data = phase_ == Phase::kFixedBody || phase_ == Phase::kChunkData;
    taken += data ? take_data(bytes.substr(taken)) : take_line(bytes.substr(taken));
  }
  return taken;
}

std::size_t RequestReader::take_data(std::string_view bytes) {
  const std::size_t count = std::min<uint64_t>(left_, bytes.size());
  body_.append(bytes.substr(0, count));
  left_ -= count;
  if (left_ == 0) phase_ = phase_ == Phase::kFixedBody ? Phase::kWhole : Phase::kChunkEnd;
  return count;
}

// What is wrong with `c` as the next byte of a line, or null. Only CR LF ends a line: one that ends with LF
// alone, or goes on behind a CR, is where two parsers disagree.
const char* RequestReader::line_fault(char c) const {
  const bool after_cr = line_.ends_with('\r');
  if (after_cr) return c == '\n' ? nullptr : "a CR in a line has no LF behind it";
  if (c == '\n') return "a line ends with LF and without CR";
  if (is_control(c) && c != '\t' && c != '\r') return "a line has a control character";
  if (phase_ == Phase::kChunkEnd && c != '\r') return "a chunk is longer than its size says";
  return nullptr;
}

std::size_t RequestReader::take_line(std::string_view bytes) {
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    if (const char* fault = line_fault(bytes[i])) refuse(400, fault);
    if (phase_ != Phase::kFault) count_line_byte();
    if (phase_ == Phase::kFault) return i;
    if (bytes[i] == '\n') {
      const std::string line = std::exchange(line_, {});
      end_line(std::string_view(line).substr(0, line.size() - 1));
      return i + 1;
    }
    line_ += bytes[i];
  }
  return bytes.size();
}

void RequestReader::count_line_byte() {
  if (phase_ == Phase::kChunkSize && line_.size() >= kMostChunkLine) {
    return refuse(
        400, "a chunk's size and extensions are longer than " + std::to_string(kMostChunkLine) + " bytes");
  }
  // Sizes and ends of chunks are not counted: a body of many small chunks is no fault.
  const bool extension = phase_ == Phase::kChunkSize && line_.find(';') != std::string::npos;
  if (!extension && (phase_ == Phase::kChunkSize || phase_ == Phase::kChunkEnd)) return;
  if (++line_bytes_ <= limits_.header_bytes) return;
  refuse(431, std::string(in_head() ? "the request line and headers" : "the chunk extensions and trailers") +
                  " are longer than " + std::to_string(limits_.header_bytes) + " bytes");
}

void RequestReader::end_line(std::string_view line) {
  switch (phase_) {
    case Phase::kRequestLine:
      return request_line(line);
    case Phase::kHeaders:
      return line.empty() ? end_head() : header_line(line);
    case Phase::kChunkSize:
      return chunk_size(line);
    case Phase::kChunkEnd:
      phase_ = Phase::kChunkSize;
      return;
    case Phase::kTrailers:
      return trailer_line(line);
    default:
      assert(false && "no lines are read in this phase");
  }
}

void RequestReader::request_line(std::string_view line) {
  // One empty line before a request is left out, as RFC 9112, 2.2 asks; the next one is a fault.
  if (line.empty() && line_bytes_ == 2) return;
  const std::size_t first = line.find(' '), last = line.rfind(' ');
  if (first == std::string_view::npos || first == last) {
    return refuse(400, "the request line must be METHOD TARGET HTTP/1.1");
  }
  const std::string_view method = line.substr(0, first), version = line.substr(last + 1);
  if (!is_token(method) || method.size() > kMostMethod)
    return refuse(400, "the request's method is no token");
  if (version != "HTTP/1.1" && version != "HTTP/1.0") {
    return refuse(400, "the HTTP version must be HTTP/1.1 or HTTP/1.0");
  }
  head_.method = method;
  head_.minor = version.back() - '0';
  phase_ = Phase::kHeaders;
  target(line.substr(first + 1, last - first - 1));
}

void RequestReader::target(std::string_view text) {
  const auto allowed = [](char c) { return is_visible(c) && c != '#'; };
  if (text.empty() || !std::all_of(text.begin(), text.end(), allowed)) {
    return refuse(400, "the request's target has characters that a target may not have");
  }
  const std::size_t scheme = text.find("://");
  if (scheme != std::string_view::npos && text.front() != '/') {
    const std::string name = ascii_lower(text.substr(0, scheme));
    if (name != "http" && name != "https") return refuse(400, "the request's target is no HTTP address");
    text.remove_prefix(scheme + 3);
    const std::size_t end = std::min(text.find_first_of("/?"), text.size());
    authority_ = text.substr(0, end);
    text.remove_prefix(end);
    if (authority_.empty()) return refuse(400, "the request's target names no host");
  } else if (text.front() != '/' && !(text == "*" && head_.method == "OPTIONS")) {
    return refuse(400, "the request's target must begin with '/'");
  }
  const std::size_t mark = std::min(text.find('?'), text.size());
  head_.path = mark == 0 ? "/" : text.substr(0, mark);
  head_.query = text.substr(std::min(mark + 1, text.size()));
}

void RequestReader::header_line(std::string_view line) {
  if (line.front() == ' ' || line.front() == '\t') return refuse(400, "a header goes on in the next line");
  HeaderField field = parse_field(line);
  if (field.name.empty()) return refuse(400, "a header must be NAME: VALUE without spaces before the colon");
  if (head_.headers.size() >= limits_.headers) {
    return refuse(431, "the request has more than " + std::to_string(limits_.headers) + " headers");
  }
  singleton(field.name, field.value);
  if (phase_ == Phase::kFault) return;
  if (field.name == "connection") connection_options(field.value);
  head_.headers.emplace_back(std::move(field.name), field.value);
}

void RequestReader::singleton(std::string_view name, std::string_view value) {
  const auto at = std::find(kOnce.begin(), kOnce.end(), name);
  if (at == kOnce.end()) return;
  const unsigned bit = 1u << (at - kOnce.begin());
  if (seen_ & bit) return refuse(400, "the header " + std::string(name) + " comes twice");
  seen_ |= bit;
  if (name == "content-length") {
    content_length(value);
  } else if (name == "transfer-encoding") {
    if (!same_letters(value, "chunked"))
      return refuse(400, "the only Transfer-Encoding that is read is chunked");
    head_.chunked = true;
  } else if (name == "expect") {
    if (!same_letters(value, "100-continue"))
      return refuse(417, "the only Expect that is met is 100-continue");
    head_.expects_continue = true;
  }
}

void RequestReader::content_length(std::string_view value) {
  const char* end = value.data() + value.size();
  const auto parsed = std::from_chars(value.data(), end, head_.length);  // takes no sign and no space
  if (parsed.ec != std::errc{} || parsed.ptr != end) {
    return refuse(400, "Content-Length must be one number, got '" + printable(value, 40) + "'");
  }
}

void RequestReader::connection_options(std::string_view value) {
  while (!value.empty()) {
    const std::size_t comma = std::min(value.find(','), value.size());
    const std::string_view option = trimmed(value.substr(0, comma));
    close_ = close_ || same_letters(option, "close");
    keep_ = keep_ || same_letters(option, "keep-alive");
    value.remove_prefix(std::min(comma + 1, value.size()));
  }
}

void RequestReader::end_head() {
  const std::string* host = head_.find("host");
  if (!host && head_.minor >= 1) return refuse(400, "the header Host is missing");
  if (!authority_.empty() && (!host || !same_letters(*host, authority_))) {
    return refuse(400, "the target and the header Host name different hosts");
  }
  const bool has_length = head_.find("content-length");
  if (head_.chunked && has_length) return refuse(400, "Content-Length and Transfer-Encoding come together");
  if (head_.chunked && head_.minor == 0) return refuse(400, "Transfer-Encoding is not part of HTTP/1.0");
  if (head_.length > limits_.body_bytes) {
    return refuse(413, "the body is longer than " + std::to_string(limits_.body_bytes) + " bytes");
  }
  head_.keep_alive = !close_ && (head_.minor >= 1 || keep_);
  head_.expects_continue = head_.expects_continue && head_.minor >= 1 && head_.has_body();
  line_bytes_ = 0;
  left_ = head_.length;
  phase_ = head_.chunked ? Phase::kChunkSize : left_ > 0 ? Phase::kFixedBody : Phase::kWhole;
}

void RequestReader::chunk_size(std::string_view line) {
  const std::string_view digits = line.substr(0, std::min(line.find(';'), line.size()));
  const char* end = digits.data() + digits.size();
  uint64_t size = 0;
  const auto parsed = std::from_chars(digits.data(), end, size, 16);
  if (parsed.ec != std::errc{} || parsed.ptr != end) {
    return refuse(400, "a chunk's size must be hexadecimal, got '" + printable(digits, 40) + "'");
  }
  if (size > limits_.body_bytes - body_.size()) {
    return refuse(413, "the body is longer than " + std::to_string(limits_.body_bytes) + " bytes");
  }
  left_ = size;
  phase_ = size > 0 ? Phase::kChunkData : Phase::kTrailers;
}

// Trailers are checked and left out: what comes behind a body decides nothing.
void RequestReader::trailer_line(std::string_view line) {
  if (line.empty()) {
    phase_ = Phase::kWhole;
    return;
  }
  if (parse_field(line).name.empty()) return refuse(400, "a trailer must be NAME: VALUE");
  if (++trailers_ > limits_.headers) {
    return refuse(431, "the request has more than " + std::to_string(limits_.headers) + " trailers");
  }
}

}  // namespace fathom
