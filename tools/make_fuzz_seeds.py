#!/usr/bin/env python3
"""Writes the seed corpora of src/io's and src/serve's fuzz targets: small valid files, and one file for each way to be invalid.

    python3 tools/make_fuzz_seeds.py [tests/corpus]

Needs nothing beyond Python; the same call always writes the same bytes.
"""
import json
import struct
import sys
from pathlib import Path

U8, I8, U16, I16, U32, I32, F32, BOOL, STRING, ARRAY, U64, I64, F64 = range(13)
HUGE = 2**64 - 1


# GGUF ----------------------------------------------------------------------------------------------------------------

def string(text):
    data = text.encode() if isinstance(text, str) else text
    return struct.pack("<Q", len(data)) + data


def key(name, kind, value):
    return string(name) + struct.pack("<I", kind) + value


def array(kind, count, values):
    return struct.pack("<IQ", kind, count) + values


def tensor(name="w", dims=(4,), kind=0, offset=0):
    return string(name) + struct.pack("<I", len(dims)) + struct.pack(f"<{len(dims)}Q", *dims) + struct.pack("<IQ", kind, offset)


def gguf(keys=(), tensors=(), data=b"", *, version=3, n_keys=None, n_tensors=None, magic=b"GGUF", alignment=32):
    head = magic + struct.pack("<IQQ", version, len(tensors) if n_tensors is None else n_tensors,
                               len(keys) if n_keys is None else n_keys)
    head += b"".join(keys) + b"".join(tensors)
    return head + b"\0" * (-len(head) % alignment) + data


