"""A byte-level BPE tokenizer of 64 tokens for the tiny models: enough to convert them to GGUF and to type a prompt.

It knows small letters, some capitals, digits, some punctuation, the space, the newline and three merges. Other bytes
have no token, which is why no tokenizer test uses it.
"""

import json

from golden_specs import END_OF_TEXT, VOCAB

CHARACTERS = list("!\"'(),-.:;?0123456789ABCEHILOSTWabcdefghijklmnopqrstuvwxyz") + ["\u0120", "\u010a"]  # space, newline
MERGES = [("t", "h"), ("th", "e"), ("\u0120", "the")]
TOKENS = CHARACTERS + ["".join(pair) for pair in MERGES] + ["<|endoftext|>"]
assert len(TOKENS) == VOCAB and TOKENS[END_OF_TEXT] == "<|endoftext|>"


def files() -> dict[str, str]:
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    tokenizer = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": END_OF_TEXT, "content": TOKENS[END_OF_TEXT], "single_word": False, "lstrip": False,
                          "rstrip": False, "normalized": False, "special": True}],
        "normalizer": None,
        "pre_tokenizer": byte_level,
        "post_processor": None,
        "decoder": byte_level,
        "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": "",
                  "end_of_word_suffix": "", "fuse_unk": False, "byte_fallback": False,
                  "vocab": {token: i for i, token in enumerate(TOKENS[:END_OF_TEXT])},
                  "merges": [" ".join(pair) for pair in MERGES]},
    }
    settings = {"bos_token": None, "eos_token": TOKENS[END_OF_TEXT], "model_max_length": 256,
                "tokenizer_class": "PreTrainedTokenizerFast"}
    return {"tokenizer.json": json.dumps(tokenizer, ensure_ascii=False, separators=(",", ":")) + "\n",
            "tokenizer_config.json": json.dumps(settings, indent=2) + "\n"}
