// One list of a config's fields, behind the command line, JSON and checkpoints. A config is an aggregate with
// defaults that names its fields once:
//   struct GateConfig {
//     float rows_kept = 0.8f;
//     template <class V> void visit(V& v) { v("rows_kept", rows_kept, "share of rows kept per layer"); }
//   };
// A field that was renamed gives its old name last: v("units", units, "what skips", "unit").
// Enumerations need a list of names found by argument-dependent look-up: std::span<const std::string_view>
// enum_names(Enum).
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <variant>
#include <vector>

namespace fathom {

struct EnumField {
  uint8_t* value;
  std::span<const std::string_view> names;
};

struct Field {
  std::string name;
  std::string help;
  std::string old_name;  // read with a warning, never written; empty: none
  std::variant<bool*, int32_t*, int64_t*, uint64_t*, float*, std::string*, std::vector<int32_t>*,
               std::vector<float>*, std::vector<std::string>*, EnumField>
      value;
  void put_under(const std::string& prefix) {  // it becomes "prefix.name"
    name = prefix + "." + name;
    if (!old_name.empty()) old_name = prefix + "." + old_name;
  }
};

class FieldCollector {
 public:
  template <class T>
  void operator()(const char* name, T& value, const char* help = "", const char* old_name = nullptr) {
    const std::string old = old_name ? prefix_ + old_name : "";
    if constexpr (std::is_enum_v<T>) {
      static_assert(sizeof(T) == 1, "enumerations of configs are uint8_t");
      fields_.push_back(
          {prefix_ + name, help, old, EnumField{reinterpret_cast<uint8_t*>(&value), enum_names(T{})}});
    } else if constexpr (requires { value.visit(*this); }) {
      const std::string outer = prefix_;
      prefix_ += std::string(name) + ".";
      value.visit(*this);
      prefix_ = outer;
    } else {
      fields_.push_back({prefix_ + name, help, old, &value});
    }
  }
  std::vector<Field> take() { return std::move(fields_); }

 private:
  std::string prefix_;
  std::vector<Field> fields_;
};

// The fields point into `config`, which must outlive them.
template <class Config>
std::vector<Field> fields_of(Config& config) {
  FieldCollector collector;
  config.visit(collector);
  return collector.take();
}

// "key=value" texts: a key that is not there names the nearest that is; a value that does not fit says what
// was expected. UsageError. An old name is taken with a warning that gives the new one.
void set_field(std::span<const Field> fields, std::string_view name, std::string_view text);
std::string field_text(const Field& field);

// JSON, with comments allowed when read. Unknown keys and wrong types are UserErrors that begin with `where`;
// keys that are not there leave the field as it is. "a.b" is the key b of the object a. An old name is taken
// with a warning that gives the new one; both names at once are a UserError.
void fields_from_json(std::span<const Field> fields, const std::string& json_text, const std::string& where);
std::string fields_to_json(std::span<const Field> fields);
// The same JSON object with new names for old ones, which are treated as above.
std::string with_new_names(std::span<const Field> fields, const std::string& json_text,
                           const std::string& where);

}  // namespace fathom