def gguf_seeds():
    scalars = [key("u8", U8, b"\xff"), key("i8", I8, b"\x80"), key("u16", U16, b"\xff\xff"), key("i16", I16, b"\0\x80"),
               key("u32", U32, b"\xff" * 4), key("i32", I32, b"\xff" * 4), key("f32", F32, struct.pack("<f", 0.1)),
               key("bool", BOOL, b"\1"), key("string", STRING, string("text")), key("u64", U64, b"\xff" * 8),
               key("i64", I64, b"\xff" * 8), key("f64", F64, struct.pack("<d", 0.1))]
    arrays = [key("words", ARRAY, array(STRING, 3, string("") + string("a") + string("bc"))),
              key("scores", ARRAY, array(F32, 2, struct.pack("<ff", 1, -2))),
              key("types", ARRAY, array(I32, 2, struct.pack("<ii", 1, 3))),
              key("flags", ARRAY, array(BOOL, 2, b"\1\0")), key("none", ARRAY, array(U64, 0, b""))]
    one_byte = key("k", U8, b"\1")
    blocks = [(2, 32, 18), (3, 32, 20), (6, 32, 22), (7, 32, 24), (8, 32, 34), (10, 256, 84), (11, 256, 110), (12, 256, 144),
              (13, 256, 176), (14, 256, 210)]
    seeds = {
        "valid_empty": gguf(),
        "valid_scalars": gguf(scalars),
        "valid_arrays": gguf(arrays),
        "valid_v2": gguf([one_byte], [tensor()], bytes(16), version=2),
        "valid_two_tensors": gguf(scalars[:1], [tensor("a", (3, 2)), tensor("b", (1, 1, 1, 5), 1, 32)], bytes(42)),
        "valid_alignment_64": gguf([key("general.alignment", U32, struct.pack("<I", 64))],
                                   [tensor(), tensor("v", (2,), 0, 64)], bytes(72), alignment=64),
        "magic": gguf(magic=b"GGML"),
        "magic_big_endian": gguf(magic=b"FUGG"),
        "version_0": gguf(version=0),
        "version_1": gguf(version=1),
        "version_4": gguf(version=4),
        "version_big_endian": gguf(version=0x03000000),
        "n_keys_huge": gguf(n_keys=HUGE),
        "n_keys_one_more": gguf([one_byte], n_keys=2),
        "n_tensors_huge": gguf(n_tensors=HUGE),
        "key_empty": gguf([key("", U8, b"\1")]),
        "key_duplicate": gguf([one_byte, one_byte]),
        "key_past_the_file": gguf([struct.pack("<Q", HUGE)], data=bytes(32)),
        "key_type_13": gguf([key("k", 13, bytes(8))]),
        "bool_2": gguf([key("k", BOOL, b"\2")]),
        "string_past_the_file": gguf([key("k", STRING, struct.pack("<Q", 1 << 40))]),
        "array_past_the_file": gguf([key("k", ARRAY, array(F32, 1 << 40, bytes(8)))]),
        "array_wraps": gguf([key("k", ARRAY, array(U64, 1 << 61, bytes(8)))]),
        "array_of_arrays": gguf([key("k", ARRAY, array(ARRAY, 1, array(U8, 1, b"\1")))]),
        "array_type_13": gguf([key("k", ARRAY, array(13, 1, bytes(8)))]),
        "array_strings_past_the_file": gguf([key("k", ARRAY, array(STRING, 2, string("a") + struct.pack("<Q", 99)))]),
        "alignment_0": gguf([key("general.alignment", U32, bytes(4))], [tensor()], bytes(16)),
        "alignment_24": gguf([key("general.alignment", U32, struct.pack("<I", 24))], [tensor()], bytes(16)),
        "alignment_2_31": gguf([key("general.alignment", U32, struct.pack("<I", 1 << 31))], [tensor()], bytes(16)),
        "alignment_i32": gguf([key("general.alignment", I32, struct.pack("<i", 32))], [tensor()], bytes(16)),
        "split": gguf([key("split.count", U16, struct.pack("<H", 3))]),
        "tensor_unnamed": gguf((), [tensor("")], bytes(16)),
        "tensor_long_name": gguf((), [tensor("n" * 65)], bytes(16)),
        "tensor_duplicate": gguf((), [tensor(), tensor(offset=32)], bytes(48)),
        "dims_0": gguf((), [tensor("long_enough", ())], bytes(16)),
        "dims_5": gguf((), [tensor(dims=(1, 1, 1, 1, 1))], bytes(16)),
        "dim_zero": gguf((), [tensor(dims=(4, 0))], bytes(16)),
        "dim_negative": gguf((), [tensor(dims=(HUGE,))], bytes(16)),
        "elements_wrap": gguf((), [tensor(dims=(1 << 32, 1 << 32))], bytes(16)),
        "bytes_wrap": gguf((), [tensor(dims=(1 << 62,))], bytes(16)),
        "running_size_wraps": gguf((), [tensor(dims=((1 << 61) - 8,)), tensor("v", offset=(1 << 63) - 32)], bytes(16)),
        "type_iq2_xxs": gguf((), [tensor(dims=(256,), kind=16)], bytes(66)),
        "type_removed": gguf((), [tensor(kind=4)], bytes(16)),
        "type_1000": gguf((), [tensor(kind=1000)], bytes(16)),
        "half_a_block": gguf((), [tensor(dims=(48, 2), kind=8)], bytes(102)),
        "offset_8": gguf((), [tensor(offset=8)], bytes(64)),
        "offset_32": gguf((), [tensor(offset=32)], bytes(64)),
        "offset_huge": gguf((), [tensor(offset=HUGE - 31)], bytes(64)),
        "offset_overlap": gguf((), [tensor(dims=(16,)), tensor("v", offset=32)], bytes(96)),
        "data_short": gguf((), [tensor()], bytes(15)),
        "data_missing": gguf((), [tensor()], alignment=1),
        "truncated_in_key": gguf(scalars)[:60],
    }
    for kind, block, size in blocks:
        seeds[f"valid_type_{kind}"] = gguf((), [tensor(dims=(block, 1), kind=kind)], bytes(size))
    return seeds


# safetensors ---------------------------------------------------------------------------------------------------------

def safetensors(header, data=b"", length=None):
    text = header if isinstance(header, bytes) else json.dumps(header, separators=(",", ":")).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


def entry(dtype="F32", shape=(1,), offsets=(0, 4)):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets)}


