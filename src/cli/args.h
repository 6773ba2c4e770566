// A verb's options: names, where the values go, help. A small type of ours in front of CLI11, which takes
// nine seconds to compile.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/error.h"

namespace fathom {

class Args {
 public:
  // `example`: one or more command lines, shown at the end of -h.
  Args(const std::string& verb, const std::string& summary, const std::string& example);
  ~Args();
  Args(const Args&) = delete;
  Args& operator=(const Args&) = delete;

  // Options added from here on stand under this title in -h.
  void group(const std::string& title);

  // `names`: "-t,--threads". The value stays as it is unless the option is given; -h shows it where
  // that helps.
  void text(const std::string& names, std::string& value, const std::string& meta, const std::string& help);
  void texts(const std::string& names, std::vector<std::string>& values, const std::string& meta,
             const std::string& help);
  void integer(const std::string& names, int64_t& value, const std::string& help, int64_t least,
               int64_t most);
  void number(const std::string& names, double& value, const std::string& help);
  // A number whose default is no number.
  void share(const std::string& names, double& value, const std::string& help);
  void choice(const std::string& names, std::string& value, const std::vector<std::string>& choices,
              const std::string& help);
  void flag(const std::string& names, bool& value, const std::string& help);

  // false: -h was among the arguments, and the help has been printed. Anything that does not fit is a
  // UsageError; an unknown option names the nearest that exists.
  bool parse(const std::vector<std::string>& arguments);

  // Whether the option of that (long or short) name was given.
  bool given(const std::string& name) const;

 private:
  struct Parser;
  std::unique_ptr<Parser> parser_;
};

// f(), an option's value put to use. Its UsageError is one with the option's name in front.
template <class F>
auto from_option(const std::string& name, F&& f) {
  try {
    return f();
  } catch (const UsageError& error) {
    throw UsageError(name + ": " + error.what());
  }
}

// A whole number in [least, most]; `name` starts the message of the UsageError.
int64_t parse_integer(const std::string& name, const std::string& text, int64_t least, int64_t most);
double parse_number(const std::string& name, const std::string& text);
// "a,b": what stands between the commas. A piece that is empty, or there twice, is a UsageError.
std::vector<std::string> split_list(const std::string& name, const std::string& text);

}  // namespace fathom
