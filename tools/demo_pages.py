#!/usr/bin/env python3
"""demo_pages.py DEMO.json OUT.svg: the README's picture, out of what `make demo` left in runs/demo/demo.json.

Also what demo.py imports: the comparison as a table, remarks and an HTML page.
"""
import html
import json
import pathlib
import statistics
import sys

import demo_shades

STYLE = """:root { color-scheme: light dark; --ground: #fdfdfc; --ink: #1d1d1f; --soft: #5c5c63; --line: #d9d9de; }
@media (prefers-color-scheme: dark) { :root { --ground: #141416; --ink: #ececf0; --soft: #a3a3ad; --line: #38383f; } }
body { margin: 0 auto; padding: 24px 20px 60px; max-width: 1100px; background: var(--ground); color: var(--ink);
       font: 16px/1.5 system-ui, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif; }
h1 { font-size: 26px; } h2 { font-size: 19px; margin: 32px 0 4px; }
table { border-collapse: collapse; } th, td { border-bottom: 1px solid var(--line); padding: 5px 18px 5px 0; text-align: left; vertical-align: top; }
td.n, th.n { text-align: right; font-variant-numeric: tabular-nums; }
.soft { color: var(--soft); } .answer { white-space: pre-wrap; font-family: ui-monospace, "DejaVu Sans Mono", Menlo, monospace; font-size: 14px; line-height: 1.9; }
.answer span { border-radius: 2px; } code { font-size: 13px; overflow-wrap: anywhere; } a { color: inherit; }
img { max-width: 100%; background: #fff; }"""


def table(data):
    """Rows of strings, the first the heading."""
    rows = [["", "tokens/s", "speed-up", "blocks' work", "bytes read", "layers a token", "text"]]
    for setting in data["settings"]:
        depth = [d for answer in setting["answers"] for d in answer["depth"]]
        rows.append([setting["name"], f"{setting['tokens_per_s']:.0f}", f"{setting['speed_up']:.2f} x",
                     f"{100 * setting['block_flops']:.0f} %",
                     f"{100 * setting['net_bytes']:.0f} %", f"{statistics.mean(depth):.1f} of {data['layers']}",
                     "the same" if setting["same_text"] else "another"])
    rows[1][-1] = "–"
    return rows


def conditions(data):
    return (f"{data['model']}, {data['threads']} thread{'s' if data['threads'] > 1 else ''}, greedy with a repeat penalty of "
            f"{data['penalty']}, at most {data['tokens']} tokens; of each answer the fastest of {len(data['settings'][0]['answers'][0]['seconds'])} rounds counts")


def remarks(data):
    """What the numbers say, in words, also where they are not flattering."""
    first, *others = data["settings"]
    for setting in others:
        name, ratio = setting["name"], setting["speed_up"]
        speed = f"{ratio:.2f} times {first['name']}'s speed"
        if name == "speculation":
            yield (f"speculation drafts with fewer layers, or from the text so far, and verifies with all that {first['name']} runs: "
                   f"{'the same text' if setting['same_text'] else 'ANOTHER TEXT'}, {speed}; "
                   f"{setting['accepted']} of {setting['drafted']} drafted tokens stayed")
        else:
            yield (f"{name}: {100 * (1 - setting['block_flops']):.0f} % of the blocks' multiply-adds saved, "
                   f"{100 * (1 - setting['net_bytes']):.0f} % of the bytes, {speed}")
        if ratio < 0.995:
            yield f"{name} is no gain here: slower than {first['name']}"
    if len(others) == 1:
        yield "this model has no calibrated budgets, so no saving is shown"


def shaded_html(pieces, layers):
    out = []
    for piece in pieces:
        ground, ink = demo_shades.colours(piece["depth"], layers)
        out.append(f'<span style="background:{ground};color:{ink}" title="{piece["depth"]:g} of {layers} layers">'
                   f'{html.escape(piece["text"])}</span>')
    return "".join(out)


