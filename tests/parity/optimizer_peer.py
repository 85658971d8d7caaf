"""torch.optim's optimizers on given parameters and gradients, for comparison.

peer.py calls `run` with a run: `kind`, `options` (of torch.optim's class), `adamw` (muon: options of the AdamW for the
rest), `tensors`, each with `shape`, `values`, `decay`, and `matrix` (muon: updated by it, flattened to two dimensions),
`weight_decay`, and `steps`, each with `rates` (muon's and AdamW's, or one) and `gradients`. It returns the parameters
after each step, and the state after the last one: by tensor {name: values}, without torch's counts of steps.
"""
import torch

CLASSES = {"adamw": "AdamW", "adafactor": "Adafactor"}


def optimizers_of(config, tensors):
    """Each with its tensors, in groups with and without weight decay."""
    muon = config["kind"] == "muon"
    made = []
    for kind, options, matrix in (("Muon", config["options"], True), ("AdamW", config.get("adamw"), False)) if muon \
            else ((CLASSES[config["kind"]], config["options"], None),):
        groups = []
        for decay in (True, False):
            chosen = [p for p, t in zip(tensors, config["tensors"])
                      if t["decay"] == decay and (matrix is None or t["matrix"] == matrix)]
            if chosen:
                weight_decay = options.get("weight_decay", config["weight_decay"]) if decay else 0.0
                groups.append({"params": chosen, "weight_decay": weight_decay})
        if groups:
            keywords = {key: tuple(v) if isinstance(v, list) else v for key, v in options.items()}
            keywords.pop("weight_decay", None)
            made.append(getattr(torch.optim, kind)(groups, **keywords))
        else:
            made.append(None)
    return made


def run(config):
    tensors = []
    for t in config["tensors"]:
        p = torch.tensor(t["values"], dtype=torch.float32).view(t["shape"])
        tensors.append(torch.nn.Parameter(p.flatten(1) if t.get("matrix") else p))
    optimizers = optimizers_of(config, tensors)
    after = []
    for step in config["steps"]:
        for p, gradient in zip(tensors, step["gradients"]):
            p.grad = torch.tensor(gradient, dtype=torch.float32).view(p.shape)
        for optimizer, rate in zip(optimizers, step["rates"]):
            if optimizer is None:
                continue
            for group in optimizer.param_groups:
                group["lr"] = rate
            optimizer.step()
        after.append([p.detach().flatten().tolist() for p in tensors])
    state = []
    for p in tensors:
        of = next((o.state[p] for o in optimizers if o is not None and p in o.state), {})
        state.append({k: v.flatten().tolist() for k, v in of.items() if k != "step" and torch.is_tensor(v)})
    return {"parameters": after, "state": state}
