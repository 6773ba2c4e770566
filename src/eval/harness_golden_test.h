#pragma once

#include <nlohmann/json_fwd.hpp>

namespace fathom {

const nlohmann::json& harness_goldens();  // tests/data/eval/harness.json (tools/make_eval_goldens.py)
const nlohmann::json& task_goldens();     // tests/data/eval/tasks.json (tools/make_task_goldens.py)

}  // namespace fathom
