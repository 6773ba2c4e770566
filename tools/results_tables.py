"""Finished steps as tables: a line for every row of the paper and every point at which it was measured.

Rows of a table are measured on the same windows and items. Where these were kept, each point is compared with the rows that
the table's "beside" names, {"dense": ROW, "fixed": {"0.85": ROW, …}, "pair": {ROW: OTHER ROW, …}}: the difference, its paired
standard error, and whether it is level (less than 1.96 of them), better or worse.
"""
import json
import math

# Measures of which each item's result is kept, and what they are called.
ITEMS = {"eval": "accuracy", "few": "accuracy, 5 examples", "many": "accuracy, 25 examples", "lambada": "accuracy"}
PAIRED = {"nll": "NLL", **ITEMS}
SAVINGS = {"skip_ratio": "skip ratio", "block_flops": "block FLOPs", "net_flops": "net FLOPs", "net_bytes": "net bytes"}


def points(tables, plan):
    """Every (row, budget), with the steps that measure it; adds those to the plan."""
    found = []
    for table in tables:
        for row in table["rows"]:
            if "not_run" in row:
                continue
            for at in (plan.value(a) for a in row.get("at", ["own"])):
                steps = {kind: measured(plan, kind, row, at) for kind in row.get("show", table["show"])}
                if "speculate" in steps:
                    steps["plain"] = measured(plan, "generate", row, "own")
                if "against" in table:
                    steps["shape"] = measured(plan, "train", row, at)
                    steps["against"] = measured(plan, "train", {"model": table["against"]}, at)
                found.append({"table": table["name"], "row": row["row"], "at": at, "paper": row.get("paper", "–"),
                              "model": row["model"], "steps": steps, "beside": table.get("beside", {})})
    return found


def measured(plan, kind, row, at):
    if kind != "train":
        return plan.measure(kind, row["model"], at, row.get("dtype"))
    plan.model(row["model"])
    return plan.steps[row["model"] + ".train"]


def cost(c):
    """Multiply-adds of a token in the dense model of this shape, in the middle of its context."""
    width, heads = c["hidden_size"], c["num_attention_heads"]
    head = c.get("head_dim") or width // heads
    kv = c.get("num_key_value_heads", heads)
    block = 2 * width * head * (heads + kv) + 3 * width * c["intermediate_size"]
    block += heads * head * c["max_position_embeddings"]  # queries × keys, and × values: half the context each
    return c["num_hidden_layers"] * block + width * c["vocab_size"]


def accuracy(tasks):
    """Mean over the tasks, per character where the task has it so, in percent with its standard error."""
    values, errors = [], []
    for task in tasks.values():
        norm = task["acc_norm"] is not None
        values.append(task["acc_norm" if norm else "acc"])
        errors.append(task["acc_norm_stderr" if norm else "stderr"] or 0.0)
    n = len(values)
    return 100 * sum(values) / n, 100 * math.sqrt(sum(e * e for e in errors)) / n


def item_scores(samples, tasks):
    """By task: 1 for each item that eval's --samples has right, per character where the task has it so, else 0."""
    scores = {name: [] for name in tasks}
    for sample in map(json.loads, samples.splitlines()):
        if "gold" in sample:
            norm = tasks[sample["task"]]["acc_norm"] is not None
            right = sample["predicted_norm" if norm else "predicted"] == sample["gold"]
        else:
            right = sample["greedy"] if "greedy" in sample else sample["exact_match"]["right"]
        scores[sample["task"]].append(int(right))
    return scores


def paired(ours, theirs):
    """The mean of the items' differences and its standard error, of the same items."""
    differences = [a - b for a, b in zip(ours, theirs, strict=True)]
    n = len(differences)
    mean = sum(differences) / n
    return mean, math.sqrt(sum((d - mean) ** 2 for d in differences) / (n - 1) / n) if n > 1 else math.nan


def verdict(mean, error, lower_is_better):
    if math.isnan(error):
        return ""
    if mean == 0 or abs(mean) < 1.96 * error:
        return " level"
    return " better" if (mean < 0) == lower_is_better else " worse"


