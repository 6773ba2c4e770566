#!/usr/bin/env python3
"""Makes tests/data/tokenizers: small tokenizers of every kind, hard texts, and the ids that the reference packages give.

    pip install tokenizers==0.23.3 sentencepiece==0.2.2 tiktoken==0.14.0 gguf==0.19.0 protobuf
    tools/make_tokenizer_goldens.py [--data FOLDER] [--only-goldens]

FOLDER is the unpacked tokenizers.tar.xz: goldens for its large vocabularies are made too (the vocabularies themselves
stay outside the repository). --only-goldens leaves the small tokenizers as they are.
"""
import argparse
import base64
import io
import json
import os
import random
import struct
import zlib

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

OUT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "tests", "data", "tokenizers")

# Written for this file; public domain.
CORPUS = """
The lighthouse keeper counted the ships each evening, and each evening there were fewer. He wrote the number in a book:
17 in March, 12 in April, 105 over the whole of the year. "We'll see more in the spring," he said, but he didn't believe it.
She'd asked him once why he stayed. He couldn't say. The lamp needed oil; the stairs needed sweeping; the sea, which
needed nothing, kept coming back. They're all like that, the keepers, she thought: they've learned to wait.
In the town below there was a market on Thursdays. One could buy bread, salt, rope, candles (yellow ones, 3 for 20 pence),
and letters written to order. The letter-writer's sign read: WORDS BY WEIGHT. Nobody knew how he weighed them.
def count(ships):
    total = 0
    for ship in ships:
        total += ship.masts * 2
    return total  # masts, not ships!
Der Leuchtturmwärter zählte die Schiffe. Le gardien du phare comptait les navires; l'été, il n'y en avait guère.
El farero contaba los barcos cada tarde. Смотритель маяка считал корабли. 灯塔看守人每天晚上数船。灯台守は船を数えた。
Ο φύλακας του φάρου μετρούσε τα πλοία. كان حارس المنارة يعد السفن. प्रकाशस्तंभ का रखवाला जहाज़ गिनता था। 등대지기는 배를 세었다.
""" * 3

