// Keys that clients show as `Authorization: Bearer KEY`. Only their digests are kept.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace fathom {

struct ApiKey {
  std::string label;   // names the client in logs and metrics, where the key never is
  std::string digest;  // SHA-256
};

ApiKey make_api_key(std::string label, std::string_view key);

// One key a line, `label:key` or the key alone, whose label is then '#' and the line's number. Empty lines
// and lines that begin with '#' are left out. A file without a key, a line that is no key, and a label or a
// key that is there twice are a UserError that does not show the key; a file that every user can read is a
// warning.
std::vector<ApiKey> read_api_keys(const std::string& file);
// The same for the file's text; errors begin with `where`.
std::vector<ApiKey> parse_api_keys(std::string_view text, const std::string& where);

// Returns the label of `key`, or none where it is not in the list. The time it takes does not tell how much
// of a key was right.
std::optional<std::string> find_api_key(const std::vector<ApiKey>& keys, std::string_view key);

}  // namespace fathom