def difference(kind, ours, theirs):
    """The cell of a measure of two points; None: not measured on the same items, or these were not kept."""
    if kind == "nll":
        a, b = (record["output"].get("windows") for record in (ours, theirs))
        if not a or not b or len(a) != len(b):
            return None
        mean, error = paired(a, b)
        return f"{mean:+.3f} ± {error:.3f}{verdict(mean, error, True)}"
    a, b = (record.get("items") for record in (ours, theirs))
    if not a or not b or {t: len(i) for t, i in a.items()} != {t: len(i) for t, i in b.items()}:
        return None
    parts = [paired(a[task], b[task]) for task in a]  # tasks are apart: so are their errors
    mean, error = sum(p[0] for p in parts) / len(parts), math.sqrt(sum(p[1] ** 2 for p in parts)) / len(parts)
    return f"{100 * mean:+.1f} ± {100 * error:.1f}{verdict(mean, error, False)}"




def comparisons(point, beside, found, done):
    """The cells against each row that the table names, for this row or for its budget: at the same budget, or by its own rule."""
    cells = {}
    for name, rows in beside.items():
        row = rows.get(point["row"], rows.get(str(point["at"]))) if isinstance(rows, dict) else rows
        if row is None or row == point["row"]:
            continue
        others = [p for p in found if p["table"] == point["table"] and p["row"] == row and p["at"] in (point["at"], "own")]
        for kind in [k for k in point["steps"] if k in PAIRED] if others else []:
            records = [done.get(p["steps"][kind].name) if kind in p["steps"] else None for p in (point, others[0])]
            cell = difference(kind, *records) if all(records) else None
            if cell:
                cells[f"{PAIRED[kind]} against {name}"] = cell
    return cells


def speed(measured):
    return f"{measured['median']:.0f} ({measured['min']:.0f}–{measured['max']:.0f})"


def code(token):
    return "`" + token.strip().replace("`", "'") + "`"


def classes(output):
    """By what ran; by the score where everything ran."""
    which = "depth" if len({c["depth"] for c in output["classes"].values()}) > 1 else "score"
    rated = sorted((c[which], name) for name, c in output["classes"].items())
    tokens = output[f"by_{which}"]
    return {"by class, least first": ", ".join(f"{name} {value:.4g}" for value, name in rated),
            "lowest tokens": " ".join(code(t) for t in tokens["lowest"] if t.strip()),
            "highest tokens": " ".join(code(t) for t in tokens["highest"] if t.strip())}


def columns(kind, out, plain):
    """The cells that a measure gives."""
    if kind == "nll":
        return {"NLL": f"{out['nll']:.3f} ± {out['stderr']:.3f}"}
    if kind in ("eval", "few", "many"):
        mean, error = accuracy(out["tasks"])
        return {f"{ITEMS[kind]}, %": f"{mean:.1f} ± {error:.1f}"}
    if kind == "tasks":
        return {name: "{:.1f} ± {:.1f}".format(*accuracy({name: task})) for name, task in out["tasks"].items()}
    if kind == "lambada":
        mean, error = accuracy(out["tasks"])
        (task,) = out["tasks"].values()
        return {"accuracy, %": f"{mean:.1f} ± {error:.1f}", "perplexity": f"{task['perplexity']:.3g}"}
    if kind == "bench":
        return {"prefill, tokens/s": speed(out["prefill_tokens_per_s"]),
                "decode, tokens/s": speed(out["decode_tokens_per_s"])}
    if kind == "generate":
        return {"prefill, tokens/s": f"{out['prefill_tokens_per_s']:.0f}",
                "decode, tokens/s": f"{out['decode_tokens_per_s']:.0f}",
                "K/V memory": f"{out['cache_bytes'] / out['cache_bytes_dense']:.2f}"}
    if kind == "speculate":
        return {"drafts accepted": f"{out['accepted'] / max(1, out['drafted']):.2f}",
                "text": "the same" if out["ids"] == plain["ids"] else "DIFFERS",
                "decode, tokens/s": f"{out['decode_tokens_per_s']:.0f} (plain {plain['decode_tokens_per_s']:.0f})"}
    if kind == "info":
        share = out["method_parameters"] / out["parameters"]
        return {"parameters of the gates": out["method_parameters"], "share of the model's": f"{100 * share:.3f} %"}
    if kind == "train":
        return {"training, tokens/s": f"{out['tokens_per_s']:.0f}", "net FLOPs, training": f"{out['net_flops']:.2f}"}
    return classes(out)