TEXTS = [
    "", " ", "  ", "   a", "a   ", "\t", "\n", "\n\n", "\r\n", "\r\n\r\n  \r\n", "Hello world", " Hello world ", "Hello, y'all! How are you?",
    "I'm, you're, he's, we'll, they'd, I've, can't, 'S 'T 'RE it'S WE'LL don\u2019t", "O'Neill's 'quoted' ''double'' '",
    "0 1 12 123 1234 12345 123456 1234567 12345678 123456789", "3.14159, 1,000,000 and 1e-9 or 0xFF", "\u00bd \u00b2\u00b3 \u2167 \u0664\u0665\u0666 \u0967\u0968\u0969 \uff11\uff12\uff13",
    "caf\u00e9 cafe\u0301 na\u00efve nai\u0308ve \u1e9b\u0323 \u212b \u00c5 A\u030a", "\ufb01 \ufb02 \u210c \u2460 \u33a1 \u3300 \uff76\uff9e",
    "Stra\u00dfe STRASSE \u0130stanbul \u0131\u015f\u0131k \u017fee '\u017f it'\u017f", "\u0430\u0431\u0432 \u0410\u0411\u0412 \u0451 \u0435\u0308", "\u4f60\u597d\uff0c\u4e16\u754c\u3002\u4eca\u5929\u5929\u6c14\u5f88\u597d\uff01", "\u3053\u3093\u306b\u3061\u306f\u4e16\u754c\u3001\u30ab\u30bf\u30ab\u30ca",
    "\uc548\ub155\ud558\uc138\uc694 \u1112\u1161\u11ab", "\u0645\u0631\u062d\u0628\u0627 \u0628\u0627\u0644\u0639\u0627\u0644\u0645 \u0661\u0662\u0663", "\u05e9\u05dc\u05d5\u05dd \u05e2\u05d5\u05dc\u05dd", "\u0e2a\u0e27\u0e31\u0e2a\u0e14\u0e35\u0e0a\u0e32\u0e27\u0e42\u0e25\u0e01", "\u0928\u092e\u0938\u094d\u0924\u0947 \u0926\u0941\u0928\u093f\u092f\u093e",
    "\U0001f600\U0001f680 \U0001f468\u200d\U0001f469\u200d\U0001f467\u200d\U0001f466 \U0001f44d\U0001f3fd \U0001f1eb\U0001f1f7 \u2764\ufe0f \U0001f636\u200d\U0001f32b\ufe0f", "a\u0300\u0316\u0301 q\u0307\u0323 \u0344 \u0f73", "Z\u0334\u0321\u0352a\u0335\u0316l\u0337\u0345g\u0336o\u0338",
    "\x00\x01\x02 \x07\x08 \x1b[0m \x7f", "a\u0085b\u00a0c\u1680d\u180ee\u2003f\u2028g\u2029h\u202fi\u205fj\u3000k\ufeffl\u200bm\x1cn", "\u2581 \u2581\u2581a\u2581b ▁▁", "zero\u200cwidth\u200djoiner\u2060",
    "tab\tseparated\tvalues\n\tindented\n\t\ttwice", "def f(x):\n    return x ** 2  # squared\n\n\nclass A:\n    pass\n", "    four spaces\n        eight spaces\n  two", "trailing spaces   \nand lines  \n\n  next",
    "a" * 60, "ab" * 80, " " * 70, "\n" * 40, "!?" * 40, "1" * 50, "\u00e9" * 40, "\u4e00" * 40, "x" + " " * 33 + "y", "=" * 30 + "-" * 30,
    "https://example.org/path?query=1&other=two#frag", "user.name+tag@example.co.uk", "C:\\\\dir\\\\file.txt /usr/bin/env", "snake_case camelCase PascalCase kebab-case SCREAMING_CASE", "$100 \u20ac200 \u00a3300 100% #1 @home a&b <tag/> {x} [y] `z` ~ ^ |",
    "<s>text</s> and <unk> and <pad>", "<|endoftext|>", "before<|endoftext|>after", "  <|endoftext|>  ", "<|endoftext|><|endoftext|>", "<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|>", "<|im_start|>system\nYou are<|im_end|>\n",
    "<MASK> a<MASK>b  <MASK>  c <mask>", "WORD aWORDb WORD. _WORD_ word", "[L]left  [L]  [R]  right[R] [B]  [B]", "|||IP_ADDRESS||| |||EMAIL_ADDRESS|||",
    "\ue000 \U000f0000 \U0010fffd \U0010ff80", "\uffff \ufffe \U0001ffff", "\u0378 \U000e0001", "\ufffd replacement", "\U00020000\U0002a6df \u3400", "\u02b0\u02e0 \u1d2c \u00aa \u00ba", "\u0903\u093e \u20dd\u20e3 1\ufe0f\u20e3",
    "The lighthouse keeper counted 105 ships; she'd waited. Der W\u00e4rter z\u00e4hlte.", "Words by weight, nobody knew how he weighed them", "hello-world--again---and", "aeiou bcdfg aeiou", "MiXeD CaSe TeXt", "\u0441\u043c\u0435\u0448\u0430\u043d\u043d\u044b\u0439 mixed \u6587\u5b57 text",
    "1234567890.1234567890", "12 345 6789 0", "don't can't WON'T i'D", "\n \n  \n   \n", " \n", "\n ", " \t \n \t ", "a\r\nb\rc\nd", "\u2019s \u2019t ’re", "\u2460 \u2460\u2461 \u2461\u2460", "IMGIMGABCZ <sentinel:12>", "12345678901 \u0661\u0662\u0663\u0664 1a2b33c4444",
]


def random_texts(count):
    pool = list("abcdeXYZ  019.,'-\n\t_") + ["th", "ing ", " the", "'s", "\r\n", "\u00e9", "e\u0301", "\u00df", "\u4e2d", "\u6587", "\u3042", "\u0434", "\u0627", "\ud55c", "\U0001f600", "\u200d", "\u0301", "\u00a0",
                                             "\u2581", "<s>", "<|endoftext|>", "\u3000", "\u0967", "\u00bd", "\u0e01", "\u0e34", "\u2028", "A\u030a", "\ufb01"]
    rng = random.Random(20240607)
    return ["".join(rng.choice(pool) for _ in range(rng.randint(1, 60))) for _ in range(count)]


