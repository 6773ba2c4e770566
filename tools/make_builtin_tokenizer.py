#!/usr/bin/env python3
"""make_builtin_tokenizer.py OUT TEXT… [--vocab N]: the vocabulary of our own small models: byte-level BPE, 4096 tokens (or
N), found by Hugging Face's tokenizers on the named texts. Writes OUT/tokenizer.json and OUT/tokenizer_config.json."""
import argparse
import json
import pathlib

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

END = "<|endoftext|>"
PIECE = 1 << 16  # characters: a document at once would be one very long "sentence"


def pieces(paths):
    for path in paths:
        for document in path.read_text(encoding="utf-8").split(END):
            yield from (document[i:i + PIECE] for i in range(0, len(document), PIECE))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("texts", nargs="+", type=pathlib.Path)
    parser.add_argument("--vocab", type=int, default=4096)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=args.vocab, special_tokens=[END],
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator(pieces(args.texts), trainer)
    tokenizer.save(str(args.out / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": END, "eos_token": END, "add_bos_token": True}
    (args.out / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n")


if __name__ == "__main__":
    main()
