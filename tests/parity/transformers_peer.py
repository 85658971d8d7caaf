"""Hugging Face's transformers and tokenizers, for comparison.

usage: transformers_peer.py make DIR DTYPE SHARD   writes a small random GPT-2 by save_pretrained
       transformers_peer.py loss DIR TOKENS        prints its mean loss over a file of uint16, in windows of its context
       transformers_peer.py ids DIR TEXT SEED      trains a byte-level BPE into DIR (vocab.json, merges.txt), writes
                                                   random Unicode to TEXT and prints its ids
"""
import json
import random
import sys
import unicodedata


def make(folder, dtype, shard):
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(1)
    config = GPT2Config(vocab_size=256, n_positions=16, n_embd=32, n_layer=2, n_head=4, bos_token_id=0, eos_token_id=0)
    model = GPT2LMHeadModel(config)
    with torch.no_grad():
        for parameter in model.parameters():  # so that no bias is 0 and no norm's weight 1
            parameter.add_(torch.randn_like(parameter) * 0.1)
    model.to(getattr(torch, dtype)).save_pretrained(folder, max_shard_size=shard)


def loss(folder, tokens):
    import numpy
    import torch
    from transformers import GPT2LMHeadModel

    model = GPT2LMHeadModel.from_pretrained(folder, dtype=torch.float32).eval()
    context = model.config.n_positions
    ids = torch.from_numpy(numpy.fromfile(tokens, dtype="<u2").astype("int64"))
    windows = (len(ids) - 1) // context
    total = 0.0
    with torch.no_grad():
        for w in range(windows):
            row = ids[w * context : w * context + context + 1]
            total += torch.nn.functional.cross_entropy(model(row[None, :-1]).logits[0].double(), row[1:]).item()
    print(json.dumps(total / windows))


def ids(folder, text, seed):
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    chance = random.Random(int(seed))
    # What both sides' tables of Unicode know.
    known = [c for c in range(0x110000) if not 0xD800 <= c <= 0xDFFF and unicodedata.category(chr(c)) != "Cn"]
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
    {"make": make, "loss": loss, "ids": ids}[sys.argv[1]](*sys.argv[2:])