TEXTS += random_texts(40)

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
LLAMA3 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


def split(pattern, behavior="isolated", invert=False):
    return pre_tokenizers.Split(Regex(pattern), behavior, invert)


def bytes_last():
    return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)


def train_bpe(pre, size=420, normalizer=None, special=("<|endoftext|>",), alphabet=True, model=None):
    tok = Tokenizer(model or models.BPE())
    tok.pre_tokenizer = pre
    if normalizer:
        tok.normalizer = normalizer
    tok.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=size, special_tokens=list(special), show_progress=False,
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet() if alphabet else [])
    tok.train_from_iterator(CORPUS.split("\n"), trainer)
    return tok


def byte_tokens(tok, first):
    """Adds <0x00> … <0xFF> to a trained BPE's vocabulary, after the `first` special tokens."""
    data = json.loads(tok.to_str())
    words = sorted(data["model"]["vocab"], key=data["model"]["vocab"].get)
    words = words[:first] + [f"<0x{b:02X}>" for b in range(256)] + words[first:]
    data["model"]["vocab"] = {w: i for i, w in enumerate(words)}
    data["model"]["byte_fallback"] = True
    data["model"]["fuse_unk"] = True
    data["model"]["unk_token"] = "<unk>"
    return Tokenizer.from_str(json.dumps(data))


def spm_decoder(strip=True):
    steps = [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()]
    return decoders.Sequence(steps + ([decoders.Strip(" ", 1, 0)] if strip else []))


def small_tokenizers():
    """name -> Tokenizer, one for each thing that a tokenizer.json can say."""
    made = {}
    made["gpt2_style"] = train_bpe(pre_tokenizers.ByteLevel(add_prefix_space=False), 600)
    made["gpt2_style"].post_processor = processors.ByteLevel(trim_offsets=False)

    tok = train_bpe(pre_tokenizers.Sequence([split(LLAMA3), bytes_last()]), 500,
                    special=("<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"))
    data = json.loads(tok.to_str())
    data["model"]["ignore_merges"] = True
    tok = Tokenizer.from_str(json.dumps(data))
    tok.post_processor = processors.Sequence([
        processors.ByteLevel(trim_offsets=False),
        processors.TemplateProcessing(single="<|begin_of_text|> $A", pair="$A $B", special_tokens=[("<|begin_of_text|>", tok.token_to_id("<|begin_of_text|>"))])])
    made["llama3_style"] = tok

    made["dolma_style"] = train_bpe(pre_tokenizers.Sequence([split(LLAMA3, "removed", True), bytes_last()]), special=("<|im_start|>", "<|im_end|>"))
    made["nfc_digits"] = train_bpe(pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=True)]),
                                   normalizer=normalizers.NFC())
    made["deepseek_style"] = train_bpe(pre_tokenizers.Sequence([
        split(r"[\r\n]"), split(r"\s?\p{L}+"), split(r"\s?\p{P}+"), split("[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"), split(r"\s+$"),
        pre_tokenizers.Digits(individual_digits=True), bytes_last()]))
    made["falcon_style"] = train_bpe(pre_tokenizers.Sequence([
        pre_tokenizers.Punctuation("contiguous"), pre_tokenizers.ByteLevel(add_prefix_space=False), pre_tokenizers.Digits(individual_digits=False), split("[0-9][0-9][0-9]")]))
    made["split_behaviours"] = train_bpe(pre_tokenizers.Sequence([
        pre_tokenizers.Split("-", "merged_with_next"), split("[aeiou]", "contiguous"), pre_tokenizers.Split(",", "merged_with_previous"),
        split(r"\b(?=[A-Z])|\w+\b|\h{4}", "isolated"), split("[a-z&&[^aeiou]]+|[^\\w\\s]", "merged_with_previous", True), bytes_last()]))
    made["whitespace_removed"] = train_bpe(pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Punctuation(), bytes_last()]))

    def fallback_bpe(pre, normalizer=None):
        tok = train_bpe(pre, 500, normalizer, ("<unk>", "<s>", "</s>"), alphabet=False, model=models.BPE(unk_token="<unk>"))
        return byte_tokens(tok, 3)

    tok = fallback_bpe(None, normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")]))
    tok.decoder = spm_decoder()
    tok.post_processor = processors.TemplateProcessing(single="<s> $A </s>", pair="$A $B", special_tokens=[("<s>", 1), ("</s>", 2)])
    made["llama2_style"] = tok

    tok = fallback_bpe(pre_tokenizers.Metaspace(prepend_scheme="first", split=False))
    tok.decoder = spm_decoder()
    made["metaspace_first"] = tok

    tok = fallback_bpe(pre_tokenizers.Split(" ", "merged_with_previous"), normalizers.Replace(" ", "\u2581"))
    tok.decoder = spm_decoder(strip=False)
    made["gemma_style"] = tok

    tok = train_bpe(pre_tokenizers.Whitespace(), 300, normalizers.Sequence([normalizers.NFD(), normalizers.StripAccents(), normalizers.Lowercase(), normalizers.Strip(), normalizers.Replace(Regex(r"\s+"), " ")]),
                    ("<unk>",), alphabet=False, model=models.BPE(unk_token="<unk>"))
    tok.decoder = None
    made["unknown_words"] = tok

    tok = Tokenizer(models.Unigram())
    tok.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Replace(Regex(" {2,}"), " ")])
    tok.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always", split=True)
    tok.decoder = decoders.Metaspace(prepend_scheme="always")
    tok.train_from_iterator(CORPUS.split("\n"), trainers.UnigramTrainer(vocab_size=420, special_tokens=["<unk>", "<pad>"], unk_token="<unk>", show_progress=False))
    made["unigram"] = tok

    tok = train_bpe(pre_tokenizers.ByteLevel(add_prefix_space=False), 400, normalizers.Lowercase())
    tok.add_special_tokens([AddedToken("<MASK>", lstrip=True, normalized=False), AddedToken("[B]", lstrip=True, rstrip=True, normalized=False)])
    tok.add_tokens([AddedToken("WORD", single_word=True, normalized=False), AddedToken("[L]", lstrip=True, normalized=False), AddedToken("[R]", rstrip=True, normalized=False),
                    AddedToken("MiXeD", normalized=True), AddedToken("  ", normalized=True), AddedToken("    ", normalized=True)])
    made["added_tokens"] = tok
    return made


