#include "serve/json_grammar.h"

#include <algorithm>
#include <numeric>

namespace fathom {

JsonGrammar::ValueId JsonGrammar::add_value() {
  values.emplace_back();
  return static_cast<ValueId>(values.size() - 1);
}

JsonGrammar::PartId JsonGrammar::add_part(Part part) {
  parts.push_back(std::move(part));
  return static_cast<PartId>(parts.size() - 1);
}

void JsonGrammar::flatten(CompileBudget& budget) {
  std::vector<std::vector<PartId>> all(values.size());
  std::vector<uint32_t> seen(values.size(), kNone);
  for (ValueId id = 0; id < values.size(); ++id) {
    std::vector<ValueId> reached{id};
    seen[id] = id;
    for (size_t i = 0; i < reached.size(); ++i) {
      const Value& value = values[reached[i]];
      all[id].insert(all[id].end(), value.parts.begin(), value.parts.end());
      budget.step(1 + std::ssize(value.parts) + std::ssize(value.same_as));
      for (const ValueId other : value.same_as) {
        if (seen[other] != id) reached.push_back(other);
        seen[other] = id;
      }
    }
    std::sort(all[id].begin(), all[id].end());
    all[id].erase(std::unique(all[id].begin(), all[id].end()), all[id].end());
  }
  for (ValueId id = 0; id < values.size(); ++id) {
    values[id].parts = std::move(all[id]);
    values[id].same_as.clear();
  }
}

int JsonGrammar::height_of(const Part& part) const {
  int inside = 0;
  if (part.kind == Kind::kObject) {
    for (const Property& property : part.properties) {
      if (property.required) inside = std::max(inside, values[property.value].height);
    }
  } else if (part.kind == Kind::kArray) {
    for (size_t i = 0; i < std::min<size_t>(part.least, part.prefix.size()); ++i)
      inside = std::max(inside, values[part.prefix[i]].height);
    if (part.least > part.prefix.size())
      inside = std::max(inside, part.items == kNone ? kMostDepth + 1 : values[part.items].height);
  }
  return std::min(inside, kMostDepth) + 1;
}

// Returns whether something changed. After n rounds all heights up to n are right.
bool JsonGrammar::measure() {
  bool changed = false;
  for (Part& part : parts) {
    const int height = height_of(part);
    changed |= height != part.height;
    part.height = height;
  }
  for (Value& value : values) {
    int height = kMostDepth + 1;
    for (const PartId part : value.parts) height = std::min(height, parts[part].height);
    changed |= height != value.height;
    value.height = height;
  }
  return changed;
}

void JsonGrammar::trim(Part& part) const {
  const auto never = [&](ValueId value) { return value == kNone || values[value].height > kMostDepth; };
  if (part.kind == Kind::kObject) {
    for (const Property& property : part.properties) part.reserved.push_back(property.name);
    std::sort(part.reserved.begin(), part.reserved.end());
    std::erase_if(part.properties, [&](const Property& property) { return never(property.value); });
    if (never(part.additional)) part.additional = kNone;
  } else if (part.kind == Kind::kArray) {
    for (size_t i = 0; i < part.prefix.size(); ++i) {
      if (!never(part.prefix[i])) continue;
      part.prefix.resize(i);
      part.items = kNone;
    }
    if (never(part.items))
      part.most = std::min<uint32_t>(part.most, static_cast<uint32_t>(part.prefix.size()));
  }
  const auto count = static_cast<uint32_t>(part.properties.size());
  part.required_from.assign(count + 1, count);
  for (uint32_t i = count; i-- > 0;)
    part.required_from[i] = part.properties[i].required ? i : part.required_from[i + 1];
  part.by_key.resize(count);
  std::iota(part.by_key.begin(), part.by_key.end(), 0u);
  std::sort(part.by_key.begin(), part.by_key.end(),
            [&](uint32_t a, uint32_t b) { return part.properties[a].key < part.properties[b].key; });
}

void JsonGrammar::finish(CompileBudget& budget) {
  flatten(budget);
  for (bool changed = true; changed;) {
    budget.step(std::ssize(parts) + std::ssize(values));
    for (const Value& value : values) budget.step(std::ssize(value.parts));
    for (const Part& part : parts) budget.step(std::ssize(part.properties));
    changed = measure();
  }
  for (Part& part : parts) {
    if (part.height <= kMostDepth) trim(part);
  }
  for (Value& value : values)
    std::erase_if(value.parts, [&](PartId part) { return parts[part].height > kMostDepth; });
}

}  // namespace fathom
