// libFuzzer target: the bytes of a connection. The first byte says how they are cut; whatever it says, the
// same requests must come out.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "serve/http_framing.h"
#include "serve/http_gate.h"

namespace {

constexpr fathom::HttpLimits kLimits{.header_bytes = 1024, .headers = 16, .body_bytes = 4096};

// Takes as much of `ahead` as is whole, and adds what came out to `seen`. Returns false after a fault.
bool take_all(fathom::RequestReader& reader, std::string& ahead, std::vector<std::string>& seen) {
  using Step = fathom::RequestReader::Step;
  while (!ahead.empty()) {
    const bool in_head = reader.step() == Step::kHead;
    ahead.erase(0, reader.take(ahead));
    if (reader.step() == Step::kFault) {
      seen.push_back(std::to_string(reader.fault().status) + reader.fault().message);
      return false;
    }
    if (in_head && reader.step() != Step::kHead) {
      const fathom::GateOptions gate{.origins = {"http://a"}, .keys = {{"label", std::string(64, '0')}}};
      const fathom::GateVerdict verdict = judge_request(gate, reader.head());
      seen.push_back(std::to_string(verdict.status) + verdict.message);
    }
    if (reader.step() == Step::kWhole) {
      const fathom::RequestHead& head = reader.head();
      if (reader.body_size() > kLimits.body_bytes || head.headers.size() > kLimits.headers) std::abort();
      if (!head.chunked && head.length != reader.body_size()) std::abort();
      seen.push_back(head.method + head.path + "?" + head.query + reader.take_body());
      reader.restart();
    }
  }
  return true;
}

std::vector<std::string> read(std::string_view bytes, std::size_t piece) {
  fathom::RequestReader reader(kLimits);
  std::vector<std::string> seen;
  std::string ahead;
  for (; !bytes.empty(); bytes.remove_prefix(std::min(piece, bytes.size()))) {
    ahead += bytes.substr(0, piece);
    if (!take_all(reader, ahead, seen)) break;
  }
  return seen;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::string_view bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  if (read(bytes, bytes.size() + 1) != read(bytes, 1 + data[0] % 64)) std::abort();
  return 0;
}