def write(path, text):
    with open(os.path.join(OUT, path), "w", encoding="utf-8") as f:
        f.write(text)


def compact(text):
    return json.dumps(json.loads(text), ensure_ascii=False, separators=(",", ":"))


def unless(value, usual):
    """null in the file where a value is what it usually is: keeps the goldens small."""
    return None if value == usual else value


def hf_goldens(tok):
    """plain: special tokens not parsed; parsed: null where the same; around: ids put before and after every text;
    decoded (of parsed): null where it is the text, false where tokenizers 0.23 shows an added token as its normalizer
    writes it (and so fails to hide special ones); shown (with special tokens): null where it is as decoded."""
    odd = {i for i, t in tok.get_added_tokens_decoder().items() if t.normalized and tok.id_to_token(i) != t.content}
    result = {"plain": [], "parsed": [], "decoded": [], "shown": []}
    probe = tok.encode("a").ids
    inner = tok.encode("a", add_special_tokens=False).ids
    at = next(i for i in range(len(probe)) if probe[i:i + len(inner)] == inner)
    result["around"] = [probe[:at], probe[at + len(inner):]]
    for text in TEXTS:
        tok.encode_special_tokens = False
        parsed = tok.encode(text, add_special_tokens=False).ids
        assert tok.encode(text).ids == result["around"][0] + parsed + result["around"][1]
        decoded = tok.decode(parsed)
        tok.encode_special_tokens = True
        plain = tok.encode(text, add_special_tokens=False).ids
        result["plain"].append(plain)
        result["parsed"].append(unless(parsed, plain))
        result["decoded"].append(False if odd & set(parsed) else unless(decoded, text))
        result["shown"].append(unless(tok.decode(parsed, skip_special_tokens=False), decoded))
    tok.encode_special_tokens = False
    return result


def write_goldens(name, goldens):
    write(f"{name}.golden.json", json.dumps(goldens, ensure_ascii=True, separators=(",", ":")))


