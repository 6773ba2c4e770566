// JSON Schema to a grammar: docs/structured_output.md says which part of it, and in which layout.
#pragma once

#include <string>

#include "serve/json_grammar.h"

namespace fathom {

constexpr size_t kMostSchemaBytes = 65536;

// A schema that is not JSON, too large, or beyond the supported part is a UserError that names the keyword
// and its place; so is one that allows no value.
JsonGrammar compile_json_schema(const std::string& text);

// Any object of JSON.
JsonGrammar any_json_object();

}  // namespace fathom
