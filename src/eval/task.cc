#include "eval/task.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>

#include "base/format.h"
#include "base/mapped_file.h"

namespace fathom {
namespace {

using Json = nlohmann::json;

std::string_view content_of(const MappedFile& file) {
  const auto bytes = file.bytes();
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// Calls fn(line, its number) for each line with something on it.
void each_line(std::string_view text, const std::function<void(std::string_view, int64_t)>& fn) {
  int64_t number = 0;
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    const std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    ++number;
    if (line.find_first_not_of(" \t\r") != std::string_view::npos) fn(line, number);
  }
}

// "id" of the line, where it has one.
std::string id_of(const Json& line) {
  const auto id = line.find("id");
  if (id == line.end()) return "";
  if (id->is_string()) return id->get<std::string>();
  if (id->is_number_integer()) return id->dump();
  fail("expected \"id\" to be a string or a whole number, got {}", id->type_name());
}

EvalItem read_line(std::string_view line, ItemReader& read, TaskSpec& spec) {
  const Json json = Json::parse(line, nullptr, false);
  if (!json.is_object()) fail("expected a JSON object, got '{}'", printable(line, 60));
  if (!read) {  // a user's file
    const FileForm form = form_of(json);
    read = form.read;
    spec.kind = form.kind;
  }
  EvalItem item = read(json);
  if (item.id.empty()) item.id = id_of(json);
  return item;
}

std::vector<EvalItem> read_items(const std::string& path, ItemReader read, TaskSpec& spec) {
  const auto file = MappedFile::open(path);
  std::vector<EvalItem> items;
  each_line(content_of(*file), [&](std::string_view line, int64_t number) {
    try {
      items.push_back(read_line(line, read, spec));
    } catch (const UserError& error) {
      fail("{}:{}: {}", printable(path), number, error.what());
    }
    if (items.back().id.empty()) items.back().id = std::to_string(items.size() - 1);
  });
  if (items.empty()) fail("{}: expected a JSON object on each line, the file has none", printable(path));
  return items;
}

// WinoGrande's form is the uniform one, and only the blanks tell: exactly one in every context.
bool has_blanks(const std::vector<EvalItem>& items) {
  return std::all_of(items.begin(), items.end(), [](const EvalItem& item) {
    const std::string& context = item.options.front().context;
    return std::count(context.begin(), context.end(), '_') == 1;
  });
}

std::vector<EvalItem> read_documents(const std::string& path) {
  const auto file = MappedFile::open(path);
  std::vector<EvalItem> items;
  std::string document;
  const auto finish = [&] {
    if (document.find_first_not_of(" \t\r\n") != std::string::npos) {
      items.emplace_back();
      items.back().id = std::to_string(items.size() - 1);
      items.back().text = std::move(document);
    }
    document.clear();
  };
  std::string_view text = content_of(*file);
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    const std::string_view line = text.substr(0, end);
    const size_t taken = std::min(end + 1, text.size());
    if (line == "<|endoftext|>" || line == "<|endoftext|>\r") {
      if (!document.empty()) document.pop_back();  // the line end before the mark
      finish();
    } else {
      document += text.substr(0, taken);
    }
    text.remove_prefix(taken);
  }
  finish();
  if (items.empty()) fail("{}: expected a text, the file is empty", printable(path));
  return items;
}

// The first `limit` items; where there are groups, the first of each group, then the second of each, …
void cut_to(std::vector<EvalItem>& items, int64_t limit) {
  if (limit <= 0 || static_cast<size_t>(limit) >= items.size()) return;
  std::map<std::string, int64_t> seen;
  std::vector<std::pair<int64_t, size_t>> order;  // (place in its group, place)
  for (size_t i = 0; i < items.size(); ++i) {
    const int64_t place = items[i].group.empty() ? 0 : seen[items[i].group]++;
    order.emplace_back(place, i);
  }
  std::sort(order.begin(), order.end());
  order.resize(static_cast<size_t>(limit));
  std::sort(order.begin(), order.end(), [](auto a, auto b) { return a.second < b.second; });
  std::vector<EvalItem> kept;
  kept.reserve(order.size());
  for (const auto& [place, index] : order) kept.push_back(std::move(items[index]));
  items = std::move(kept);
}

// The examples that stand before an item: the first `shots` of its group that are not itself.
std::string examples_for(const EvalItem& item, const std::vector<EvalItem>& examples, bool same_split,
                         int64_t shots, const TaskSpec& spec) {
  std::string text;
  int64_t taken = 0;
  for (const EvalItem& example : examples) {
    if (taken == shots) break;
    if (example.group != item.group || (same_split && example.id == item.id)) continue;
    text += example.example + spec.separator;
    ++taken;
  }
  if (taken < shots) fail("{}: {} examples were asked for, there are {}", printable(spec.name), shots, taken);
  return text;
}

void put_in_front(EvalItem& item, const std::string& text) {
  for (ScoredText& option : item.options) option.context.insert(0, text);
  item.prompt.insert(0, text);
}

// `folder`: of a known task; "" for a user's file, whose examples come from the file itself.
void add_examples(Task& task, const std::vector<EvalItem>& all, const std::string& folder) {
  TaskSpec& spec = task.spec;
  std::string fixed;
  std::vector<EvalItem> other;
  if (task.shots > 0) {
    if (!spec.few_shot)
      throw UsageError(fmt::format("the task {} has no few-shot form: expected 0 examples, got {}",
                                   printable(spec.name), task.shots));
    const std::string prefix = folder + "/fewshot5_prefix.txt";
    if (!folder.empty() && task.shots == 5 && std::filesystem::exists(prefix)) fixed = read_text_file(prefix);
    if (fixed.empty() && !spec.example_split.empty())
      other = read_items(folder + "/" + spec.example_split + ".jsonl", spec.read, spec);
  }
  const bool same_split = other.empty();
  const std::vector<EvalItem>& examples = same_split ? all : other;
  for (EvalItem& item : task.items) {
    const std::string shown =
        !fixed.empty() ? fixed : examples_for(item, examples, same_split, task.shots, spec);
    put_in_front(item, item.description + shown);
  }
}

Task finish(Task task, const TaskOptions& options, const std::string& folder) {
  task.shots = options.shots < 0 ? task.spec.shots : options.shots;
  std::vector<EvalItem> all;
  if (task.shots > 0 && task.spec.example_split.empty()) all = task.items;
  cut_to(task.items, options.limit);
  add_examples(task, all, folder);
  return task;
}

Task load_user_task(const std::string& path, const TaskOptions& options) {
  Task task;
  task.spec.name = path;
  if (path.ends_with(".txt")) {
    task.spec.kind = TaskKind::kRolling;
    task.items = read_documents(path);
  } else {
    task.items = read_items(path, nullptr, task.spec);
    const bool uniform = task.spec.kind == TaskKind::kChoice && task.items.front().group.empty();
    if (uniform && has_blanks(task.items)) task.items = read_items(path, read_blank, task.spec);
  }
  task.spec.few_shot = task.spec.kind != TaskKind::kRolling;
  if (task.spec.kind == TaskKind::kContinue) task.spec.extra = ExtraMetric::kPerplexity;
  if (task.spec.kind == TaskKind::kGenerate)
    task.spec.generation = {{"\n", ".", ","}, 256, AnswerRule::kText};
  return finish(std::move(task), options, "");
}

}  // namespace