def make_small_hf():
    for name, tok in small_tokenizers().items():
        write(f"{name}.json", compact(tok.to_str()))
    # GPT-2's older pair of files.
    data = json.load(open(os.path.join(OUT, "gpt2_style.json"), encoding="utf-8"))
    os.makedirs(os.path.join(OUT, "gpt2_files"), exist_ok=True)
    write("gpt2_files/vocab.json", json.dumps(data["model"]["vocab"], ensure_ascii=False, separators=(",", ":")))
    merges = [m if isinstance(m, str) else " ".join(m) for m in data["model"]["merges"]]
    write("gpt2_files/merges.txt", "#version: 0.2\n" + "\n".join(merges) + "\n")


def train_sp(name, **options):
    import sentencepiece as spm
    model = io.BytesIO()
    spm.SentencePieceTrainer.train(sentence_iterator=iter(CORPUS.split("\n")), model_writer=model, minloglevel=2, **options)
    with open(os.path.join(OUT, name), "wb") as f:
        f.write(model.getvalue())


def make_small_sp():
    from sentencepiece import sentencepiece_model_pb2 as pb
    # Rules of our own: the full table of the default rules would be 200 KB.
    rules = os.path.relpath(os.path.join(OUT, "rules.tsv"))  # the model keeps this name
    with open(rules, "w") as f:
        for source, target in [("\ufb01", "fi"), ("\u00a0", " "), ("\u3000", " "), ("e\u0301", "\u00e9"), ("\t", " "), ("\uff11", "1"), ("\u200b", ""), ("\u2460", "1"), ("\u2460\u2461", "twelve"), ("A\u030a", "\u00c5"), ("\u2026", "...")]:
            f.write(" ".join(f"{ord(c):X}" for c in source) + "\t" + " ".join(f"{ord(c):X}" for c in target) + "\n")
    train_sp("sp_bpe.model", model_type="bpe", vocab_size=560, byte_fallback=True, normalization_rule_name="identity", remove_extra_whitespaces=False,
             split_digits=True, allow_whitespace_only_pieces=True, user_defined_symbols=["<tool>", "ab", "\u2581\u2581\u2581"], control_symbols=["<pad>"], character_coverage=0.99)
    train_sp("sp_unigram.model", model_type="unigram", vocab_size=270, normalization_rule_tsv=rules, user_defined_symbols=["<tool>", "keeper"], character_coverage=0.98)
    train_sp("sp_unigram_bytes.model", model_type="unigram", vocab_size=500, byte_fallback=True, normalization_rule_name="identity", add_dummy_prefix=False, remove_extra_whitespaces=False, character_coverage=0.98)
    train_sp("sp_suffix.model", model_type="bpe", vocab_size=300, normalization_rule_tsv=rules, treat_whitespace_as_suffix=True, character_coverage=0.98)
    os.remove(rules)
    # Pieces marked unused are merged through but not given out.
    proto = pb.ModelProto()
    with open(os.path.join(OUT, "sp_bpe.model"), "rb") as f:
        proto.ParseFromString(f.read())
    for i, piece in enumerate(proto.pieces):
        if piece.type == 1 and len(piece.piece) > 2 and i % 3 == 0:
            piece.type = 5
    with open(os.path.join(OUT, "sp_unused.model"), "wb") as f:
        f.write(proto.SerializeToString())
    export_llama2c(os.path.join(OUT, "sp_bpe.model"), os.path.join(OUT, "llama2c.bin"))
    # The same character map in a tokenizer.json.
    with open(os.path.join(OUT, "sp_unigram.model"), "rb") as f:
        proto.ParseFromString(f.read())
    data = json.load(open(os.path.join(OUT, "unigram.json"), encoding="utf-8"))
    data["normalizer"] = {"type": "Precompiled", "precompiled_charsmap": base64.b64encode(proto.normalizer_spec.precompiled_charsmap).decode()}
    write("precompiled.json", compact(json.dumps(data)))


