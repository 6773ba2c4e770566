#include "cli/args.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <utility>

#include "base/format.h"
#include "cli/output.h"

namespace fathom {
namespace {

struct OtherName {
  std::string_view typed, ours;
};

// Names of other programs' options for ours. CLI11 would read -ctk as -c tk.
constexpr std::array<OtherName, 8> kOtherNames{{{"-ctk", "--cache-type-k"},
                                                {"-ctv", "--cache-type-v"},
                                                {"--n-predict", "--tokens"},
                                                {"--predict", "--tokens"},
                                                {"--max-new-tokens", "--tokens"},
                                                {"--temperature", "--temp"},
                                                {"--top_p", "--top-p"},
                                                {"--top_k", "--top-k"}}};

// And what stands here under another form, or not at all.
constexpr std::array<OtherName, 8> kHints{
    {{"-ngl", "a model runs where --device says, whole: --device cuda"},
     {"--n-gpu-layers", "a model runs where --device says, whole: --device cuda"},
     {"--gpu-layers", "a model runs where --device says, whole: --device cuda"},
     {"--lora", "adapters are folders, given with --adapter"},
     {"--grammar", "grammars are for programs: Request::mask of the library; generate has --json-schema"},
     {"--grammar-file",
      "grammars are for programs: Request::mask of the library; generate has --json-schema"},
     {"-v", "all there is to say is said; -q says less, and fathom --version has the version"},
     {"--verbose", "all there is to say is said; -q says less"}}};

// `name` without the value that may hang on it.
template <size_t N>
const OtherName* find_name(const std::array<OtherName, N>& names, std::string_view argument) {
  const std::string_view name = argument.substr(0, argument.find('='));
  const auto found =
      std::find_if(names.begin(), names.end(), [&](const OtherName& each) { return each.typed == name; });
  return found == names.end() ? nullptr : &*found;
}

std::string last_name(const std::string& names) {
  const size_t comma = names.rfind(',');
  return comma == std::string::npos ? names : names.substr(comma + 1);
}

}  // namespace

// --n_predict is --n-predict.
std::string with_dashes(std::string argument) {
  if (!argument.starts_with("--")) return argument;
  const size_t end = std::min(argument.find('='), argument.size());
  std::replace(argument.begin(), argument.begin() + static_cast<ptrdiff_t>(end), '_', '-');
  return argument;
}

struct Args::Parser {
  CLI::App app;
  std::string verb, group;
  bool help = false;