Task load_task(const std::string& name, const TaskOptions& options) {
  if (name.ends_with(".jsonl") || name.ends_with(".txt")) return load_user_task(name, options);
  const auto known = known_tasks();
  const auto found =
      std::find_if(known.begin(), known.end(), [&](const TaskSpec& spec) { return spec.name == name; });
  if (found == known.end()) {
    std::vector<std::string> names;
    for (const TaskSpec& spec : known) names.push_back(spec.name);
    const std::string near = nearest_name(name, names.data(), names.size());
    throw UsageError(
        fmt::format("unknown task '{}'{}: expected one of {}, or a .jsonl or .txt file", printable(name),
                    near.empty() ? "" : fmt::format(", did you mean '{}'?", near), fmt::join(names, ", ")));
  }
  const std::string folder_name = found->folder.empty() ? name : found->folder;
  if (options.data_dir.empty())
    throw NoDataFolder(fmt::format("the task {} needs the folder of the benchmarks, which holds {}/{}.jsonl",
                                   name, folder_name, found->split));
  Task task;
  task.spec = *found;
  const std::string folder = options.data_dir + "/" + folder_name;
  task.items = read_items(folder + "/" + task.spec.split + ".jsonl", task.spec.read, task.spec);
  return finish(std::move(task), options, folder);
}

}  // namespace fathom
