// The library in a program of your own: load a model, continue a prompt, print as it comes.
//   embed MODEL PROMPT [TOKENIZER]
#include <cstdio>

#include "infer/generate.h"
#include "model/load.h"

int main(int argc, char** argv) {
  if (argc < 3) {
    std::fprintf(stderr, "usage: embed MODEL PROMPT [TOKENIZER]\n");
    return 2;
  }
  try {
    fathom::Context ctx;  // this machine's CPU, all its cores
    fathom::LoadOptions load;
    if (argc > 3) load.tokenizer = argv[3];
    fathom::Model model = fathom::load_model(ctx, argv[1], load);
    fathom::arrange_weights(ctx, model);  // as this machine multiplies them fastest
    if (!model.tokenizer) throw fathom::UserError("the model's files hold no tokenizer");

    fathom::KvCache cache(ctx, model.config, {.context = 256});
    fathom::DensePolicy policy;  // every row runs every layer
    fathom::PolicyState state;
    fathom::Feeder feeder(ctx, model, cache, policy, state);
    fathom::Generator generator(feeder);

    fathom::GenerateOptions options;
    options.sampler.temperature = 0;  // greedy
    options.max_tokens = 32;
    options.end_ids = fathom::end_token_ids(model);
    options.on_text = [](const fathom::TextPiece& piece) {
      std::fwrite(piece.text.data(), 1, piece.text.size(), stdout);
      std::fflush(stdout);
    };
    const fathom::GenerateResult result = generator.run(model.tokenizer->encode(argv[2]), options);
    std::printf("\n%zu tokens, %.0f a second\n", result.ids.size(), result.decode_tokens_per_s());
    return 0;
  } catch (const fathom::UserError& error) {
    std::fprintf(stderr, "embed: %s\n", error.what());
    return 1;
  }
}