def safetensors_seeds():
    one = entry()
    return {
        "valid_empty": safetensors({}),
        "valid_metadata": safetensors({"__metadata__": {"format": "pt", "k": "ü\n"}}),
        "valid_one": safetensors({"w": one}, bytes(4)),
        "valid_padded": safetensors(b'{"w":{"dtype":"F32","shape":[],"data_offsets":[0,4]}}      ', bytes(4)),
        "valid_three": safetensors({"c": entry("U8", (3,), (14, 17)), "a": entry("F32", (1, 2), (0, 8)),
                                    "b": entry("BF16", (3,), (8, 14))}, bytes(17)),
        "valid_misaligned": safetensors({"a": entry("U8", (1,), (0, 1)), "b": entry("F32", (1,), (1, 5))}, bytes(5)),
        "valid_other_types": safetensors({"i": entry("I64", (1,), (0, 8)), "f": entry("F4", (2,), (8, 9)),
                                          "five": entry("U8", (1, 1, 1, 1, 1), (9, 10))}, bytes(10)),
        "valid_no_elements": safetensors({"w": entry("F32", (0, 7), (0, 0))}),
        "seven_bytes": bytes(7),
        "length_huge": safetensors(b"{}", length=HUGE),
        "length_past_the_file": safetensors(b"{}", length=3),
        "length_0": safetensors(b""),
        "starts_with_space": safetensors(b" {}"),
        "array": safetensors(b"[]"),
        "not_json": safetensors(b"{x}"),
        "not_utf8": safetensors(b'{"\xff":{}}'),
        "two_values": safetensors(b"{}{}"),
        "deep": safetensors(b'{"w":' + b"[" * 300),
        "deep_shape": safetensors(b'{"w":{"shape":' + b"[" * 300),
        "duplicate_tensor": safetensors(b'{"w":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},"w":{}}'),
        "duplicate_field": safetensors(b'{"w":{"dtype":"U8","dtype":"U8"}}'),
        "unknown_field": safetensors({"w": {**one, "stride": [1]}}, bytes(4)),
        "metadata_number": safetensors({"__metadata__": {"a": 1}}),
        "no_dtype": safetensors({"w": {"shape": [1], "data_offsets": [0, 4]}}, bytes(4)),
        "dtype_unknown": safetensors({"w": entry("F31")}, bytes(4)),
        "shape_negative": safetensors({"w": entry(shape=(-1,))}, bytes(4)),
        "shape_fraction": safetensors({"w": entry(shape=(1.5,))}, bytes(4)),
        "shape_past_2_64": safetensors({"w": entry(shape=(2**64,))}, bytes(4)),
        "product_wraps": safetensors({"w": entry(shape=(2**32, 2**32), offsets=(0, 0))}),
        "stride_wraps": safetensors({"w": entry(shape=(0, 2**32, 2**32), offsets=(0, 0))}),
        "offsets_one": safetensors({"w": entry(offsets=(0,))}, bytes(4)),
        "offsets_three": safetensors({"w": entry(offsets=(0, 4, 8))}, bytes(4)),
        "offsets_negative": safetensors({"w": entry(offsets=(-4, 0))}, bytes(4)),
        "offsets_inverted": safetensors({"w": entry(offsets=(4, 0))}, bytes(4)),
        "offsets_past_the_end": safetensors({"w": entry(shape=(2,), offsets=(0, 8))}, bytes(4)),
        "offsets_huge": safetensors({"w": entry(offsets=(HUGE - 4, HUGE))}, bytes(4)),
        "span_wrong": safetensors({"w": entry(shape=(2,))}, bytes(4)),
        "hole": safetensors({"a": one, "b": entry(offsets=(8, 12))}, bytes(12)),
        "overlap": safetensors({"a": entry(shape=(2,), offsets=(0, 8)), "b": entry(shape=(2,), offsets=(4, 12))}, bytes(12)),
        "trailing": safetensors({"w": one}, bytes(5)),
    }


def index_seeds():
    def index(weight_map, **more):
        return json.dumps({**more, "weight_map": weight_map}).encode()

    return {
        "valid": index({"a": "model-1.safetensors", "b": "model-2.safetensors"}, metadata={"total_size": 8}),
        "valid_nested": index({"a": "1"}, metadata={"x": [[{"weight_map": {"y": 1}}], None, True, -1, 1.5]}),
        "no_map": b'{"metadata":{}}',
        "empty_map": index({}),
        "map_array": index(["a"]),
        "map_null": index(None),
        "file_number": index({"a": 1}),
        "file_object": index({"a": {"b": "c"}}),
        "parent": index({"a": "../secret"}),
        "absolute": index({"a": "/etc/passwd"}),
        "subfolder": index({"a": "b/c"}),
        "zero_byte": index({"a": "b\0c"}),
        "duplicate": b'{"weight_map":{"a":"1","a":"2"}}',
        "deep": b'{"x":' + b"[" * 300,
        "array": b"[]",
        "number": b"7",
        "not_utf8": b'{"weight_map":{"\xff":"a"}}',
    }


# llama2.c ------------------------------------------------------------------------------------------------------------

def llama2c(dim=4, hidden=6, layers=1, heads=2, kv_heads=1, vocab=3, seq_len=2, floats=None):
    if floats is None:
        head = dim // heads
        floats = abs(vocab) * dim * (2 if vocab < 0 else 1) + dim + seq_len * head
        floats += layers * (2 * dim + 2 * dim * dim + 2 * head * kv_heads * dim + 3 * hidden * dim)
    return struct.pack("<7i", dim, hidden, layers, heads, kv_heads, vocab, seq_len) + bytes(4 * floats)