def page(data):
    layers = data["layers"]
    head, *rows = table(data)
    cells = "".join("<tr>" + "".join(f'<td{" class=n" if 0 < i < 6 else ""}>{html.escape(cell)}</td>'
                                     for i, cell in enumerate(row)) + "</tr>" for row in rows)
    heading = "".join(f'<th{" class=n" if 0 < i < 6 else ""}>{cell}</th>' for i, cell in enumerate(head))
    answers = []
    for i, answer in enumerate(data["settings"][0]["answers"]):
        lines = "".join(f'<tr><th>{setting["name"]}</th><td class="answer">'
                        f'{shaded_html(setting["answers"][i]["pieces"], layers)}</td></tr>' for setting in data["settings"])
        answers.append(f'<h2>{html.escape(answer["prompt"])}</h2><table>{lines}</table>')
    legend = shaded_html([{"text": f" {layers * (8 + i) / 16:.3g} ", "depth": layers * (8 + i) / 16} for i in range(9)],
                         layers)
    commands = "".join(f'<li>{s["name"]}: <code>fathom generate -m {html.escape(data["model"])} '
                       f'{html.escape(" ".join(s["options"]))} -n {data["tokens"]} --temp 0 -p …</code></li>'
                       for s in data["settings"])
    return f"""<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"/><meta name="viewport" content="width=device-width, initial-scale=1"/>
<title>fathom: {html.escape(data["model"])} at several depths</title><style>{STYLE}</style></head><body>
<h1>{html.escape(data["model"])} at several depths</h1>
<p class="soft">{html.escape(conditions(data))}. {html.escape("; ".join(data["version"]))}.</p>
<table><tr>{heading}</tr>{cells}</table>
<ul>{"".join(f"<li>{html.escape(line)}</li>" for line in remarks(data))}</ul>
<p>Each token on a ground that says how many layers ran for it: <span class="answer">{legend}</span></p>
{"".join(answers)}
<h2>Why</h2>
<p>The first prompt and its answer at {data["settings"][min(1, len(data["settings"]) - 1)]["name"]}, token by layer; <a href="inspect/index.html">the
whole page</a> has every score.</p>
<a href="inspect/index.html"><img src="inspect/heatmap-ran.svg" alt="Which token ran which layer"/></a>
<h2>Again</h2><ul>{commands}</ul>
</body></html>
"""


def picture(data, prompts=2):
    """One SVG: the first prompts' answers shaded, the table below. It brings its own ground, for light and dark pages;
    every text has a length, so that it fits whatever font shows it."""
    layers, out, y = data["layers"], [], 34
    width, left, em = 960, 132, 7.5

    def text(x, at, words, size=14, **more):
        extra = "".join(f' {key.replace("_", "-")}="{value}"' for key, value in more.items())
        out.append(f'<text x="{x:g}" y="{at:g}" font-size="{size}"{extra}>{html.escape(words)}</text>')

    def shaded_line(line, at):
        x = left
        out.append('<g font-family="DejaVu Sans Mono, Menlo, Consolas, monospace" font-size="12.5">')
        for words, depth in line:
            ground, ink = demo_shades.colours(depth, layers)
            out.append(f'<rect x="{x:g}" y="{at - 14:g}" width="{em * len(words):g}" height="20" fill="{ground}"/>')
            shown = words.strip(" ")
            if shown:
                begin = x + em * (len(words) - len(words.lstrip(" ")))
                out.append(f'<text x="{begin:g}" y="{at:g}" fill="{ink}" textLength="{em * len(shown):g}" '
                           f'lengthAdjust="spacingAndGlyphs">{html.escape(shown)}</text>')
            x += em * len(words)
        out.append("</g>")

    for i in range(min(prompts, len(data["settings"][0]["answers"]))):
        text(24, y, "▸ " + data["settings"][0]["answers"][i]["prompt"], 15, font_weight="bold")
        y += 26
        for setting in data["settings"]:
            text(24, y, setting["name"], 13, fill="#5c5c63")
            for line in demo_shades.lines(setting["answers"][i]["pieces"], int((width - left - 20) / em)):
                shaded_line(line, y)
                y += 23
        y += 16
    text(24, y, "layers run", 13, fill="#5c5c63")
    for i in range(9):
        ground, ink = demo_shades.colours(layers * (8 + i) / 16, layers)
        out.append(f'<rect x="{left + 52 * i}" y="{y - 14}" width="52" height="20" fill="{ground}"/>')
        text(left + 52 * i + 26, y, f"{'≤ ' if i == 0 else ''}{layers * (8 + i) / 16:.3g}", 12, fill=ink, text_anchor="middle")
    y += 40
    columns = [24, 250, 370, 500, 620, 780, 830]
    for r, row in enumerate(table(data)):
        for x, cell, c in zip(columns, row, range(7)):
            text(x, y, cell.replace(" x", " ×"), 14, text_anchor="end" if 0 < c < 6 else "start",
                 **({"fill": "#5c5c63"} if r == 0 else {}))
        out.append(f'<line x1="24" x2="{width - 24}" y1="{y + 8}" y2="{y + 8}" stroke="#d9d9de"/>')
        y += 28
    text(24, y - 2, conditions(data), 12, fill="#5c5c63")
    y += 14
    body = "\n".join(out)
    return f"""<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {y}" width="{width}" height="{y}" font-family="system-ui, 'DejaVu Sans', Arial, sans-serif" fill="#1d1d1f">
<title>{html.escape(data["model"])}: the same prompts at several depths, tokens shaded by the layers that ran</title>
<rect width="{width}" height="{y}" rx="8" fill="#fdfdfc"/>
{body}
</svg>
"""


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    pathlib.Path(sys.argv[2]).write_text(picture(json.loads(pathlib.Path(sys.argv[1]).read_text())))
