"""Hugging Face's tokenizers, for comparison.

usage: tokenizers_peer.py DIR SEED    writes random tokenizers, each to its own folder of DIR: tokenizer.json, texts.json
                                      (an array) and expected.json, with the ids of each text, the text of those ids, and
                                      the special tokens around a text. Prints the number of tokenizers.
"""
import json
import os
import random
import sys
import unicodedata

os.environ["TOKENIZERS_PARALLELISM"] = "false"
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
          r"|\s+(?!\S)|\s+")
QWEN = LLAMA3.replace("{1,3}", "")
NEMO = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
        r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
        r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")
GPT4O = NEMO.replace("]*|[^", "]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^").replace(r"|\p{N}|", r"|\p{N}{1,3}|")
DEEPSEEK = [r"\p{N}{1,3}", "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",
            r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"""
            r"""| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"""]
BLOOM = " ?[^(\\s|[.,!?\u2026\u3002\uff0c\u3001\u0964\u06d4\u060c])]+"
# For splits whose matches do not cover the text.
LOOSE = [r"\s+", r"\p{L}+", r"[aeiou]|\d", r"(?=\p{Lu})\p{L}+", r"\p{P}|\p{S}", r"the|[xX]{2,}?y", r"(?i:the|k|s)", r"\p{M}+",
         r"a(?:b|c)+|\r?\n", r"(?>\p{L}+)(?!\d)", r"[^\S\n]+", r"\P{N}{2,5}", r"\x{e9}|\u00e0|[\xe0-\xff\-]".replace(r"\xe0-\xff", "\xe0-\xff"), BLOOM]
BEHAVIORS = ["isolated", "removed", "merged_with_previous", "merged_with_next", "contiguous"]
CONTENTS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<x>", "<xy>", "<x><y>", "x", "the", " the", "The", "  ", " ", "\t", "\n",
            "\u00e9", "e\u0301", "A\u030a", "\uac00", "\u1100\u1161", "a b", "\u65e5\u672c", "na\u00efve", "\u017f", "\u0301", "th",
            "he", "12", "\U0001F600", "\u00a0", "_", "\u212b", "<", "|>", "don't", "\u3000x"]
ALL = [c for c in range(0x110000) if not 0xD800 <= c <= 0xDFFF]
WORDS = ["the", " the", "The", " users", "Training", " models", "don't", "we'll", "I'VE", "they're", "'s", "'\u017f", "'D", "''",
         "it's", "2026", " 3.14159", "e\u0301", "na\u00efve", "\ufb01", "\u00b2", "|>", "http://", "_x_", "...", "--", "\x00", "\x7f",
         "\u212a", "\u1e9b\u0323", "q\u0307\u0323", "\u1100\u1161\u11a8", "\uac00\u11a8", "\uac00\u11a7", "\u0308\u0301", "\u0958", "\u2126",
         "\ufa1e\uf900", "\u0f73", "aeiou", "xxxy", "\u20dd", "\U0002f800", "\U00011935\U00011930"]
BLANKS = [" ", "  ", "   ", "\n", "\n\n", "\t", " \n", "\r\n", "\r", "\u00a0", "\u3000", "\u180e", "\x85", "\x1c", " " * 17, "\u200b",
          "\u2028", "\ufeff", "\u2003 "]
EMOJI = ["\U0001F600", "\U0001F469\u200d\U0001F4BB", "\U0001F1E9\U0001F1EA", "\U0001F44D\U0001F3FD", "\u2764\ufe0f", "\U0001fae9"]
MARKS = [c for a, b in [(0x300, 0x36F), (0x591, 0x5BD), (0x64B, 0x65F), (0x898, 0x89F), (0x1AB0, 0x1ACE), (0x1DC0, 0x1DFF),
                        (0x302A, 0x302F), (0x3099, 0x309A), (0x1E08F, 0x1E08F), (0x9BE, 0x9D7), (0x1161, 0x11C2)]
         for c in range(a, b + 1)]
NEWER = [c for a, b in [(0x897, 0x897), (0x1C89, 0x1C8A), (0x2FFC, 0x2FFF), (0xA7CB, 0xA7CD), (0x10D40, 0x10D6F), (0x11F00, 0x11F5A),
                        (0x1E4D0, 0x1E4F9), (0x31350, 0x31360), (0x11DE0, 0x11DE9), (0x1CCF0, 0x1CCF9)] for c in range(a, b + 1)]


def random_text(chance, contents, most=30):
    pools = [lambda: chance.choice(WORDS), lambda: chance.choice(BLANKS), lambda: chance.choice(EMOJI),
             lambda: chr(chance.randrange(0x3000)), lambda: chr(chance.choice(ALL)), lambda: chr(chance.randrange(0x3040, 0xA000)),
             lambda: chr(chance.randrange(128)), lambda: chr(chance.choice(MARKS)), lambda: chr(chance.choice(NEWER)),
             lambda: chr(chance.randrange(0xAC00, 0xD7A4)), lambda: chance.choice("abcxXyeAE0125"),
             lambda: chance.choice(contents) if contents else " "]
    pools.append(pools[-1])
    few = chance.sample(pools, chance.randrange(1, 6))
    text = "".join(chance.choice(few)() for _ in range(chance.randrange(0, most)))
    return "".join(c for c in text if not 0xD800 <= ord(c) <= 0xDFFF)


def shape(chance, kind):
    byte_level = pre_tokenizers.ByteLevel
    split = lambda pattern, behavior="isolated", invert=False: pre_tokenizers.Split(Regex(pattern), behavior, invert)
    sequence = pre_tokenizers.Sequence
    plain = byte_level(add_prefix_space=False, use_regex=False)
    return {
        "gpt2": lambda: (None, byte_level(add_prefix_space=False)),
        "gpt2_prefix": lambda: (None, byte_level(add_prefix_space=True)),
        "llama3": lambda: (None, sequence([split(LLAMA3), plain])),
        "qwen": lambda: (normalizers.NFC(), sequence([split(QWEN), plain])),
        "smollm2": lambda: (None, sequence([pre_tokenizers.Digits(True), byte_level(add_prefix_space=False)])),
        "nemo": lambda: (None, sequence([split(NEMO), plain])),
        "gpt4o": lambda: (normalizers.Sequence([normalizers.NFC()]), sequence([split(GPT4O), plain])),
        "deepseek": lambda: (normalizers.Sequence([]), sequence([split(p) for p in DEEPSEEK] + [plain])),
        "whole": lambda: (chance.choice([None, normalizers.NFC()]), plain),
        "loose": lambda: (chance.choice([None, normalizers.NFC()]), sequence(
            [pre_tokenizers.Digits(chance.random() < 0.5)] * chance.randrange(2) +
            [split(chance.choice(LOOSE), chance.choice(BEHAVIORS), chance.random() < 0.3) for _ in range(chance.randrange(1, 4))] +
            [pre_tokenizers.Split(chance.choice([" ", "the", "e\u0301", ".", "\\"]), chance.choice(BEHAVIORS), False)] *
            chance.randrange(2) +
            [byte_level(add_prefix_space=chance.random() < 0.4, use_regex=chance.random() < 0.4)])),
    }[kind]()


def ids_of(tokenizer, text):
    """None: the package panics, as it does if a token with lstrip is found in the space that one with rstrip took."""
    try:
        return tokenizer.encode(text, add_special_tokens=False).ids
    except BaseException as error:
        if type(error).__name__ != "PanicException":
            raise
        return None


def make(chance, folder, kind, every_character):
    flags = lambda: {name: chance.random() < 0.35 for name in ("single_word", "lstrip", "rstrip", "normalized")}
    contents = chance.sample(CONTENTS, chance.randrange(0, 9))
    # Of two that are equal once normalized, the package takes either, by its hash table's order in this run.
    contents = list({unicodedata.normalize("NFC", content): content for content in contents}.values())
    # Without an alphabet, bytes that the texts lack have no token, as in SmolLM2.
    alphabet = [] if kind in ("smollm2", "loose") and chance.random() < 0.6 else pre_tokenizers.ByteLevel.alphabet()
    tokenizer = Tokenizer(models.BPE(ignore_merges=kind == "llama3" or chance.random() < 0.2))
    tokenizer.normalizer, tokenizer.pre_tokenizer = (part for part in shape(chance, kind))
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=chance.randrange(300, 1200), initial_alphabet=alphabet, show_progress=False,
                                  special_tokens=["<|endoftext|>", "<|begin|>"] if chance.random() < 0.5 else [])
    tokenizer.train_from_iterator([random_text(chance, contents, 60) for _ in range(400)], trainer)
    for content in contents:
        token = AddedToken(content, **flags())
        tokenizer.add_special_tokens([token]) if chance.random() < 0.5 else tokenizer.add_tokens([token])
    if tokenizer.token_to_id("<|begin|>") is not None:
        pieces = "<|begin|> $A" if chance.random() < 0.5 else "<|begin|> $A <|endoftext|>"
        template = processors.TemplateProcessing(single=pieces, pair=None, special_tokens=[
            (name, tokenizer.token_to_id(name)) for name in ("<|begin|>", "<|endoftext|>")])
        tokenizer.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=False), template])
    written = json.loads(tokenizer.to_str())
    if chance.random() < 0.5:
        written["model"]["merges"] = [" ".join(pair) for pair in written["model"]["merges"]]
    tokenizer = Tokenizer.from_str(json.dumps(written))
    os.mkdir(folder)
    texts = [""] + [random_text(chance, contents) for _ in range(200)]
    if every_character:
        shuffled = [c for c in ALL if not 0xE1000 <= c < 0x10F000]  # all for private use
        chance.shuffle(shuffled)
        texts += [chance.choice(["", "x"]).join(map(chr, shuffled[i : i + 400])) for i in range(0, len(shuffled), 400)]
    ids = [ids_of(tokenizer, text) for text in texts]
    texts = [text for text, one in zip(texts, ids) if one is not None]
    ids = [one for one in ids if one is not None]
    expected = {"ids": ids, "texts": [tokenizer.decode(one, skip_special_tokens=False) for one in ids],
                "around": tokenizer.encode("").ids, "kind": kind}
    for name, content in (("tokenizer", written), ("texts", texts), ("expected", expected)):
        with open(f"{folder}/{name}.json", "w", encoding="ascii") as file:
            json.dump(content, file)


def main(folder, seed):
    chance = random.Random(int(seed))
    kinds = ["gpt2", "llama3", "qwen", "smollm2", "nemo", "gpt4o", "deepseek"]
    made = [(kind, True) for kind in ("gpt2", "qwen", "gpt4o", "deepseek")]
    made += [(kind, False) for kind in kinds + ["gpt2_prefix", "whole"] for _ in range(4)]
    made += [("loose", False) for _ in range(20)]
    for number, (kind, every_character) in enumerate(made):
        make(chance, f"{folder}/{number}", kind, every_character)
    print(len(made))


if __name__ == "__main__":
    main(*sys.argv[1:])
