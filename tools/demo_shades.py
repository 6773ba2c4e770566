"""What the demo's terminal, page and picture share: shades of depth, and lines of shaded text.

A shade says which share of the layers ran for a token, from half of them or fewer (dark blue) to all (yellow), as
`generate --show-depth` does.
"""
TERMINAL = [17, 18, 24, 60, 66, 101, 143, 185, 227]  # of xterm's 256 colours
SCREEN = ["#00224e", "#123570", "#3b496c", "#575d6d", "#707173", "#8a8678", "#a59c74", "#c3b369", "#fee838"]
FIRST_LIGHT = 5  # from here on black ink


def step(depth, layers):
    return round(8 * min(max(2 * depth / layers - 1, 0), 1))


def colours(depth, layers):
    """Ground and ink on a page."""
    shade = step(depth, layers)
    return SCREEN[shade], "#000" if shade >= FIRST_LIGHT else "#fff"


def in_terminal(text, depth, layers):
    shade = step(depth, layers)
    return f"\x1b[48;5;{TERMINAL[shade]};38;5;{16 if shade >= FIRST_LIGHT else 231}m{text}\x1b[0m"


def lines(pieces, width):
    """The pieces ({text, depth}) in lines of at most `width` characters, lists of (text, depth), broken before a piece
    that begins with a space, which goes; line ends in the text are shown as ⏎."""
    out, used = [[]], 0
    words = []  # stretches that are not broken: a piece, and those after it without a space before them
    for piece in pieces:
        text = "".join("⏎" if c == "\n" else c if c.isprintable() else "·" for c in piece["text"])
        if words and not text.startswith((" ", "⏎")):
            words[-1].append((text, piece["depth"]))
        else:
            words.append([(text, piece["depth"])])
    for word in words:
        length = sum(len(text) for text, _ in word)
        if used and used + length > width:
            out.append([])
            used = 0
        if used == 0 and word[0][0].startswith(" "):
            word[0] = (word[0][0][1:], word[0][1])
            length -= 1
        for text, depth in word:  # a word longer than a line is cut
            for begin in range(0, len(text), width):
                out[-1].append((text[begin:begin + width], depth))
        used += length
    return out
