#include "cli/bench_peer.h"

#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/format.h"
#include "base/process.h"

namespace fathom {

Peer::Peer(const std::string& option) {
  static constexpr std::string_view kName = "llama.cpp=";
  if (!option.starts_with(kName) || option.size() == kName.size()) {
    throw UsageError(fmt::format("--peer must be llama.cpp=PATH, of llama-bench or its folder, got '{}'",
                                 printable(option)));
  }
  program_ = option.substr(kName.size());
  if (std::filesystem::is_directory(program_)) program_ += "/llama-bench";
}

PeerSpeed Peer::run(const std::string& model, int64_t prompt, int64_t tokens, int64_t depth,
                    int threads) const {
  const ProcessResult result = run_process({program_, "-m", model, "-p", std::to_string(prompt), "-n",
                                            std::to_string(tokens), "-d", std::to_string(depth), "-t",
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

double Peer::run_batch(const std::string& model, int64_t sequences, int64_t prompt, int64_t tokens,
                       int threads) const {
  const std::string program =
      std::filesystem::path(program_).replace_filename("llama-batched-bench").string();
  const std::string context = std::to_string(sequences * (prompt + tokens));
  const ProcessResult result =
      run_process({program, "-m", model, "-c", context, "-npp", std::to_string(prompt), "-ntg",
                   std::to_string(tokens), "-npl", std::to_string(sequences), "-t", std::to_string(threads),
                   "-ngl", "0", "--output-format", "jsonl"});
  // One object on a line of its own, between other words.
  const size_t begin = result.out.find("{\""), end = result.out.find('\n', begin);
  if (result.exit_code != 0 || begin == std::string::npos) fail_process(program, result);
  const nlohmann::json line = nlohmann::json::parse(result.out.substr(begin, end - begin), nullptr, false);
  if (!line.is_object()) fail_process(program, result);
  return line.value("speed_tg", 0.0);
}

}  // namespace fathom