  CLI::Option* finish(CLI::Option* option, const std::string& meta, const std::string& standard) {
    option->type_name(meta)->group(group);
    if (!standard.empty()) option->default_str(standard);
    return option;
  }
  bool has(std::string_view name) const { return app.get_option_no_throw(std::string(name)) != nullptr; }
  // A value is never taken for a name: an option's own comes right after it.
  std::vector<std::string> with_our_names(std::vector<std::string> arguments) const {
    bool is_value = false;
    for (std::string& argument : arguments) {
      const CLI::Option* before = is_value ? nullptr : app.get_option_no_throw(argument);
      const bool ours = has(argument.substr(0, argument.find('=')));
      if (std::exchange(is_value, before && before->get_expected_min() > 0) || ours) continue;
      if (const std::string dashed = with_dashes(argument); has(dashed.substr(0, dashed.find('=')))) {
        is_value = dashed.find('=') == std::string::npos && app.get_option(dashed)->get_expected_min() > 0;
        argument = dashed;
        continue;
      }
      if (const OtherName* hint = find_name(kHints, argument))
        throw UsageError(fmt::format("{}: there is no option '{}': {} (see fathom {} -h)", verb, hint->typed,
                                     hint->ours, verb));
      argument = with_dashes(argument);
      const OtherName* name = find_name(kOtherNames, argument);
      if (!name || !has(name->ours)) continue;
      is_value = argument.size() == name->typed.size();
      argument = std::string(name->ours) + argument.substr(name->typed.size());
    }
    return arguments;
  }
  std::vector<std::string> names() const {
    std::vector<std::string> out;
    for (const CLI::Option* option : app.get_options()) {
      for (const std::string& name : option->get_lnames()) out.push_back("--" + name);
      for (const std::string& name : option->get_snames()) out.push_back("-" + name);
    }
    return out;
  }
  [[noreturn]] void refuse_extra(const std::vector<std::string>& extras) const {
    const std::string& word = extras.front();
    if (!word.starts_with("-"))
      throw UsageError(
          fmt::format("{}: unexpected argument '{}' (see fathom {} -h)", verb, printable(word), verb));
    const std::vector<std::string> known = names();
    const std::string near = nearest_name(word.substr(0, word.find('=')), known.data(), known.size());
    throw UsageError(fmt::format("{}: unknown option '{}'{} (see fathom {} -h)", verb, printable(word),
                                 near.empty() ? "" : ", did you mean '" + near + "'?", verb));
  }
};

Args::Args(const std::string& verb, const std::string& summary, const std::string& example)
    : parser_(std::make_unique<Parser>()) {
  parser_->verb = verb;
  parser_->group = "Options";
  CLI::App& app = parser_->app;
  app.name("fathom " + verb);
  app.description(summary);
  app.footer("Example:\n  " + example);
  app.set_help_flag();
  app.allow_extras();
  app.add_flag("-h,--help", parser_->help, "Print this help")->group("Options");
  app.get_formatter()->column_width(34);
}

Args::~Args() = default;

void Args::group(const std::string& title) {
  parser_->group = title;
}

void Args::text(const std::string& names, std::string& value, const std::string& meta,
                const std::string& help) {
  parser_->finish(parser_->app.add_option_function<std::string>(
                      names, [&value](const std::string& given) { value = given; }, help),
                  meta, value);
}

void Args::texts(const std::string& names, std::vector<std::string>& values, const std::string& meta,
                 const std::string& help) {
  CLI::Option* option = parser_->app.add_option_function<std::vector<std::string>>(
      names, [&values](const std::vector<std::string>& given) { values = given; }, help);
  option->allow_extra_args(false);  // one value for each time the option is written
  option->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  parser_->finish(option, meta, "");
}

void Args::integer(const std::string& names, int64_t& value, const std::string& help, int64_t least,
                   int64_t most) {
  const std::string name = last_name(names);
  const auto set = [&value, name, least, most](const std::string& given) {
    value = parse_integer(name, given, least, most);
  };
  parser_->finish(parser_->app.add_option_function<std::string>(names, set, help), "N",
                  std::to_string(value));
}

void Args::number(const std::string& names, double& value, const std::string& help) {
  const std::string name = last_name(names);
  const auto set = [&value, name](const std::string& given) { value = parse_number(name, given); };
  parser_->finish(parser_->app.add_option_function<std::string>(names, set, help), "X",
                  fmt::format("{:g}", value));
}

void Args::share(const std::string& names, double& value, const std::string& help) {
  const std::string name = last_name(names);
  const auto set = [&value, name](const std::string& given) { value = parse_number(name, given); };
  parser_->finish(parser_->app.add_option_function<std::string>(names, set, help), "X", "");
}

void Args::choice(const std::string& names, std::string& value, const std::vector<std::string>& choices,
                  const std::string& help) {
  const std::string name = last_name(names);
  const auto set = [&value, name, choices](const std::string& given) {
    std::string list;
    for (const std::string& choice : choices) {
      if (choice == given) {
        value = given;
        return;
      }
      list += (list.empty() ? "" : ", ") + choice;
    }
    throw UsageError(fmt::format("{} must be one of {}, got '{}'", name, list, printable(given)));
  };
  std::string meta;
  for (const std::string& choice : choices) meta += (meta.empty() ? "" : "|") + choice;
  parser_->finish(parser_->app.add_option_function<std::string>(names, set, help), meta, value);
}

void Args::flag(const std::string& names, bool& value, const std::string& help) {
  parser_->app.add_flag(names, value, help)->group(parser_->group);
}

bool Args::parse(const std::vector<std::string>& arguments) {
  for (const std::string& argument : arguments) {
    if (argument == "-h" || argument == "--help") {
      print(parser_->app.help());
      return false;
    }
  }
  std::vector<std::string> reversed = parser_->with_our_names(arguments);
  std::reverse(reversed.begin(), reversed.end());  // as CLI11 wants them
  try {
    parser_->app.parse(reversed);
  } catch (const CLI::ParseError& error) {
    throw UsageError(
        fmt::format("{}: {} (see fathom {} -h)", parser_->verb, printable(error.what()), parser_->verb));
  }
  const std::vector<std::string> extras = parser_->app.remaining();
  if (!extras.empty()) parser_->refuse_extra(extras);
  return true;
}

bool Args::given(const std::string& name) const {
  const CLI::Option* option = parser_->app.get_option_no_throw(name);
  return option && option->count() > 0;
}

int64_t parse_integer(const std::string& name, const std::string& text, int64_t least, int64_t most) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error == std::errc() && end == text.data() + text.size() && value >= least && value <= most)
    return value;
  const std::string range =
      most == INT64_MAX ? fmt::format("of at least {}", least) : fmt::format("from {} to {}", least, most);
  throw UsageError(fmt::format("{} must be a whole number {}, got '{}'", name, range, printable(text)));
}

double parse_number(const std::string& name, const std::string& text) {
  char* end = nullptr;
  const double value = std::strtod(text.c_str(), &end);
  if (text.empty() || *end != '\0' || std::isspace(static_cast<unsigned char>(text[0])) ||
      !std::isfinite(value)) {
    throw UsageError(fmt::format("{} must be a number, got '{}'", name, printable(text)));
  }
  return value;
}

std::vector<std::string> split_list(const std::string& name, const std::string& text) {
  std::vector<std::string> parts;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    parts.push_back(text.substr(begin, end - begin));
    if (parts.back().empty())
      throw UsageError(
          fmt::format("{} must be a list with commas between its parts, got '{}'", name, printable(text)));
    if (std::count(parts.begin(), parts.end(), parts.back()) > 1)
      throw UsageError(fmt::format("{} names {} twice", name, printable(parts.back())));
    begin = end + 1;
  }
  return parts;
}

}  // namespace fathom