def llama2c_seeds():
    return {
        "valid_tied": llama2c(),
        "valid_not_tied": llama2c(vocab=-3),
        "valid_two_layers": llama2c(layers=2, kv_heads=2),
        "header_cut": llama2c(floats=0)[:20],
        "data_cut": llama2c()[:-1],
        "trailing": llama2c() + b"x",
        "dim_0": llama2c(dim=0, floats=8),
        "layers_negative": llama2c(layers=-1, floats=8),
        "heads_3": llama2c(heads=3, floats=8),
        "kv_heads_3": llama2c(kv_heads=3, floats=8),
        "head_dim_odd": llama2c(heads=4, floats=8),
        "vocab_0": llama2c(vocab=0, floats=8),
        "vocab_min": llama2c(vocab=-2**31, floats=8),
        "wraps": llama2c(dim=0x7FFFFFFC, layers=0x7FFFFFFF, floats=8),
        "versioned": llama2c(dim=0x616B3432, hidden=1, floats=8),
    }


# HTTP ----------------------------------------------------------------------------------------------------------------

def http_seeds():
    """The first byte says how the target cuts the rest."""
    get = b"GET /v1/models?a=b HTTP/1.1\r\nHost: localhost\r\n"
    post = b"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1:8080\r\nContent-Type: application/json\r\n"
    chunked = post + b"Transfer-Encoding: chunked\r\n\r\n"
    seeds = {
        "valid_get": get + b"\r\n",
        "valid_1_0": b"GET / HTTP/1.0\r\n\r\n",
        "valid_absolute": b"GET http://localhost/a HTTP/1.1\r\nHost: localhost\r\n\r\n",
        "valid_options": b"OPTIONS * HTTP/1.1\r\nHost: localhost\r\nOrigin: http://a\r\n"
                         b"Access-Control-Request-Method: POST\r\n\r\n",
        "valid_length": post + b"Content-Length: 2\r\nExpect: 100-continue\r\nConnection: close\r\n\r\n{}",
        "valid_chunked": chunked + b"1;x=y\r\n{\r\n1\r\n}\r\n0\r\nA: b\r\n\r\n",
        "valid_pipelined": get + b"\r\n" + post + b"Content-Length: 2\r\n\r\n{}" + get + b"\r\n",
        "valid_key": get + b"Authorization: Bearer key\r\n\r\n",
        "gzip": post + b"Transfer-Encoding: gzip\r\n\r\n" + get + b"\r\n",
        "two_lengths": post + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\n{}",
        "length_and_chunked": post + b"Content-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        "length_huge": post + b"Content-Length: 18446744073709551615\r\n\r\n",
        "fold": get + b"A: b\r\n c\r\n\r\n",
        "bare_lf": b"GET / HTTP/1.1\nHost: localhost\n\n",
        "bare_cr": get + b"A: b\rc\r\n\r\n",
        "zero_byte": get + b"A: \0\r\n\r\n",
        "space_before_colon": get + b"A : b\r\n\r\n",
        "no_host": b"GET / HTTP/1.1\r\n\r\n",
        "foreign_host": b"GET / HTTP/1.1\r\nHost: a.example\r\n\r\n",
        "foreign_origin": get + b"Origin: http://b\r\n\r\n",
        "version": b"PRI * HTTP/2.0\r\n\r\n",
        "tls": b"\x16\x03\x01\x02\x00\x01",
        "chunk_size": chunked + b"x\r\n",
        "chunk_huge": chunked + b"ffffffffffffffff\r\n",
        "chunk_long": chunked + b"1\r\n{}\r\n0\r\n\r\n",
        "chunk_extension": chunked + b"1;" + b"e" * 300 + b"\r\n",
        "trailer": chunked + b"0\r\nA\r\n\r\n",
    }
    return {name: bytes([i % 8]) + data for i, (name, data) in enumerate(seeds.items())}


def main():
    root = Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parent.parent / "tests" / "corpus")
    for target, seeds in {"gguf_fuzz": gguf_seeds(), "safetensors_fuzz": safetensors_seeds(),
                          "safetensors_index_fuzz": index_seeds(), "llama2c_fuzz": llama2c_seeds(),
                          "http_framing_fuzz": http_seeds()}.items():
        folder = root / target
        folder.mkdir(parents=True, exist_ok=True)
        for name, data in seeds.items():
            (folder / name).write_bytes(data)
        print(f"{folder}: {len(seeds)} files, {sum(map(len, seeds.values()))} bytes")


if __name__ == "__main__":
    main()
