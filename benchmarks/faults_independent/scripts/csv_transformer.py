"""Trains a small transformer on sentences of a CSV file; with a progress bar, and a confusion matrix in Python."""

import argparse
import csv
import random
import re
import time

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, Sampler
from tqdm import tqdm

WORD = re.compile(r"[a-z]+|[0-9]|[^\sa-z0-9]")


def tokenise(sentence, length):
    """Return ids of pieces: a word is split greedily into pieces of at most four letters, by hashing each candidate."""
    ids = []
    for word in WORD.findall(sentence.lower()):
        while word:
            scores = [(sum(ord(c) * 31**k for k, c in enumerate(word[:n])) % 5000, n) for n in range(1, 5)]
            best, n = max(scores)
            ids.append(best)
            word = word[n:]
    return (ids + [0] * length)[:length]


class Sentences(Dataset):
    def __init__(self, path, length, ahead, in_item):
        with open(path, newline="") as file:
            self.rows = [(text, int(label)) for text, label in csv.reader(file)]
        self.length, self.in_item = length, in_item
        self.ready = [tokenise(text, length) for text, _ in self.rows] if ahead else None

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        text, label = self.rows[i]
        if self.ready is not None:
            return self.ready[i], label
        return (tokenise(text, self.length) if self.in_item else text), label

    def collate(self, batch):
        texts, labels = zip(*batch, strict=True)
        if isinstance(texts[0], str):
            texts = [tokenise(text, self.length) for text in texts]
        return torch.tensor(texts), torch.tensor(labels)


class WeightedDraws(Sampler):
    """Draws samples in proportion to their weights; one at a time with numpy, or all at once."""

    def __init__(self, weights, at_once):
        self.p, self.at_once = np.asarray(weights) / np.sum(weights), at_once

    def __len__(self):
        return len(self.p)

    def __iter__(self):
        if self.at_once:
            yield from np.random.choice(len(self.p), len(self.p), p=self.p).tolist()
        else:
            for _ in range(len(self.p)):
                yield int(np.random.choice(len(self.p), p=self.p))


class Classifier(nn.Module):
    def __init__(self, dim, layers):
        super().__init__()
        self.embed = nn.Embedding(5000, dim)
        layer = nn.TransformerEncoderLayer(dim, 4, dim * 2, batch_first=True, dropout=0.0)
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(dim, 4)

    def forward(self, ids):
        return self.head(self.encoder(self.embed(ids)).mean(1))


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--data", required=True)
    p.add_argument("--tokenise", choices=["collate", "item", "ahead"], default="ahead")
    p.add_argument("--length", type=int, default=32)
    p.add_argument("--dim", type=int, default=32)
    p.add_argument("--layers", type=int, default=1)
    p.add_argument("--batch-size", type=int, default=32)
    p.add_argument("--workers", type=int, default=2)
    p.add_argument("--steps", type=int, default=200)
    p.add_argument("--draws", choices=["shuffle", "one-by-one", "at-once"], default="shuffle")
    p.add_argument("--weights", type=int, default=1, help="the sampler knows so many times as many samples")
    p.add_argument("--confusion-every", type=int, default=0)
    p.add_argument("--confusion-rounds", type=int, default=1)
    a = p.parse_args()
    torch.set_num_threads(1)
    data = Sentences(a.data, a.length, a.tokenise == "ahead", a.tokenise == "item")
    sampler = None
    if a.draws != "shuffle":
        data.rows = data.rows * a.weights
        data.ready = data.ready * a.weights if data.ready else None
        sampler = WeightedDraws([1 + label for _, label in data.rows], a.draws == "at-once")
    loader = DataLoader(
        data,
        a.batch_size,
        shuffle=sampler is None,
        sampler=sampler,
        num_workers=a.workers,
        collate_fn=data.collate,
        persistent_workers=a.workers > 0,
    )
    model = Classifier(a.dim, a.layers)
    optimizer = torch.optim.Adam(model.parameters())
    done = seen = 0
    start = time.monotonic()
    while done < a.steps:
        for ids, labels in (bar := tqdm(loader, mininterval=1, disable=None)):
            logits = model(ids)
            loss = nn.functional.cross_entropy(logits, labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            done, seen = done + 1, seen + len(ids)
            bar.set_postfix(loss=loss.item(), refresh=False)
            if a.confusion_every and done % a.confusion_every == 0:
                matrix = [[0] * 4 for _ in range(4)]
                predicted, truth = logits.argmax(1).tolist(), labels.tolist()
                for _ in range(a.confusion_rounds):  # bootstrap: the interval of the accuracy
                    for k in random.choices(range(len(truth)), k=len(truth)):
                        matrix[truth[k]][predicted[k]] += 1
            if done >= a.steps:
                break
    print(f"{seen / (time.monotonic() - start):.2f} samples/s")


if __name__ == "__main__":
    main()
