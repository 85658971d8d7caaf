"""Hugging Face's transformers and tokenizers, for comparison.

usage: transformers_peer.py make TOKENS (DIR DTYPE SHARD CONFIG)...   writes random models of these config.json by
                                                   save_pretrained, prints as loss
       transformers_peer.py loss TOKENS DIR[:CONTEXT]...   prints each one's mean loss over a file of uint16, in windows
                                                   of CONTEXT tokens, or of its max_position_embeddings
       transformers_peer.py ids DIR TEXT SEED      trains a byte-level BPE into DIR (vocab.json, merges.txt), writes
                                                   random Unicode to TEXT and prints its ids
       transformers_peer.py gpt2 DIR TEXTS SEED    writes texts to TEXTS, a JSON array, and prints the ids of each by
                                                   GPT2Tokenizer with DIR's encoder.json and vocab.bpe
"""
import json
import random
import sys
import unicodedata


def make(tokens, *models):
    for folder, dtype, shard, config in zip(models[::4], models[1::4], models[2::4], models[3::4]):
        write(folder, dtype, shard, json.loads(config))
    loss(tokens, *models[::4])


def write(folder, dtype, shard, config):
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(1)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**config), attn_implementation="eager")
    with torch.no_grad():
        for parameter in model.parameters():  # so that no bias is 0 and no norm's weight 1
            parameter.add_(torch.randn_like(parameter) * 0.1)
    model.to(getattr(torch, dtype)).save_pretrained(folder, max_shard_size=shard)


def loss(tokens, *folders):
    print(json.dumps([loss_of(folder, tokens) for folder in folders]))


def loss_of(folder, tokens):
    import numpy
    import torch
    from transformers import AutoModelForCausalLM

    folder, _, context = folder.partition(":")
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    context = int(context or model.config.max_position_embeddings)
    ids = torch.from_numpy(numpy.fromfile(tokens, dtype="<u2").astype("int64"))
    windows = (len(ids) - 1) // context
    total = 0.0
    with torch.no_grad():
        for w in range(windows):
            row = ids[w * context : w * context + context + 1]
            total += torch.nn.functional.cross_entropy(model(row[None, :-1]).logits[0].double(), row[1:]).item()
    return total / windows


def known_characters():
    """What both sides' tables of Unicode know."""
    return [c for c in range(0x110000) if not 0xD800 <= c <= 0xDFFF and unicodedata.category(chr(c)) != "Cn"]


def gpt2(folder, texts, seed):
    from transformers import GPT2Tokenizer

    chance = random.Random(int(seed))
    known = known_characters()
    # Every character once, among others and alone between letters; then words, scripts, emoji of several parts, runs
    # of white space and contractions in any order.
    made = ["".join(map(chr, known[i : i + 200])) for i in range(0, len(known), 200)]
    made += ["x".join(map(chr, known[i : i + 50])) for i in range(0, len(known), 50)]
    near = [c for c in known if c < 0x3000]
    cjk = [c for c in known if 0x3040 <= c < 0xA000 or 0xAC00 <= c < 0xD7A4]
    emoji = ["\U0001F600", "\U0001F469\u200d\U0001F4BB", "\U0001F1E9\U0001F1EA", "\U0001F44D\U0001F3FD", "\u2764\ufe0f"]
    words = ["the", " the", " users", "Training", " models", "don't", "we'll", "I'VE", "they're", "'s", "'d", "''", "it's", "2026",
             " 3.14159", "e\u0301", "na\u00efve", "\ufb01", "\u00b2", "<|endoftext", "|>", "http://", "_x_", "...", "--", "\x00", "\x7f"]
    blanks = [" ", "  ", "   ", "\n", "\n\n", "\t", " \n", "\r\n", "\u00a0", "\u3000", "\u180e", "\x85", "\x1c", " " * 17, "\u200b"]
    pools = [lambda: chance.choice(words), lambda: chance.choice(blanks), lambda: chance.choice(emoji),
             lambda: chr(chance.choice(near)), lambda: chr(chance.choice(known)), lambda: chr(chance.choice(cjk)),
             lambda: chr(chance.randrange(128))]
    for _ in range(12000):
        few = chance.sample(pools, chance.randrange(1, 5))
        made.append("".join(chance.choice(few)() for _ in range(chance.randrange(0, 40))))
    with open(folder + "/encoder.json", encoding="utf-8") as file:
        vocabulary = json.load(file)
    with open(folder + "/vocab.bpe", encoding="utf-8") as file:
        merges = [tuple(line.split(" ")) for line in file.read().split("\n")[1:] if line]
    tokenizer = GPT2Tokenizer(vocab=vocabulary, merges=merges)
    with open(texts, "w", encoding="ascii") as file:
        json.dump(made, file)
    print(json.dumps(tokenizer(made)["input_ids"]))


def ids(folder, text, seed):
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    chance = random.Random(int(seed))
    known = known_characters()
    near = [c for c in known if c < 0x3000]
    words = [" the", "'s", "'ll", " don't", "  ", "\n\n", "\t", "123", " 4\u00b2", "\u65e5\u672c", "\u180e", "\x85", "\x1c"]
    lines = []
    for _ in range(3000):
        pool = near if chance.random() < 0.7 else known
        length = chance.randrange(1, 25)
        lines.append("".join(chance.choice(words) if chance.random() < 0.4 else chr(chance.choice(pool)) for _ in range(length)))
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=1500, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(lines[:1500], trainer)
    tokenizer.model.save(folder)
    whole = "".join(lines)
    with open(text, "w", encoding="utf-8", newline="") as file:
        file.write(whole)
    print(json.dumps(tokenizer.encode(whole).ids))


if __name__ == "__main__":
    {"make": make, "loss": loss, "ids": ids, "gpt2": gpt2}[sys.argv[1]](*sys.argv[2:])