def results(found, runner):
    """The points with what was measured: cells, outputs, commands; or why there is nothing."""
    rows = []
    for point in found:
        row = {key: point[key] for key in ("table", "row", "at", "paper", "model")}
        records = {kind: runner.done.get(step.name) for kind, step in point["steps"].items()}
        failed = [runner.failed[s.name] for s in point["steps"].values() if s.name in runner.failed]
        if failed:
            row["missing"] = "failed: " + failed[0]
        elif None in records.values():
            row["missing"] = f"not yet run: `make results-{runner.paper}`"
        else:
            row.update(measures(records))
            row["cells"].update(comparisons(point, point["beside"], found, runner.done))
        rows.append(row)
    return rows


def measures(records):
    plain = records.pop("plain", {}).get("output")
    shape, against = records.pop("shape", None), records.pop("against", None)
    outputs = {kind: record["output"] for kind, record in records.items()}
    cells = {}
    for kind, output in outputs.items():
        cells.update(columns(kind, output, plain))
    source = next((kind for kind, o in outputs.items() if "block_flops" in o), None)
    savings = outputs.get(source, {})
    where = " (items)" if source == "eval" and "nll" in outputs else ""  # not the NLL's own
    scale = cost(shape["shape"]) / cost(against["shape"]) if shape else 1.0
    for key, title in SAVINGS.items():
        if key in savings:
            cells[title + where] = f"{savings[key] * (scale if key == 'net_flops' else 1.0):.2f}"
    return {"cells": cells, "output": outputs, "commands": [record["command"] for record in records.values()]}


def line(cells):
    return "| " + " | ".join(str(c).replace("|", "\\|").replace("\n", " ") for c in cells) + " |\n"


def together(cells):
    """One cell of several points: a · b · c, with the largest standard error where each has one; differences whole."""
    if len(set(cells)) == 1:
        return cells[0]
    if any(c.endswith((" level", " better", " worse")) for c in cells):
        return " · ".join(cells)
    parts = [c.split(" ± ") for c in cells]
    known = [p[1] for p in parts if len(p) == 2]
    error = f" ± {max(known, key=float)}" if known else ""
    return " · ".join(p[0] for p in parts) + error


def row_lines(rows, titles):
    """A line for each row of the paper, its points in each cell."""
    names = list(dict.fromkeys(r["row"] for r in rows))
    for name in names:
        mine = [r for r in rows if r["row"] == name]
        asked = together(["own rule" if r["at"] == "own" else f"{100 * (1 - r['at']):.4g}" for r in mine])
        asked += " % saved" if mine[0]["at"] != "own" else ""
        missing = list(dict.fromkeys(r["missing"] for r in mine if "missing" in r))
        if len(missing) and not any("cells" in r for r in mine):
            cells = missing
        else:
            cells = [together([str(r.get("cells", {}).get(t, "–")) for r in mine]) for t in titles]
            cells[0] += "".join(f" ({m})" for m in missing)
        yield line([name, asked, mine[0]["paper"], *cells])


def markdown(paper, tables, rows):
    text = ""
    for table in tables:
        mine = [r for r in rows if r["table"] == table["name"]]
        text += f"\n**{table['name']}: {table['title']}**\n\n"
        titles = list(dict.fromkeys(t for r in mine for t in r.get("cells", {}))) or ["ours"]
        if mine:
            text += line(["", "asked", "the paper", *titles]) + line(["---"] * (3 + len(titles)))
            text += "".join(row_lines(mine, titles)) + "\n"
        for r in table["rows"]:
            if "not_run" in r:
                known = f" (the paper: {r['paper']})" if "paper" in r else ""
                text += f"- {r['row']}{known}: not run here, because {r['not_run']}\n"
        if mine:
            if "baselines_in" in table:
                text += f"A fixed list and random skipping, trained alike: {' and '.join(table['baselines_in'])}.\n"
            text += "\n" if "baselines_in" in table or len(table["rows"]) > len({r["row"] for r in mine}) else ""
            text += f"`tools/results.py {paper} --only '{table['name']}'`. {table['agreement']}".rstrip() + "\n"
    return text