def export_llama2c(model, path):
    """As llama2.c's tokenizer.py writes it."""
    import sentencepiece as spm
    sp = spm.SentencePieceProcessor(model_file=model)
    rows = []
    for i in range(sp.vocab_size()):
        text = sp.id_to_piece(i)
        text = "\n<s>\n" if i == sp.bos_id() else "\n</s>\n" if i == sp.eos_id() else text
        rows.append((sp.get_score(i), text.replace("\u2581", " ").encode("utf-8")))
    # Its encoder counts on: 0 unknown, 1 BOS, 2 EOS, 3… bytes.
    order = [0, 1, 2] + [sp.piece_to_id(f"<0x{b:02X}>") for b in range(256)]
    order += [i for i in range(len(rows)) if i not in set(order)]
    with open(path, "wb") as f:
        f.write(struct.pack("<i", max(len(text) for _, text in rows)))
        for i in order:
            f.write(struct.pack("<fi", rows[i][0], len(rows[i][1])) + rows[i][1])


def llama2c_encode(path, text):
    """llama2.c's encode(), step by step: the best-scoring pair of neighbours is joined, again and again."""
    vocab = []
    with open(path, "rb") as f:
        f.read(4)
        while head := f.read(8):
            score, size = struct.unpack("<fi", head)
            vocab.append((f.read(size), score))
    ids = {}
    for i, (piece, _) in enumerate(vocab):
        ids.setdefault(piece, i)
    tokens = [ids[b" "]] if text else []
    for c in text:
        piece = c.encode("utf-8")
        tokens += [ids[piece]] if piece in ids else [b + 3 for b in piece]
    while True:
        best = (-1e10, -1, -1)
        for i in range(len(tokens) - 1):
            joined = ids.get(vocab[tokens[i]][0] + vocab[tokens[i + 1]][0])
            if joined is not None and vocab[joined][1] > best[0]:
                best = (vocab[joined][1], joined, i)
        if best[2] < 0:
            return tokens
        tokens[best[2]:best[2] + 2] = [best[1]]


def make_small_tiktoken():
    """Ranks from llama3_style: its 256 bytes, then its merges in order."""
    model = json.load(open(os.path.join(OUT, "llama3_style.json"), encoding="utf-8"))["model"]
    spelling = {}
    printable = list(range(0x21, 0x7F)) + list(range(0xA1, 0xAD)) + list(range(0xAE, 0x100))
    extra = 0
    for b in range(256):
        spelling[chr(b) if b in printable else chr(256 + extra)] = b
        extra += b not in printable
    def as_bytes(s):
        return bytes(spelling[c] for c in s)
    ranks = [bytes([b]) for b in range(256)]
    for merge in model["merges"]:
        a, b = merge.split(" ") if isinstance(merge, str) else merge
        ranks.append(as_bytes(a) + as_bytes(b))
    write("ranks.tiktoken", "".join(f"{base64.b64encode(r).decode()} {i}\n" for i, r in enumerate(ranks)))


def make_small_gguf():
    from gguf import GGUFWriter, TokenType
    data = json.load(open(os.path.join(OUT, "gpt2_style.json"), encoding="utf-8"))
    vocab = data["model"]["vocab"]
    words = sorted(vocab, key=vocab.get)
    writer = GGUFWriter(os.path.join(OUT, "gpt2_style.gguf"), "llama")
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(words)
    writer.add_token_types([TokenType.CONTROL if w == "<|endoftext|>" else TokenType.NORMAL for w in words])
    writer.add_token_merges([m if isinstance(m, str) else " ".join(m) for m in data["model"]["merges"]])
    writer.add_bos_token_id(vocab["<|endoftext|>"])
    writer.add_eos_token_id(vocab["<|endoftext|>"])
    writer.add_chat_template("{{ messages }}")
    close(writer)

    import sentencepiece as spm
    sp = spm.SentencePieceProcessor(model_file=os.path.join(OUT, "sp_bpe.model"))
    n = sp.vocab_size()
    kind = lambda i: (TokenType.UNKNOWN if sp.is_unknown(i) else TokenType.CONTROL if sp.is_control(i) else TokenType.BYTE if sp.is_byte(i)
                      else TokenType.USER_DEFINED if sp.id_to_piece(i) in ("<tool>",) else TokenType.NORMAL)
    writer = GGUFWriter(os.path.join(OUT, "sp_bpe.gguf"), "llama")
    writer.add_tokenizer_model("llama")
    writer.add_token_list([sp.id_to_piece(i) for i in range(n)])
    writer.add_token_scores([sp.get_score(i) for i in range(n)])
    writer.add_token_types([kind(i) for i in range(n)])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    close(writer)


    # Gemma's way: '\u2581' for spaces, bytes as "<0x0A>", merges.
    data = json.load(open(os.path.join(OUT, "gemma_style.json"), encoding="utf-8"))
    words = sorted(data["model"]["vocab"], key=data["model"]["vocab"].get)
    writer = GGUFWriter(os.path.join(OUT, "gemma_style.gguf"), "llama")
    writer.add_tokenizer_model("gemma4")
    writer.add_token_list(words)
    writer.add_token_types([TokenType.CONTROL if i < 3 else TokenType.BYTE if w.startswith("<0x") else TokenType.NORMAL for i, w in enumerate(words)])
    writer.add_token_merges([m if isinstance(m, str) else " ".join(m) for m in data["model"]["merges"]])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    close(writer)


