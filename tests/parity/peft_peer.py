"""PEFT on top of transformers, for comparison.

usage: peft_peer.py TOKENS STEPS SEQUENCES LR (BASE ADAPTER TRAINED MERGED)...

For each four folders: a model, an adapter of it before training, the same after it, and the model with the latter merged
in, all as Muster exports them. Prints a JSON list with, for each:
  losses     of STEPS training steps from ADAPTER on, by AdamW without weight decay and without clipping, on SEQUENCES
             windows of TOKENS a step in their order
  adapter    the largest difference between its weights then and TRAINED's, over their largest
  moved      the largest change of an adapter's weight in training, over its largest
  base_changed  whether any weight of the base changed
  wrapped    the mean loss of BASE with TRAINED over the file's first windows
  merged     that of MERGED
"""
import importlib.metadata
import json
import os
import sys

import numpy
import torch

sys.path.insert(0, os.path.join(sys.prefix, "peft"))
known = importlib.metadata.version  # accelerate asks for torch's, and here torch is a folder without metadata
importlib.metadata.version = lambda name: torch.__version__ if name == "torch" else known(name)

from peft import PeftModel  # noqa: E402
from transformers import AutoModelForCausalLM  # noqa: E402


def windows(tokens, context, first, count):
    rows = torch.from_numpy(numpy.stack([tokens[(first + k) * context : (first + k) * context + context + 1]
                                         for k in range(count)]).astype("int64"))
    return rows[:, :-1], rows[:, 1:]


def loss_of(model, batch):
    inputs, targets = batch
    logits = model(inputs).logits
    return torch.nn.functional.cross_entropy(logits.reshape(-1, logits.shape[-1]), targets.reshape(-1))


def compare(tokens, steps, sequences, lr, base, adapter, trained, merged):
    load = lambda folder: AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    model = PeftModel.from_pretrained(load(base), adapter, is_trainable=True)
    context = model.config.max_position_embeddings
    frozen = {name: p.clone() for name, p in model.named_parameters() if not p.requires_grad}
    own = [p for p in model.parameters() if p.requires_grad]
    initial = [p.detach().clone() for p in own]
    optimizer = torch.optim.AdamW(own, lr=lr, weight_decay=0)
    losses = []
    for step in range(steps):
        loss = loss_of(model, windows(tokens, context, step * sequences, sequences))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    after = PeftModel.from_pretrained(load(base), trained).eval()
    ours = dict(after.named_parameters())
    off = most = 0.0
    for name, p in model.named_parameters():
        if p.requires_grad:
            off = max(off, (p - ours[name]).abs().max().item())
            most = max(most, p.abs().max().item())
    batch = windows(tokens, context, 0, 8)
    with torch.no_grad():
        moved = max((p - was).abs().max().item() for p, was in zip(own, initial))
        return {"losses": losses, "adapter": off / most, "moved": moved / most,
                "base_changed": any(not torch.equal(p, frozen[n]) for n, p in model.named_parameters() if n in frozen),
                "wrapped": loss_of(after, batch).item(), "merged": loss_of(load(merged).eval(), batch).item()}


def main():
    torch.set_num_threads(1)
    tokens = numpy.fromfile(sys.argv[1], dtype="<u2")
    steps, sequences, lr = int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])
    folders = sys.argv[5:]
    print(json.dumps([compare(tokens, steps, sequences, lr, *folders[i : i + 4]) for i in range(0, len(folders), 4)]))


main()
