// The library in a program of your own:  embed MODEL PROMPT [BUDGET]
#include <fathom.h>

#include <cstdio>
#include <cstdlib>

int main(int argc, char** argv) try {
  if (argc < 3) return std::fprintf(stderr, "usage: embed MODEL PROMPT [BUDGET]\n"), 2;
  const fathom::Runtime runtime = fathom::Runtime::open({.model = argv[1]});
  fathom::Engine engine(runtime);
  fathom::Request request = runtime.request(argv[2]);
  request.sampler.temperature = 0;  // greedy
  request.max_tokens = 32;
  request.budget = argc > 3 ? std::strtof(argv[3], nullptr) : 1;  // share of the blocks' multiply-adds
  fathom::Answer answer = std::move(engine.submit(request).front());
  while (const auto token = answer.next()) std::fputs(token->text.c_str(), stdout);
  const fathom::AnswerStats& stats = answer.end().stats;
  std::printf("\nbudget %.2f: %.2f of the blocks' multiply-adds, %.1f of %d layers for a token\n",
              *request.budget, stats.block_madds / stats.dense_block_madds, stats.depth,
              static_cast<int>(runtime.layers()));
} catch (const std::exception& error) {
  return std::fprintf(stderr, "embed: %s\n", error.what()), 1;
}
