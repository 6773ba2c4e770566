// The library in a program of your own:  embed MODEL PROMPT [BUDGET]
// With a budget the prompt is answered twice, at full depth and at the budget, both in the same passes.
#include <fathom.h>

#include <cstdio>
#include <cstdlib>
#include <vector>

int main(int argc, char** argv) try {
  if (argc < 3) return std::fprintf(stderr, "usage: embed MODEL PROMPT [BUDGET]\n"), 2;
  const fathom::Runtime runtime = fathom::Runtime::open({.model = argv[1]});
  fathom::Engine engine(runtime);
  fathom::Request request = runtime.request(argv[2]);
  request.sampler.temperature = 0;  // greedy
  request.max_tokens = 32;
  std::vector<float> budgets{1};  // shares of the blocks' multiply-adds
  if (argc > 3) budgets.push_back(std::strtof(argv[3], nullptr));
  std::vector<fathom::Answer> answers;
  for (const float budget : budgets) {
    request.budget = budget;
    answers.push_back(std::move(engine.submit(request).front()));
  }
  for (size_t i = 0; i < answers.size(); ++i) {
    while (const auto token = answers[i].next()) std::fputs(token->text.c_str(), stdout);
    const fathom::AnswerStats& stats = answers[i].end().stats;
    std::printf("\nbudget %.2f: %.2f of the blocks' multiply-adds, %.1f of %lld layers for a token\n",
                budgets[i], stats.block_madds / stats.dense_block_madds, stats.depth,
                static_cast<long long>(runtime.layers()));
  }
} catch (const std::exception& error) {
  return std::fprintf(stderr, "embed: %s\n", error.what()), 1;
}
