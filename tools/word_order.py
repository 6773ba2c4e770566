#!/usr/bin/env python3
"""Questions that a very small model can answer: in which order do these words stand? word_order.py TEXT OUT.jsonl COUNT

Each item is the beginning of a paragraph of TEXT, and four forms of what follows: as it is, and with two neighbouring words
exchanged in three places. In the uniform form of docs/evaluation.md. Prints {"items": COUNT}.
"""
import json
import pathlib
import sys

text, out, count = sys.argv[1], pathlib.Path(sys.argv[2]), int(sys.argv[3])
CONTEXT, PIECE = 160, 60  # characters, cut back to a whole word


def exchanged(words):
    for place in range(len(words) - 1):
        if words[place] != words[place + 1]:
            yield " ".join(words[:place] + [words[place + 1], words[place]] + words[place + 2:])


items = []
for paragraph in (p.strip() for p in pathlib.Path(text).read_text().split("\n")):
    if len(paragraph) < 2 * (CONTEXT + PIECE):
        continue
    middle = paragraph.rfind(" ", 0, CONTEXT)
    piece = paragraph[middle + 1:paragraph.rfind(" ", 0, middle + PIECE)]
    wrong = list(exchanged(piece.split(" ")))
    if middle > 0 and len(wrong) >= 3:
        items.append((paragraph[:middle], piece, wrong))
step = len(items) // count
if step == 0:
    sys.exit(f"word_order.py: {text} has {len(items)} paragraphs that are long enough, {count} are needed")
with open(out, "w") as file:
    for number, (context, piece, wrong) in enumerate(items[:count * step:step]):
        gold = number % 4
        choices = [wrong[(number + other) % len(wrong)] for other in range(3)]
        choices.insert(gold, piece)
        file.write(json.dumps({"ctx": context, "choices": choices, "gold": gold}) + "\n")
print(json.dumps({"items": count}))
