// A JSON Schema as a document: its keywords, its references, and what two of its schemas allow together.
#pragma once

#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "serve/byte_dfa.h"

namespace fathom {

class SchemaDocument {
 public:
  using OrderedJson = nlohmann::ordered_json;

  // Text that is not JSON, too long or nested too deep is a UserError.
  SchemaDocument(const std::string& text, CompileBudget& budget);
  ~SchemaDocument();
  const OrderedJson& root() const { return *root_; }

  // `schema` without annotations. Keywords that are not supported are a UserError with their place.
  OrderedJson checked(const OrderedJson& schema, const std::string& where) const;
  // The same without $ref and allOf at its top.
  OrderedJson plain(const OrderedJson& schema, const std::string& where, int links = 0) const;
  // What two plain schemas allow together. Keywords that cannot be joined are a UserError.
  OrderedJson both(const OrderedJson& a, const OrderedJson& b, const std::string& where) const;
  // Whether it is certain that no value is allowed by both plain schemas.
  bool disjoint(const OrderedJson& a, const OrderedJson& b, const std::string& where, int depth = 0) const;

  // What a $ref names; `reference` becomes its place.
  const OrderedJson& target(const OrderedJson& reference, const std::string& where, std::string* place) const;

 private:
  void charge(const OrderedJson& json) const;
  bool tells_apart(const OrderedJson& a, const OrderedJson& b, const std::string& where, int depth) const;

  CompileBudget& budget_;
  std::unique_ptr<OrderedJson> root_;
};

// Throws a UserError: "JSON schema: WHAT at PLACE: WHY".
[[noreturn]] void refuse_schema(const std::string& what, const std::string& where, const std::string& why);

// The place of a member.
std::string schema_place(const std::string& where, const std::string& key);

// The type that JSON Schema gives a value; numbers that are integers are "integer".
std::string schema_type_of(const nlohmann::ordered_json& value);
// The names in `type`; empty: any.
std::vector<std::string> schema_types(const nlohmann::ordered_json& schema, const std::string& where);
bool schema_type_allows(const std::vector<std::string>& types, const std::string& type);

}  // namespace fathom
