"""The peers that train, in one process: importing torch takes longer than most runs.

Reads runs from standard input, one JSON object on each line, and answers each with a line: what `run` of the module
that the run's "peer" names (one of PEERS) returns for it.
"""
import json
import os
import sys

import torch

import gpt2_peer
import llama_peer
import optimizer_peer
import orders_peer
import resnet_peer
import tensors_peer

PEERS = {"gpt2_peer": gpt2_peer, "llama_peer": llama_peer, "optimizer_peer": optimizer_peer, "orders_peer": orders_peer,
         "resnet_peer": resnet_peer, "tensors_peer": tensors_peer}

torch.set_num_threads(1)
os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
for line in sys.stdin:
    config = json.loads(line)
    print(json.dumps(PEERS[config["peer"]].run(config)), flush=True)
