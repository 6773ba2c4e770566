#!/usr/bin/env python3
"""method_pictures.py OUT_DIR: the pictures of docs/methods.md, one SVG for each method: who runs where, token by layer.

A column is a token, a row a layer, layer 0 at the bottom; the lower half of a cell is attention, the upper half the FFN.
The decisions are made up to show a rule's shape: no model was run. Each picture brings its own ground, so that it reads
on light and dark pages; attention and FFN differ in brightness as well as in hue.
"""
import html
import pathlib
import sys

TOKENS = ["The", "old", "cat", "sat", "on", "the", "warm", "mat", "."]
HARD = [0.35, 0.62, 0.93, 0.74, 0.2, 0.12, 0.55, 0.85, 0.3]  # how much of the model each token is thought to need
LAYERS = 8
CELL, UNIT = 40, 12  # a token's width, a unit's height
LEFT, TOP = 66, 30
INK, SOFT, LINE = "#1d1d1f", "#5c5c63", "#b9b9c2"
ATTENTION, FFN, KEYS = "#0b4f8a", "#e69f00", "#000000"


def noise(*key):
    """A number in [0, 1) that looks random and is always the same."""
    value = 2166136261
    for part in key:
        value = ((value ^ (part + 1)) * 16777619) % 2**32
        value ^= value >> 15
    return (value * 2654435761 % 2**32) / 2**32


class Picture:
    """run[token, layer, unit] in [0, 1]: how much of a unit's output is used; 0: skipped. keys[token, layer]: what later
    tokens see of a row that skipped attention: 'projected' or nothing."""

    def __init__(self, title, notes, tokens=TOKENS):
        self.title, self.notes, self.tokens = title, notes, tokens
        self.run = {(t, layer, unit): 1.0 for t in range(len(tokens)) for layer in range(LAYERS) for unit in (0, 1)}
        self.keys = set()
        self.marks = []    # extra shapes
        self.wide = False  # the FFN: twice as wide as attention

    def skip(self, token, layer, units=(0, 1), keys=True):
        for unit in units:
            self.run[token, layer, unit] = 0.0
        if keys and 0 in units:
            self.keys.add((token, layer))

    def x(self, token):
        return LEFT + CELL * token

    def y(self, layer, unit=0):
        """The top of a unit."""
        return TOP + (2 * UNIT + 8) * (LAYERS - 1 - layer) + (UNIT if unit == 0 else 0)

    def text(self, x, y, words, size=12, anchor="start", fill=INK, weight="normal"):
        return (f'<text x="{x:g}" y="{y:g}" font-size="{size}" text-anchor="{anchor}" fill="{fill}" '
                f'font-weight="{weight}">{html.escape(words)}</text>')

    def box(self, token, unit, layer):
        """A unit as a path."""
        wide = (CELL - 8) * (0.5 if self.wide and unit == 0 else 1)
        return f"M{self.x(token) + (CELL - wide) / 2:g} {self.y(layer, unit)}h{wide:g}v{UNIT - 1}h-{wide:g}z"

    def cells(self):
        """All units, one path for those that look alike."""
        alike, dots = {}, []
        for (token, layer, unit), share in self.run.items():
            look = (ATTENTION if unit == 0 else FFN, f"{share:.2g}") if share > 0 else ("none", "1")
            alike.setdefault(look, []).append(self.box(token, unit, layer))
            if share == 0 and unit == 0 and (token, layer) in self.keys:
                x, y = self.x(token) + CELL / 2, self.y(layer) + UNIT / 2 - 0.5
                dots.append(f'<circle cx="{x:g}" cy="{y:g}" r="2.6" fill="{KEYS}"/>')
        for (colour, share), boxes in alike.items():
            yield (f'<path d="{"".join(boxes)}" fill="{colour}" fill-opacity="{share}" '
                   f'stroke="{LINE if colour == "none" else colour}" stroke-width="0.8"/>')
        yield from dots

    def svg(self):
        right = self.x(len(self.tokens)) + 22
        width, height = right + 300, self.y(0) + UNIT + 44
        out = [self.text(LEFT, 18, self.title, 14, weight="bold")]
        for layer in range(LAYERS):
            out.append(self.text(LEFT - 8, self.y(layer) + 4, f"layer {layer}", 11, "end", SOFT))
        out += self.cells()
        for token, word in enumerate(self.tokens):
            out.append(self.text(self.x(token) + CELL / 2, self.y(0) + UNIT + 18, word, 12, "middle"))
        out += self.marks
        y = TOP + 12
        for line in self.notes:
            out.append(self.text(right, y, line, 12.5, fill=INK))
            y += 18
        y = max(y + 10, self.y(0) - 52)
        for colour, words in ((FFN, "FFN runs"), (ATTENTION, "attention runs")):
            out.append(f'<rect x="{right}" y="{y - 10}" width="26" height="{UNIT - 1}" fill="{colour}"/>')
            out.append(self.text(right + 36, y, words, 12, fill=SOFT))
            y += 18
        out.append(f'<rect x="{right}" y="{y - 10}" width="26" height="{UNIT - 1}" fill="none" stroke="{LINE}"/>')
        out.append(self.text(right + 36, y, "skipped", 12, fill=SOFT))
        if self.keys:
            y += 18
            out.append(f'<rect x="{right}" y="{y - 10}" width="26" height="{UNIT - 1}" fill="none" stroke="{LINE}"/>')
            out.append(f'<circle cx="{right + 13}" cy="{y - 4.5}" r="2.6" fill="{KEYS}"/>')
            out.append(self.text(right + 36, y, "skipped, its keys and values are there", 12, fill=SOFT))
        body = "\n".join(out)
        return (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height:g}" width="{width}" height="{height:g}" '
                f'font-family="system-ui, \'DejaVu Sans\', Arial, sans-serif">\n<title>{html.escape(self.title)}</title>\n'
                f'<rect width="{width}" height="{height:g}" rx="8" fill="#fdfdfc"/>\n{body}\n</svg>\n')

    def bracket(self, first, last, words):
        """Words under the tokens first … last."""
        x0, x1, y = self.x(first) + 4, self.x(last) + CELL - 4, self.y(0) + UNIT + 26
        self.marks.append(f'<path d="M{x0:g} {y}v4H{x1:g}v-4" fill="none" stroke="{SOFT}"/>')
        self.marks.append(self.text((x0 + x1) / 2, y + 15, words, 11, "middle", SOFT))


