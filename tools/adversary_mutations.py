"""What adversary.py does to files: every change is drawn from the random generator that it is given."""
import json
import os
import pathlib
import shutil
import struct

NUMBERS = [0, 1, -1, 2, 255, 256, 4096, 65535, 2**31 - 1, 2**31, 2**32, 2**53, 2**62, 2**63 - 1, 2**63, 2**64 - 1, 2**64,
           -2**31, -2**63, 0.5, -0.5, 1e-300, 1e300, 1e999]
TEXTS = ["", "\x00", "a", "\u2581", "..", "/", "../../etc/passwd", "\ud7ff\U0010ffff", "%s%n", "x" * 5000, "<s>", "llama",
         "{{ x }}", "(a+)+$", "\x1b[31m", "0", "nan", "true"]
JSON_SUFFIXES = (".json", "DONE")
BIT_PATTERNS = [b"\0\0\0\0", b"\xff\xff\xff\xff", b"\0\0\xc0\x7f", b"\0\0\x80\x7f", b"\x01\0\xc0\x7f", b"\xff\xff\xff\x7f",
                b"\0\0\0\x80", b"\0\x7e\0\x7e", b"\0\x7c\0\xfc"]


def crc32c_table():
    table = []
    for byte in range(256):
        crc = byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
        table.append(crc)
    return table


TABLE = crc32c_table()


def crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ TABLE[(crc ^ byte) & 255]
    return crc ^ 0xFFFFFFFF


def deep(rng):
    """Text that is nested deeper than anything should be."""
    depth = rng.choice([70, 5000, 200000])
    return rng.choice(["[" * depth + "]" * depth, '{"a":' * depth + "1" + "}" * depth, "[" * depth])


