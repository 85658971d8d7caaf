"""Training of the class of transformers that a config.json names, otherwise as gpt2_peer.py trains, for comparison.

peer.py calls `run` with a run: those of gpt2_peer.py on one rank, with `model`, the config.json, and `tensors` by the names
of transformers. Its mistakes are those of the optimizer and, of the model:
  window    one key more than sliding_window
  rope      a base of the rotary positions four times as large
  epsilon   an epsilon of RMSNorm ten times as large
  heads     query heads read the keys and values of the wrong group
"""
import torch

import gpt2_peer

MISTAKES = ("window", "rope", "epsilon", "heads")


class Model(torch.nn.Module):
    def __init__(self, config):
        super().__init__()
        from transformers import AutoConfig, AutoModelForCausalLM  # takes seconds, which other peers' runs need not spend

        numbers, mistake = dict(config["model"]), config["mistake"]
        if mistake == "window":
            numbers["sliding_window"] += 1
        if mistake == "rope":
            numbers["rope_theta"] *= 4
        if mistake == "epsilon":
            numbers["rms_norm_eps"] *= 10
        self.model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**numbers), attn_implementation="eager")
        missing, unexpected = self.model.load_state_dict(gpt2_peer.load_weights(config), strict=False)
        assert not unexpected and missing == (["lm_head.weight"] if numbers["tie_word_embeddings"] else []), (missing, unexpected)
        if mistake == "heads":
            for layer in self.model.model.layers:
                for linear in (layer.self_attn.k_proj, layer.self_attn.v_proj):
                    linear.register_forward_hook(lambda module, inputs, y: y.flip(-1).view(
                        *y.shape[:-1], -1, layer.self_attn.head_dim).flip(-1).flatten(-2))
        self.names, self.tensors = zip(*self.model.named_parameters())

    def forward(self, ids):
        return self.model(ids).logits


def run(config):
    own = config["mistake"] in MISTAKES
    return gpt2_peer.train(dict(config, mistake="") if own else config, make=lambda _: Model(config))
