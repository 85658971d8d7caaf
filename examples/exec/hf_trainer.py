"""A language model trained by Hugging Face's Trainer, as anyone writes it for torchrun. Nothing is downloaded: the model
is made from a configuration, and the text is this file.

torchrun --nproc_per_node 2 examples/exec/hf_trainer.py
muster run --ranks 2 -- python examples/exec/hf_trainer.py

It continues from the newest whole checkpoint in its folder, with any number of ranks. The losses that the Trainer writes
for TensorBoard are the job's metrics.
"""

import os
import pathlib
import sys
import time

import torch
from transformers import GPT2Config, GPT2LMHeadModel, HfArgumentParser, Trainer, TrainingArguments

CONTEXT = 64


class Bytes(torch.utils.data.Dataset):
    """Windows of a text; a byte is a token."""

    def __init__(self, path):
        with open(path, "rb") as file:
            self.tokens = torch.tensor(list(file.read()))

    def __len__(self):
        return len(self.tokens) - CONTEXT

    def __getitem__(self, i):
        window = self.tokens[i:i + CONTEXT]
        return {"input_ids": window, "labels": window}


def newest_checkpoint(folder):
    """A process that is killed while the Trainer saves leaves part of a checkpoint, which transformers' own
    get_last_checkpoint returns too. The Trainer writes trainer_state.json last."""
    whole = [path.parent for path in pathlib.Path(folder).glob("checkpoint-*/trainer_state.json")]
    return max(whole, key=lambda path: int(path.name.split("-")[1]), default=None)


def main():
    folder = f"/tmp/{os.environ.get('MUSTER_JOB_ID', 'hf_trainer')}"
    defaults = ["--output_dir", folder, "--max_steps", "60", "--save_steps", "10", "--logging_steps", "1",
                "--learning_rate", "3e-3",
                "--per_device_train_batch_size", "4", "--report_to", "tensorboard", "--disable_tqdm", "True",
                "--use_cpu", str(not torch.cuda.is_available())]  # else each rank without a GPU trains by itself
    (arguments,) = HfArgumentParser(TrainingArguments).parse_args_into_dataclasses(defaults + sys.argv[1:])
    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config(vocab_size=256, n_positions=CONTEXT, n_embd=32, n_layer=2, n_head=2))
    trainer = Trainer(model=model, args=arguments, train_dataset=Bytes(__file__))
    last = newest_checkpoint(arguments.output_dir)
    trainer.train(resume_from_checkpoint=str(last) if last else None)
    # A thread of Gloo that still frees a tensor while Python shuts down aborts the process (pytorch/pytorch#179291).
    if not torch.cuda.is_available():
        time.sleep(1)


if __name__ == "__main__":
    main()
