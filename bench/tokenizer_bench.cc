// Encoding speed of a tokenizer on a text, one thread. bench/tokenizer_bench.py runs it beside Hugging Face's
// package.
//   FATHOM_TOKENIZER=gpt2/tokenizer.json FATHOM_BENCH_TEXT=english.txt tokenizer_bench
#include <benchmark/benchmark.h>

#include <cstdlib>

#include "base/mapped_file.h"
#include "text/tokenizer.h"

namespace fathom {
namespace {

const char* environment(const char* name) {
  return std::getenv(name);
}

// Pieces of about 64 KB, as the Python side cuts them: at the line feed after that.
std::vector<std::string> read_chunks(const std::string& path) {
  constexpr size_t kChunk = 65536;
  const std::string text = read_text_file(path);
  std::vector<std::string> chunks;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', std::min(at + kChunk, text.size() - 1)), text.size() - 1) + 1;
    chunks.push_back(text.substr(at, end - at));
    at = end;
  }
  return chunks;
}

void encode(benchmark::State& state) {
  const char* path = environment("FATHOM_TOKENIZER");
  const char* text = environment("FATHOM_BENCH_TEXT");
  if (path == nullptr || text == nullptr)
    return state.SkipWithError("set FATHOM_TOKENIZER and FATHOM_BENCH_TEXT");
  const auto tokenizer = load_tokenizer(path);
  const std::vector<std::string> chunks = read_chunks(text);
  size_t bytes = 0, tokens = 0;
  for (auto _ : state) {
    for (const std::string& chunk : chunks) {
      bytes += chunk.size();
      tokens += tokenizer->encode(chunk).size();
    }
  }
  state.SetBytesProcessed(static_cast<int64_t>(bytes));
  state.counters["tokens"] = static_cast<double>(tokens) / static_cast<double>(state.iterations());
}
BENCHMARK(encode)->Unit(benchmark::kMillisecond);

void load(benchmark::State& state) {
  const char* path = environment("FATHOM_TOKENIZER");
  if (path == nullptr) return state.SkipWithError("set FATHOM_TOKENIZER");
  for (auto _ : state) benchmark::DoNotOptimize(load_tokenizer(path));
}
BENCHMARK(load)->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace fathom
