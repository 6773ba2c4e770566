#!/usr/bin/env python3
"""Pieces of a text to train on, to validate on and to test with, no document in two of them.

split_text.py TEXT PREFIX [TRAIN VALID TEST]: of the documents of TEXT (between lines <|endoftext|>; -: stdin) every tenth
goes to PREFIX-valid.txt, every tenth to PREFIX-test.txt, the others to PREFIX-train.txt, until each has its size in
bytes (7,000,000, 1,500,000 and 1,500,000 unless given).
"""
import pathlib
import sys

if len(sys.argv) not in (3, 6):
    sys.exit(__doc__)
text, prefix = sys.argv[1:3]
sizes = [int(s) for s in sys.argv[3:6]] or [7_000_000, 1_500_000, 1_500_000]
whole = sys.stdin.read() if text == "-" else pathlib.Path(text).read_text()
pieces = {"train": [], "valid": [], "test": []}
left = dict(zip(pieces, sizes))
for number, document in enumerate(whole.split("<|endoftext|>")):
    piece = {0: "valid", 1: "test"}.get(number % 10, "train")
    document = document.strip()
    if document and left[piece] > 0:
        pieces[piece].append(document)
        left[piece] -= len(document.encode())
for piece, documents in pieces.items():
    if not documents:
        sys.exit(f"split_text.py: {text} has too few documents for a {piece} piece")
for piece, documents in pieces.items():
    path = pathlib.Path(f"{prefix}-{piece}.txt")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n<|endoftext|>\n".join(documents) + "\n")
    print(f"{path}: {len(documents)} documents, {path.stat().st_size} bytes")
