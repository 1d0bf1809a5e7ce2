"""Two ranks that train together, the second one with a slow dataset; for `penstock run`."""

import time

import torch
from torch import distributed
from torch.utils.data import DataLoader, Dataset

BATCHES = 40


class SlowSamples(Dataset):
    def __init__(self, wait_s):
        self.wait_s = wait_s

    def __len__(self):
        return 2 * BATCHES

    def __getitem__(self, index):
        time.sleep(self.wait_s)
        return torch.zeros(4)


def main():
    distributed.init_process_group("gloo")
    for batch in DataLoader(SlowSamples(0.02 * distributed.get_rank()), batch_size=2, num_workers=1):
        distributed.all_reduce(batch)
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
