"""A small task to train on, alone or, started by torchrun with a folder to write to, as one of several processes."""

import os
import signal
import sys
from pathlib import Path

import torch
from torch import nn

from mha_course.loop import Recipe, Stopped, train
from mha_course.training import cross_entropies

PAD = 0
RECIPE = Recipe(steps=11, micro_batches=3, clip_norm=0.7, seed=5, save_every=2, about={"vocabulary": 13})


class Reader(nn.Module):
    """Each token on its own: an embedding, dropout, a linear layer."""

    def __init__(self, dropout=0.3, width=6):
        super().__init__()
        self.embedding = nn.Embedding(13, width)
        self.dropout = nn.Dropout(dropout)
        self.linear = nn.Linear(width, 13)
        # Processes exchange buffers too, and must not do so at different times.
        self.register_buffer("unused", torch.zeros((), dtype=torch.int64))

    def forward(self, tokens):
        return self.linear(self.dropout(self.embedding(tokens)))


def reader(dropout=0.3, width=6):
    torch.manual_seed(2)
    return Reader(dropout, width).double()


def adamw(model, **settings):
    return torch.optim.AdamW(model.parameters(), **{"lr": 0.05, "weight_decay": 0.1, **settings})


def batch_at(step, index):
    """Micro-batch 0 has up to 35 real tokens, the others about 10: a mean of means would be far off."""
    tokens = torch.randint(1, 13, (5, 7))
    lengths = torch.randint(5, 8, (5, 1)) if index == 0 else torch.randint(0, 5, (5, 1))
    return {"tokens": tokens, "labels": tokens.roll(1, dims=1).where(torch.arange(7) < lengths, PAD)}


def loss(model, batch):
    losses = cross_entropies(model(batch["tokens"]), batch["labels"], PAD)
    return losses.sum(), losses.numel()


def rate(step):
    return 0.05 / (1 + step)


def stopped_and_resumed(folder, rank):
    """Process 1 is asked to stop in step 4; then all begin again as if anew, with another random model in process 1."""

    def interrupted(step, index):
        if step == 4 and rank == 1:
            os.kill(os.getpid(), signal.SIGINT)
        return batch_at(step, index)

    model = reader()
    try:
        train(model, adamw(model), interrupted, loss, RECIPE, learning_rate=rate, folder=folder / "run")
    except Stopped as stopped:
        (folder / f"stopped_{rank}.txt").write_text(str(stopped))
    model = reader()
    if rank == 1:
        nn.init.zeros_(model.linear.weight)
    optimizer = adamw(model)
    history = train(
        model,
        optimizer,
        batch_at,
        loss,
        RECIPE,
        learning_rate=rate,
        metrics=lambda model: {"rank": rank},
        folder=folder / "run",
        resume=True,
    )
    torch.save([entry.loss for entry in history], folder / f"losses_{rank}.pt")
    torch.save(model.state_dict(), folder / f"model_{rank}.pt")


def broken(folder, rank):
    """The data of process 1 ends in step 3."""

    def ending(step, index):
        if step == 3 and rank == 1:
            raise RuntimeError("no more data")
        return batch_at(step, index)

    model = reader()
    train(model, adamw(model), ending, loss, RECIPE, folder=folder / "run")


if __name__ == "__main__":
    torch.set_num_threads(1)
    scenario = {"stopped_and_resumed": stopped_and_resumed, "broken": broken}[sys.argv[1]]
    scenario(Path(sys.argv[2]), int(os.environ["RANK"]))