def change_bytes(rng, data):
    """Some bytes of a binary file, the first ones more often: they hold lengths and counts."""
    data = bytearray(data)
    for _ in range(rng.choice([1, 1, 2, 5, 30])):
        if not data:
            return b"\0"
        at = rng.randrange(min(len(data), rng.choice([16, 64, 1024, 1 << 30])))
        kind = rng.randrange(8)
        if kind == 0:
            data[at] ^= 1 << rng.randrange(8)
        elif kind == 1:
            data[at] = rng.randrange(256)
        elif kind == 2:
            value = rng.choice([n for n in NUMBERS if isinstance(n, int)]) & (2**64 - 1)
            data[at:at + 8] = struct.pack("<Q", value)
        elif kind == 3:
            data[at:at + 4] = rng.choice(BIT_PATTERNS)
        elif kind == 4:
            del data[at:]
        elif kind == 5:
            data += bytes(rng.randrange(256) for _ in range(rng.randrange(64)))
        elif kind == 6:
            size = rng.randrange(1, 200)
            data[at:at + size] = data[:size]
        else:
            size = rng.randrange(1, 5000)
            pattern = rng.choice(BIT_PATTERNS)
            data[at:at + size] = (pattern * (size // 4 + 1))[:size]
    return bytes(data)


def nodes(tree, path=()):
    """Every place in a JSON tree."""
    yield path
    children = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    for key, child in children:
        yield from nodes(child, (*path, key))


def is_small(value):
    """Whether many copies of it are still a file of a few megabytes."""
    return len(json.dumps(value)) < 10000


def random_value(rng, old):
    kind = rng.randrange(8) if is_small(old) else rng.randrange(5)
    if kind < 3 or (kind == 3 and isinstance(old, (int, float))):
        return rng.choice(NUMBERS)
    if kind == 3:
        return rng.choice([None, True, False, [], {}])
    if kind == 4:
        return rng.choice(TEXTS)
    if kind == 5 and isinstance(old, list) and old:
        return old * rng.choice([2, 30, 300])
    if kind == 5 and isinstance(old, str):
        return old * rng.choice([0, 2, 1000])
    if kind == 6:
        return [old] * rng.choice([1, 2, 500])
    return {rng.choice(TEXTS): old}


def change_tree(rng, tree):
    """One place of a JSON tree. Vocabularies are long: their parts are chosen less often than what is around them."""
    places = [path for path in nodes(tree) if path]
    if not places:
        return rng.choice([None, [], {}, 7])
    short = [path for path in places if len(path) <= rng.choice([1, 2, 3, 9])]
    path = rng.choice(short or places)
    parent = tree
    for key in path[:-1]:
        parent = parent[key]
    key = path[-1]
    kind = rng.randrange(6)
    if kind == 0:
        del parent[key]
    elif kind == 1 and isinstance(parent, dict):
        parent[rng.choice([*TEXTS, str(key) + "s"])] = parent.pop(key)
    elif kind == 2 and isinstance(parent, dict):
        parent[rng.choice(TEXTS)] = random_value(rng, parent[key])
    else:
        parent[key] = random_value(rng, parent[key])
    return tree


def bomb(rng, tree):
    """Steps of a tokenizer that make a text longer and longer, or a template of many tokens."""
    step = rng.choice([
        {"type": "Replace", "pattern": {"String": "a"}, "content": "aa"},
        {"type": "Replace", "pattern": {"Regex": "."}, "content": "a" * rng.choice([2, 100000])},
        {"type": "Prepend", "prepend": "a" * rng.choice([1, 100000])},
        {"type": "ByteLevel", "add_prefix_space": True, "use_regex": False, "trim_offsets": False},
        {"type": "Metaspace", "replacement": rng.choice(["  ", "\u2581"]), "prepend_scheme": "always", "split": False},
        {"type": "Strip", "content": "a", "start": 2**40, "stop": 2**40, "strip_left": True, "strip_right": True}])
    steps = [step] * rng.choice([1, 28, 250, 5000 if is_small(step) else 28])
    part, key = rng.choice([("normalizer", "normalizers"), ("pre_tokenizer", "pretokenizers"), ("decoder", "decoders")])
    tree[part] = {"type": "Sequence", key: steps}
    if rng.random() < 0.2:
        tree["post_processor"] = {"type": "TemplateProcessing", "single": [{"Sequence": {"id": "A"}}] + [
            {"SpecialToken": {"id": "x"}}] * 5000, "special_tokens": {"x": {"ids": [0] * 5000}}}
    return tree


def change_json(rng, data):
    if rng.random() < 0.1:
        return deep(rng).encode()
    try:
        tree = json.loads(data)
    except (ValueError, RecursionError):
        return change_bytes(rng, data)
    if isinstance(tree, dict) and "pre_tokenizer" in tree and rng.random() < 0.2:
        tree = bomb(rng, tree)
    for _ in range(rng.choice([1, 1, 1, 2, 4])):
        tree = change_tree(rng, tree)
        if not isinstance(tree, (dict, list)):
            break
    text = json.dumps(tree, ensure_ascii=False)
    if rng.random() < 0.05:
        return text.encode("utf-8", "replace")[:rng.randrange(len(text) + 1)]
    return text.replace("Infinity", "1e999").encode("utf-8", "replace")


def change_safetensors(rng, data):
    """Its header as JSON, with a length that fits; or its bytes."""
    length = struct.unpack("<Q", data[:8])[0] if len(data) >= 8 else 0
    if rng.random() < 0.5 or length > len(data):
        return change_bytes(rng, data)
    header = change_json(rng, data[8:8 + length])
    return struct.pack("<Q", len(header)) + header + data[8 + length:]


def change_file(rng, path):
    """One file: what it holds, mostly; sometimes what it is."""
    kind = rng.random()
    if kind < 0.02:
        path.unlink()
        return "removed"
    if kind < 0.04:
        path.unlink()
        how = rng.choice(["folder", "pipe", "loop", "empty"])
        if how == "folder":
            path.mkdir()
        elif how == "pipe":
            os.mkfifo(path)
        elif how == "loop":
            path.symlink_to(path.name)
        else:
            path.touch()
        return how
    data = path.read_bytes()
    if path.name.endswith(JSON_SUFFIXES):
        path.write_bytes(change_json(rng, data))
    elif path.suffix == ".safetensors":
        path.write_bytes(change_safetensors(rng, data))
    else:
        path.write_bytes(change_bytes(rng, data))
    return "changed"


def files_of(folder):
    return sorted(path for path in folder.rglob("*") if path.is_file() and not path.is_symlink())


def change_some(rng, place):
    """One to three files of a folder, or the file itself; returns what was done, for the report."""
    if place.is_file():
        return [f"{place.name} {change_file(rng, place)}"]
    done = []
    for _ in range(rng.choice([1, 1, 1, 2, 3])):
        path = rng.choice(files_of(place) or [None])
        if path:
            done.append(f"{path.relative_to(place)} {change_file(rng, path)}")
    return done


def seal_checkpoint(folder):
    """A DONE that fits what the files hold now: the reader must look at them."""
    def bytes_of(name):  # reading a pipe would not end
        return (folder / name).read_bytes() if (folder / name).is_file() else b""
    try:
        done = json.loads(bytes_of("DONE"))
        for name in list(done["files"]):
            data = bytes_of(name)
            done["files"][name] = {"bytes": len(data), "crc32c": crc32c(data)}
        done["crc32c"] = crc32c(json.dumps(done["files"], separators=(",", ":"), ensure_ascii=False).encode())
        (folder / "DONE").write_text(json.dumps(done))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        pass  # DONE itself, or a file that it names, is what was changed


def copied(source, target):
    """A fresh copy of a file or folder."""
    if pathlib.Path(source).is_dir():
        shutil.copytree(source, target, symlinks=True)
    else:
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, target)
    return target
