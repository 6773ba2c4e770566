#!/usr/bin/env python3
"""Words that make a comment, a help text, an error or a page hard to read.

They are looked for in comments of headers, those of tests too, in string literals of all sources and recipes, in the texts
of the methods' pictures, and in the Markdown pages. A line that needs one of them is listed in EXCEPTIONS as FILE: a part of the
line.
"""
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
WORDS = {
    r"\banew\b": "again",
    r"\bso many\b": "say how many of what",
    r"\bof (?:its|their) own\b": "its own X, or leave it out",
    r"\ball the same\b": "still, or nevertheless",
    r"\bin the mean\b": "on average",
    r"\bthe own ones\b": "name them",
    r"\bstandard\b(?! (?:error|deviation|library|input|output))": "default",
    r"\b[Nn]obody\b": "name the subject",
    r"\b[Ee]verybody\b": "name the subject",
    r"\b[Ss]omebody\b": "name the subject",
    r"\b[Ww]ho(?:ever)?\b": "name the subject ('which rows', 'the method that'); 'who' is for people",
}
EXCEPTIONS: dict[str, list[str]] = {
    "README.md": ["for people who"],
    "src/report/token_class.cc": ["anyone everyone someone", "i you he she"],  # English words
    "src/text/utf8_stream.h": ["Unicode standard"],
}


LITERAL = re.compile(r'"((?:[^"\\]|\\.)*)"')
CHARACTER = re.compile(r"'(?:[^'\\]|\\.)'")  # '"' begins no literal
assert LITERAL.findall(r'f("so \"many\"\n", "x")') == [r'so \"many\"\n', "x"]  # an escape ends no literal


def pieces(path):
    """Line numbers and the text in them that a reader reads."""
    fenced = False
    for number, line in enumerate(path.read_text().splitlines(), 1):
        if path.suffix == ".md":
            fenced ^= line.startswith("```")
            if not fenced:
                yield number, line
        elif path.suffix in (".h", ".cuh"):
            if comment := re.search(r"//(.*)", line):
                yield number, comment.group(1)
        if path.suffix in (".h", ".cuh", ".cc", ".cu", ".json"):
            for text in LITERAL.findall(CHARACTER.sub("''", line)):
                yield number, text
        if path.suffix == ".svg":
            for text in re.findall(r">([^<]+)<", line):
                yield number, text


def main():
    wrong = []
    paths = [p for p in sorted((ROOT / "src").rglob("*"))
             if p.suffix in (".h", ".cuh", ".cc", ".cu") and not re.search(r"_(test|fuzz)\.(cc|cu)$", p.name)]
    paths += sorted(ROOT.glob("*.md")) + sorted((ROOT / "docs").glob("*.md")) + sorted((ROOT / "models").glob("*/*.md"))
    paths += [ROOT / "src/README.md", ROOT / "configs/README.md"] + sorted((ROOT / "configs").glob("*/*.json"))
    paths += [p for p in sorted((ROOT / "docs/pictures").glob("*.svg")) if p.name != "demo.svg"]  # a model wrote that one
    for path in paths:
        name = str(path.relative_to(ROOT))
        for number, text in pieces(path):
            if any(part in text for part in EXCEPTIONS.get(name, [])):
                continue
            for word, better in WORDS.items():
                if found := re.search(word, text):
                    wrong.append(f"{name}:{number}: '{found.group(0)}' ({better})")
    print("\n".join(wrong) if wrong else f"English: {len(paths)} files without the listed words")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
