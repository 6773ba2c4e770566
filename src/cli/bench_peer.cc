#include "cli/bench_peer.h"

#include <nlohmann/json.hpp>

#include "base/format.h"
#include "cli/process.h"

namespace fathom {

Peer::Peer(const std::string& option) {
  static constexpr std::string_view kName = "llama.cpp=";
  if (!option.starts_with(kName) || option.size() == kName.size()) {
    throw UsageError(
        fmt::format("--peer must be llama.cpp=PATH-TO-llama-bench, got '{}'", printable(option)));
  }
  program_ = option.substr(kName.size());
}

PeerSpeed Peer::run(const std::string& model, int64_t prompt, int64_t tokens, int threads) const {
  const ProcessResult result =
      run_process({program_, "-m", model, "-p", std::to_string(prompt), "-n", std::to_string(tokens), "-t",
                   std::to_string(threads), "-r", "1", "-ngl", "0", "-o", "json"});
  const nlohmann::json tests = nlohmann::json::parse(result.out, nullptr, false);
  if (result.exit_code != 0 || !tests.is_array()) fail_process(program_, result);
  PeerSpeed speed;
  for (const auto& test : tests) {
    const double rate = test.value("avg_ts", 0.0);
    (test.value("n_gen", 0) > 0 ? speed.decode_tokens_per_s : speed.prefill_tokens_per_s) = rate;
  }
  return speed;
}

}  // namespace fathom