def close(writer):
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()


# tokenizer.ggml.pre -> the cuts, as the models' tokenizer.json files have them (for the goldens, Oniguruma runs them).
CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
GPT4O = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
         r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")
QWEN2 = CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
DEEPSEEK3 = r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"""
DIGITS3 = r"\p{N}{1,3}(?=(?:\p{N}{3})*(?!\p{N}))"
PRE_TYPES = {
    "default": [r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", "[0-9][0-9][0-9]"],
    "gpt-2": [GPT2], "llama-bpe": [LLAMA3], "dbrx": [LLAMA3], "glm4": [LLAMA3],
    "jais-2": [CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s{512}(?!\S)|\s{256}(?!\S)|\s{128}(?!\S)|\s{64}(?!\S)|\s{32}(?!\S)|\s{16}(?!\S)|\s{8}(?!\S)|\s{4}(?!\S)|\s{1,2}(?!\S)|\s{1}"],
    "minicpm5": [r"\p{N}{1,3}", CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}+| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"],
    "qwen2": [QWEN2], "qwen35": [CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"],
    "laguna": [r"[^\n]+|[\n]+", QWEN2],
    "ufakzeka": [r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"],
    "deepseek-coder": [r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+", r"\p{N}"],
    "deepseek-v3": [r"\p{N}{1,3}", "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+", DEEPSEEK3],
    "spark2_5": [r"\p{N}{1,3}", "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",
                 r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+|[\r\n]|\s+(?!\S)|\s+""", r"\p{N}"],
    "youtu": ["[\uac00-\ud7a3\u3131-\u318e]+|[\uff01\u2026\u201c\u201d\u2018\u2019\u2014\uff1a\uff1b\uff0c\u3001-\u303f\ufe30-\ufe4f]+|[\u3105-\u312f]+|[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+", GPT4O.replace(r"\p{N}{1,3}", r"\p{N}")],
    "falcon": [r"[\p{P}\$\+<=>\^~\|`]+", GPT2, "[0-9][0-9][0-9]"], "starcoder": [r"\p{N}", GPT2], "smollm": [r"\p{N}", GPT2],
    "bloom": [" ?[^(\\s|.,!?\u2026\u3002\uff0c\u3001\u0964\u06d4\u060c)]+"], "viking": [" ?[^(\\s|.,!?\u2026\u3002\uff0c\u3001\u0964\u06d4\u060c)]+", r"\p{N}"],
    "tekken": [GPT4O.replace(CONTRACTIONS + "?", "").replace(r"\p{N}{1,3}", r"\p{N}")], "gpt-4o": [GPT4O], "granite-embed-multi-97m": [GPT4O],
    "chameleon": ["<sentinel:[0-9]+>", "(IMGIMG)((A|B|C|D|E|F|G|H|I){1,4})Z", "([\\t\\n]|    |  )", r"\p{N}", r"[\p{P}!-/:-@\[-`{-~]", GPT2],
    "tiny_aya": [DIGITS3, GPT4O], "superbpe": [r"\p{N}+", DIGITS3], "afmoe": [DIGITS3, "[\u4e00-\u9fff\u3400-\u4dbf\uf900-\ufaff\u3040-\u309f\u30a0-\u30ff\uff65-\uff9f\u2f00-\u2fdf\u0e40-\u0e7f\u0e80-\u0eff\u1780-\u17ff\u1000-\u109f\uaa60-\uaa7f\ua9e0-\ua9ff\uac00-\ud7af\u1100-\u11ff]+", DEEPSEEK3],
    "bailingmoe": [r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+"],
    "seed-coder": [CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1}| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+"],
    "kimi-k2": [r"[\p{Han}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+"
                r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"],
    "exaone-moe": [CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+"],
}


def pre_type_goldens():
    """The pieces that each type cuts a text into: for size, a CRC-32 of them with U+001F between."""
    goldens = {}
    for name, cuts in PRE_TYPES.items():
        pre = pre_tokenizers.Sequence([split(c) for c in cuts])
        pieces = [[piece for piece, _ in pre.pre_tokenize_str(text)] for text in TEXTS]
        goldens[name] = [zlib.crc32("\x1f".join(p).encode("utf-8")) for p in pieces]
    write_goldens("pre_types", goldens)


def sp_goldens(path):
    import sentencepiece as spm
    sp = spm.SentencePieceProcessor(model_file=path)
    # SentencePiece never finds control symbols in a text: parse_special is off in these.
    ids = [sp.encode(text) for text in TEXTS]
    return {"plain": ids, "decoded": [unless(sp.decode(i), text) for i, text in zip(ids, TEXTS)]}


def tiktoken_goldens(path, pattern, special):
    import tiktoken
    with open(path, "rb") as f:
        ranks = {base64.b64decode(line.split()[0]): int(line.split()[1]) for line in f if line.strip()}
    enc = tiktoken.Encoding("golden", pat_str=pattern, mergeable_ranks=ranks, special_tokens={s: len(ranks) + i for i, s in enumerate(special)})
    plain = [enc.encode(t, disallowed_special=()) for t in TEXTS]
    return {"plain": plain, "parsed": [unless(enc.encode(t, allowed_special="all"), p) for t, p in zip(TEXTS, plain)]}


def llama3_special():
    r = lambda i: f"<|reserved_special_token_{i}|>"
    return ["<|begin_of_text|>", "<|end_of_text|>", r(0), r(1), r(2), r(3), "<|start_header_id|>", "<|end_header_id|>", r(4), "<|eot_id|>"] + [r(i) for i in range(5, 251)]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data")
    parser.add_argument("--only-goldens", action="store_true")
    args = parser.parse_args()
    os.makedirs(OUT, exist_ok=True)
    if not args.only_goldens:
        make_small_hf()
        make_small_sp()
        make_small_tiktoken()
        make_small_gguf()
    write("texts.json", json.dumps(TEXTS, ensure_ascii=True, separators=(",", ":")))
    for name in sorted(os.listdir(OUT)):
        path = os.path.join(OUT, name)
        if name.endswith(".model"):
            write_goldens(name, sp_goldens(path))
        elif name.endswith(".json") and not name.endswith(".golden.json") and name != "texts.json":
            write_goldens(name, hf_goldens(Tokenizer.from_file(path)))
    write_goldens("ranks.tiktoken", tiktoken_goldens(os.path.join(OUT, "ranks.tiktoken"), LLAMA3, llama3_special()))
    write_goldens("llama2c.bin", {"plain": [llama2c_encode(os.path.join(OUT, "llama2c.bin"), t) for t in TEXTS]})
    pre_type_goldens()
    if args.data:
        for name in ["gpt2", "gpt_neox_olmo", "dolma2", "llama2"]:
            write_goldens(f"large_{name}", hf_goldens(Tokenizer.from_file(os.path.join(args.data, name, "tokenizer.json"))))
        write_goldens("large_llama2_sp", sp_goldens(os.path.join(args.data, "llama2", "tokenizer.model")))
        write_goldens("large_tinystories_sp", sp_goldens(os.path.join(args.data, "tinystories_sp4096.model")))
        write_goldens("large_llama3", tiktoken_goldens(os.path.join(args.data, "llama3", "tokenizer.model"), LLAMA3, llama3_special()))
        write_goldens("large_llama2c", {"plain": [llama2c_encode(os.path.join(args.data, "llama2", "tokenizer.bin"), t) for t in TEXTS]})


if __name__ == "__main__":
    main()
