#include "serve/api_keys.h"

#include <sys/stat.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <map>

#include "base/format.h"
#include "base/log.h"
#include "base/sha256.h"

namespace fathom {
namespace {

constexpr std::size_t kMostFile = 1 << 20;
constexpr std::string_view kBlanks = " \t\r";

std::string_view without_blanks(std::string_view text) {
  const std::size_t first = text.find_first_not_of(kBlanks);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(kBlanks) + 1 - first);
}

bool visible(std::string_view text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), [](char c) { return c > 0x20 && c < 0x7F; });
}

// Both digests have 64 digits: every byte is looked at, whatever the first ones are.
bool same_digest(std::string_view a, std::string_view b) {
  unsigned differs = 0;
  for (std::size_t i = 0; i < a.size(); ++i) differs |= static_cast<unsigned>(a[i] ^ b[i]);
  return differs == 0;
}

ApiKey parse_line(std::string_view line, std::size_t number, const std::string& where) {
  const std::size_t colon = line.find(':');
  const bool labelled = colon != std::string_view::npos;
  const std::string_view label = labelled ? without_blanks(line.substr(0, colon)) : "";
  const std::string_view key = labelled ? without_blanks(line.substr(colon + 1)) : line;
  require(!labelled || visible(label),
          "{}, line {}: the label before ':' must be visible ASCII without spaces", where, number);
  require(visible(key), "{}, line {}: the key must be visible ASCII without spaces", where, number);
  return make_api_key(labelled ? std::string(label) : "#" + std::to_string(number), key);
}

}  // namespace

ApiKey make_api_key(std::string label, std::string_view key) {
  Sha256 sha;
  sha.add(key);
  return {std::move(label), sha.hex()};
}

std::vector<ApiKey> parse_api_keys(std::string_view text, const std::string& where) {
  std::vector<ApiKey> keys;
  std::map<std::string, std::size_t> labels, digests;  // and the lines that have them
  for (std::size_t number = 1; !text.empty(); ++number) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    const std::string_view line = without_blanks(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
    if (line.empty() || line.front() == '#') continue;
    keys.push_back(parse_line(line, number, where));
    // What stands before the ':' may be a part of a key whose label was left out: it is not shown.
    const auto label = labels.emplace(keys.back().label, number).first;
    require(label->second == number, "{}, line {}: line {} has the same label: give each key its own", where,
            number, label->second);
    const auto digest = digests.emplace(keys.back().digest, number).first;
    require(digest->second == number, "{}, line {}: line {} has the same key: leave one of them out", where,
            number, digest->second);
  }
  require(!keys.empty(), "{}: no API key in this file: one a line, LABEL:KEY or KEY", where);
  return keys;
}

std::vector<ApiKey> read_api_keys(const std::string& file) {
  struct stat about = {};
  require(stat(file.c_str(), &about) == 0, "cannot read the file of API keys {}", printable(file));
  require(S_ISREG(about.st_mode), "the file of API keys {} is no regular file", printable(file));
  std::ifstream in(file, std::ios::binary);  // a pipe would wait for its writer
  require(in.good(), "cannot read the file of API keys {}", printable(file));
  require(static_cast<std::size_t>(about.st_size) <= kMostFile,
          "the file of API keys {} is larger than {} bytes", printable(file), kMostFile);
  if (about.st_mode & S_IROTH) log_warn("every user of this machine can read the API keys in " + file);
  const std::string text{std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
  return parse_api_keys(text, printable(file));
}

std::optional<std::string> find_api_key(const std::vector<ApiKey>& keys, std::string_view key) {
  const std::string digest = make_api_key("", key).digest;
  std::optional<std::string> label;
  for (const ApiKey& known : keys) {
    if (same_digest(known.digest, digest)) label = known.label;
  }
  return label;
}

}  // namespace fathom