def dense():
    return Picture("dense: every token runs every layer", ["Nothing is decided, nothing is saved:", "what the others are compared with."])


def skip_middle():
    p = Picture("Skip-Middle: out of the middle, outward",
                ["Scores add up from below. Where the sum", "reaches 1 the token leaves, and comes", "back at the mirrored layer.",
                 "Before that the sum fades its blocks.", "No token sees it where it skipped."])
    for t, hard in enumerate(HARD):
        total = 0.0
        for layer in range(LAYERS // 2):
            total += max(0.0, 0.62 * (1 - hard) - 0.1 + 0.12 * noise(t, layer)) if layer else 0.0
            for mirrored in (layer, LAYERS - 1 - layer):
                for unit in (0, 1):
                    p.run[t, mirrored, unit] = max(0.0, 1 - total)
    return p


def mind_skip():
    p = Picture("MindSkip: a sequence decides once",
                ["A router in front of some attention units", "(upper half) reads the mean of the first",
                 "rows, and decides for all that follow.", "FFNs always run. A skipped layer keeps",
                 "no keys and values of this sequence:", "the cache is smaller."])
    for layer in (3, 5, 6):
        for t in range(3, len(TOKENS)):
            p.skip(t, layer, units=(0,), keys=False)
    p.bracket(0, 2, "run all, decide")
    p.bracket(3, len(TOKENS) - 1, "keep to it")
    return p


def gate_skip():
    p = Picture("GateSkip: gates on the residual branches",
                ["Every unit's output is multiplied by a", "gate (the darker, the more open). A row",
                 "whose mean gate is below the layer's", "threshold skips the unit. The thresholds",
                 "make every layer skip the same share."])
    for layer in range(LAYERS):
        for unit in (0, 1):
            gates = [0.3 + 0.45 * hard + 0.3 * noise(7, t, layer, unit) for t, hard in enumerate(HARD)]
            lowest = sorted(range(len(TOKENS)), key=gates.__getitem__)[:2]
            for t, gate in enumerate(gates):
                p.run[t, layer, unit] = min(gate, 1.0)
            for t in lowest:
                p.skip(t, layer, units=(unit,))
    return p


def skip_layer():
    p = Picture("SkipLayer: a switch in front of every block",
                ["A router with two logits says for each", "token: run the whole block, or pass.", "Trained from scratch with Gumbel noise;",
                 "a loss holds the share that runs.", "A row that passes still leaves its keys", "and values, so that later tokens see it."])
    for t, hard in enumerate(HARD):
        for layer in range(LAYERS):
            if noise(3, t, layer) > 0.18 + 0.7 * hard:
                p.skip(t, layer)
    return p


def priced():
    p = Picture("priced routers (ours): one price for the network",
                ["Each unit says what it is worth to this", "token. It runs where that is more than",
                 "price × cost. One price for all units:", "layers compete, and those that matter",
                 "(the first, the last) skip nothing.", "Another budget is another price."])
    for t, hard in enumerate(HARD):
        for layer in range(LAYERS):
            for unit in (0, 1):
                worth = 0.55 * hard + 0.5 * noise(5, t, layer, unit) + (2 if layer < 2 or layer == LAYERS - 1 else 0)
                if worth < (0.42 if unit == 0 else 0.56):
                    p.skip(t, layer, units=(unit,))
    return p


def nested():
    p = Picture("nested lists (ours): one decision a row",
                ["Units go in one order, the least harmful", "first. After the first layers a head", "foresees what each list costs this token;",
                 "the token takes the list of least", "loss + price × cost, and keeps to it.", "What no list of the budget runs has no", "keys and values."])
    order = [(4, 0), (5, 1), (3, 0), (5, 0), (4, 1), (6, 0), (3, 1), (6, 1)]
    for t, hard in enumerate(HARD):
        for layer, unit in order[:2 * min(4, 1 + int(4 * (1 - hard)))]:
            p.skip(t, layer, units=(unit,), keys=(layer, unit) != (4, 0))
    return p


def mixture_of_depths():
    p = Picture("Mixture of Depths: a fixed number of tokens a layer",
                ["In training each block takes the same", "number of tokens of a sequence, those", "that its router rates highest.",
                 "A small predictor, which sees no future,", "decides afterwards. A row not taken is", "not seen in that layer."])
    for layer in range(LAYERS):
        scores = [hard + 0.7 * noise(11, t, layer) for t, hard in enumerate(HARD)]
        for t in sorted(range(len(TOKENS)), key=scores.__getitem__)[:3]:
            p.skip(t, layer, keys=False)
    return p


def early_exit():
    p = Picture("Early exits: CALM, FREE, LayerSkip",
                ["CALM: a token leaves after the layer at", "which its prediction is sure enough.", "FREE: one exit, or all the way.",
                 "LayerSkip: the same exit for all tokens.", "Layers above get keys and values made", "from the state that left."],
                ["The", "old", "cat", "The", "old", "cat", "The", "old", "cat"])
    exits = [5, 6, 8, 3, 8, 8, 6, 6, 6]
    for t, last in enumerate(exits):
        for layer in range(last, LAYERS):
            p.skip(t, layer)
    for first, name in ((0, "CALM"), (3, "FREE"), (6, "LayerSkip")):
        p.bracket(first, first + 2, name)
    return p


def static_drop():
    p = Picture("Fixed lists: Attention Drop, ShortGPT, harm order",
                ["The same units are missing for every", "token; text decided once which.", "Attention Drop: attention units whose",
                 "output differs least from their input.", "ShortGPT: whole blocks, likewise.", "Harm order: any unit, by the damage its",
                 "loss does for each multiply-add saved."],
                ["The", "old", "cat", "The", "old", "cat", "The", "old", "cat"])
    dropped = [[(5, 0), (6, 0), (4, 0)], [(5, 0), (5, 1), (6, 0), (6, 1)], [(3, 1), (4, 0), (5, 0), (6, 1)]]
    for group, units in enumerate(dropped):
        for t in range(3 * group, 3 * group + 3):
            for layer, unit in units:
                p.skip(t, layer, units=(unit,), keys=False)
    for first, name in ((0, "Attention Drop"), (3, "ShortGPT"), (6, "harm order")):
        p.bracket(first, first + 2, name)
    return p


def wide_ffn():
    p = Picture("WideFFN: wider, and half of it",
                ["SkipLayer's comparison: no more layers,", "but FFNs twice as wide, and a switch in", "front of each FFN. Attention always runs."])
    p.wide = True
    for t, hard in enumerate(HARD):
        for layer in range(LAYERS):
            if noise(13, t, layer) > 0.12 + 0.75 * hard:
                p.skip(t, layer, units=(1,))
    return p


def highway():
    p = Picture("HighwayNet: mixed, never skipped",
                ["Every FFN's output is mixed with its", "input, channel by channel, by a gate", "(the darker, the more of the FFN).",
                 "Everything is computed: SkipLayer's", "comparison for a soft choice."])
    for t, hard in enumerate(HARD):
        for layer in range(LAYERS):
            p.run[t, layer, 1] = 0.15 + 0.5 * hard * noise(17, t, layer) + 0.2 * noise(19, t, layer)
    return p


def random():
    p = Picture("random: the same share, nothing learned",
                ["Each row tosses a coin in front of each", "unit, always the same one for the same", "seed, sequence, position and unit.",
                 "What a learned method must beat."])
    for t in range(len(TOKENS)):
        for layer in range(LAYERS):
            for unit in (0, 1):
                if noise(23, t, layer, unit) < 0.25:
                    p.skip(t, layer, units=(unit,))
    return p


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    folder = pathlib.Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for make in (dense, skip_middle, mind_skip, gate_skip, skip_layer, priced, nested, mixture_of_depths, early_exit, static_drop,
                 wide_ffn, highway, random):
        (folder / f"{make.__name__}.svg").write_text(make().svg())


if __name__ == "__main__":
    main()
