#!/usr/bin/env python3
"""A folder of src/ includes only itself and folders before it, in the order of CMakeLists.txt's fathom_folder() lines."""
import pathlib
import re
import sys

root = pathlib.Path(__file__).resolve().parent.parent
order = re.findall(r"^fathom_folder\((\w+)", (root / "CMakeLists.txt").read_text(), re.MULTILINE)
rank = {folder: i for i, folder in enumerate(order)}
heavy = r"<((nlohmann|CLI|spdlog|fmt|boost)/(?!json_fwd)|pcre2)"  # seconds per file: behind small types of ours
wrong, files = [], 0

for path in sorted((root / "src").glob("*/*")):
    folder = path.parent.name
    if path.suffix not in (".h", ".cc", ".cu", ".cuh"):
        continue
    files += 1
    if folder not in rank:
        wrong.append(f"{path.relative_to(root)}: src/{folder} is not a fathom_folder() of CMakeLists.txt")
        continue
    for number, line in enumerate(path.read_text().splitlines(), 1):
        place = f"{path.relative_to(root)}:{number}"
        if include := re.match(r'\s*#\s*include\s+"([^"/]+)/', line):
            other = include.group(1)
            if other == "support" and path.name.endswith("_test.cc"):
                continue  # tests/support
            if other not in rank:
                wrong.append(f"{place}: there is no folder {other}")
            elif rank[other] > rank[folder]:
                wrong.append(f"{place}: {folder} comes before {other} and may not include it")
        elif re.match(r'\s*#\s*include\s+"', line):
            wrong.append(f'{place}: a header is named with its folder, "{folder}/…"')
        elif path.suffix in (".h", ".cuh") and path.name != "format.h" and re.match(rf"\s*#\s*include\s+{heavy}", line):
            wrong.append(f"{place}: this library is included in .cc files only")

print("\n".join(wrong) if wrong else f"includes: {files} files in order")
sys.exit(1 if wrong else 0)
