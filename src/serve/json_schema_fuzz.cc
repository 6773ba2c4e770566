// Any text as a JSON Schema: refused or compiled; and then a walk, in which some byte can always follow until
// the text is complete, and whose text is JSON.
#include <cstdlib>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/rng.h"
#include "serve/json_machine.h"
#include "serve/json_schema.h"

namespace {

constexpr char kClosing[] = "\"}]";

// Returns whether a byte was found: one that ends something if there is one, else any.
bool step(fathom::JsonMachine& machine, fathom::Rng& rng, bool closing) {
  for (const char* byte = kClosing; closing && *byte != 0; ++byte) {
    if (machine.step(static_cast<uint8_t>(*byte))) return true;
  }
  const uint32_t from = rng.below(256);
  for (uint32_t i = 0; i < 256; ++i) {
    if (machine.step(static_cast<uint8_t>(from + i))) return true;
  }
  return false;
}

void walk(const std::shared_ptr<const fathom::JsonGrammar>& grammar, uint64_t seed) {
  fathom::JsonMachine machine(grammar);
  fathom::Rng rng(seed);
  for (int i = 0; i < 400; ++i) {
    if (machine.complete() && (i > 200 || rng.below(2) == 0)) break;
    const bool moved = step(machine, rng, i > 60 || rng.below(3) == 0);
    if (!moved && !machine.complete()) std::abort();  // a dead end
    if (!moved) break;
    if (rng.below(16) == 0) machine.back(rng.below(static_cast<uint32_t>(machine.text().size()) + 1));
  }
  if (machine.complete() && !nlohmann::json::accept(machine.text())) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  try {
    const auto grammar = std::make_shared<const fathom::JsonGrammar>(fathom::compile_json_schema(text));
    for (uint64_t seed = 0; seed < 4; ++seed) walk(grammar, seed);
  } catch (const fathom::UserError&) {
  }
  return 0;
}
