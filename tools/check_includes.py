#!/usr/bin/env python3
"""The order of the folders, one definition for each name, and the counts that CONTRIBUTING.md gives.

A folder of src/ includes only itself and folders before it, in the order of CMakeLists.txt's fathom_folder() lines. A type
at namespace scope is defined in one file of src/, bench/, tests/ and examples/: two definitions of one name are undefined
behaviour that no compiler reports. A function of an anonymous namespace is defined in one .cc file of its folder, because
these are compiled together (build/joined); tests are joined apart from the rest.
"""
import collections
import pathlib
import re
import sys

root = pathlib.Path(__file__).resolve().parent.parent
order = re.findall(r"^fathom_folder\((\w+)", (root / "CMakeLists.txt").read_text(), re.MULTILINE)
rank = {folder: i for i, folder in enumerate(order)}
heavy = r"<((nlohmann|CLI|spdlog|fmt|boost)/(?!json_fwd)|pcre2)"  # seconds per file: behind small types of ours
wrong, files = [], 0
types = collections.defaultdict(list)  # name -> where it is defined
hidden = collections.defaultdict(list)  # (folder, tests or not, signature) -> the same
alone = r"_(scalar|cuda_test|fuzz|main|dotprod|i8mm|avx2|avx512|avx512bf16|amx)\.cc$"  # as fathom_join in cmake/folders.cmake


def defined_types(text):
    """Names of the types that a file defines at namespace scope, outside anonymous namespaces, with their lines."""
    anonymous = False
    for number, line in enumerate(text.splitlines(), 1):
        if line.startswith("namespace {"):
            anonymous = True
        elif re.match(r"}  // namespace$", line):
            anonymous = False
        elif not anonymous and (found := re.match(r"(?:struct|class|union|enum(?: class)?) (\w+)\b(?!::)[^;(]*\{", line)):
            yield found.group(1), number


def hidden_functions(text):
    """Signatures of the functions that a file defines in anonymous namespaces, without the parameters' names."""
    for part in re.findall(r"^namespace \{\n(.*?)^\}  // namespace$", text, re.MULTILINE | re.DOTALL):
        for name, parameters in re.findall(r"^(?!template|struct|class|enum)\w[\w:<>,*& ]*?[ *&](\w+)\(([^;{}()]*)\) \{", part, re.MULTILINE):
            words = re.sub(r"\s+", " ", re.sub(r"\s=\s[^,]+", "", parameters))
            types_alone = re.sub(r"(?<=[>&* ])[a-z]\w*(?=,|$)", "", words)
            yield f"{name}({types_alone})"


def stated(file, pattern, count, what):
    """The number that a page gives is the one counted."""
    found = re.search(pattern, (root / file).read_text())
    if not found or int(found.group(1)) != count:
        wrong.append(f"{file}: {found.group(0) if found else pattern!r}: there are {count} {what}")


paths = [path for path in sorted((root / "src").rglob("*")) if path.suffix in (".h", ".cc", ".cu", ".cuh")]
for path in paths:
    inside = path.relative_to(root / "src")
    folder = inside.parts[0]
    files += 1
    if folder not in rank or len(inside.parts) > 3:
        wrong.append(f"{path.relative_to(root)}: src/{inside.parent} is no fathom_folder() of CMakeLists.txt, nor one below it")
        continue
    text = path.read_text()
    for name, number in defined_types(text):
        types[name].append(f"{path.relative_to(root)}:{number}")
    if path.suffix == ".cc" and not re.search(alone, path.name):
        for signature in hidden_functions(text):
            hidden[folder, path.name.endswith("_test.cc"), signature].append(str(path.relative_to(root)))
    for number, line in enumerate(text.splitlines(), 1):
        place = f"{path.relative_to(root)}:{number}"
        if include := re.match(r'\s*#\s*include\s+"([^"/]+)/([^"]+)"', line):
            other = include.group(1)
            if other == "support" and "_test" in path.name:
                continue  # tests/support, and test_paths.h of the build folder
            if other not in rank:
                wrong.append(f"{place}: there is no folder {other}")
            elif rank[other] > rank[folder]:
                wrong.append(f"{place}: {folder} comes before {other} and may not include it")
            elif not (root / "src" / other / include.group(2)).exists():
                wrong.append(f"{place}: there is no header {other}/{include.group(2)}")
        elif re.match(r'\s*#\s*include\s+"', line):
            wrong.append(f'{place}: a header is named with its folder, "{inside.parent}/…"')
        elif path.suffix in (".h", ".cuh") and path.name != "format.h" and re.match(rf"\s*#\s*include\s+{heavy}", line):
            wrong.append(f"{place}: this library is included in .cc files only")

for path in sorted(each for folder in ("bench", "tests", "examples") for each in (root / folder).rglob("*")):
    if path.suffix in (".h", ".cc", ".cu", ".cuh"):
        for name, number in defined_types(path.read_text()):
            types[name].append(f"{path.relative_to(root)}:{number}")
for name, places in sorted(types.items()):
    if len(places) > 1:
        wrong.append(f"{places[0]}: the type {name} is defined again in {', '.join(places[1:])}")
for (_, _, signature), places in sorted(hidden.items()):
    if len(set(places)) > 1:
        wrong.append(f"{places[0]}: {signature} of an anonymous namespace is defined again in {', '.join(sorted(set(places[1:])))}")
method = re.search(r"^class Method \{\n(.*?)^\};", (root / "src/skip/method.h").read_text(), re.MULTILINE | re.DOTALL).group(1)
questions = len(re.findall(r"^  virtual (?!~)", method, re.MULTILINE))
stated("src/skip/method.h", r"A method: (\d+) functions", questions, "virtual functions of Method")
stated("CONTRIBUTING.md", r"\((\d+) in four groups", questions, "virtual functions of Method")
stated("src/README.md", r"the interface: (\d+) functions", questions, "virtual functions of Method")
stated("CONTRIBUTING.md", r"`OP_cuda.cu` \((\d+) files", len(list((root / "src/ops").rglob("*_cuda.cu"))), "files *_cuda.cu")
print("\n".join(wrong) if wrong else f"includes: {files} files in order, {len(types)} types defined once")
sys.exit(1 if wrong else 0)
