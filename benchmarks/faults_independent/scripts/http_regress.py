"""Trains a regression on arrays that workers download over HTTP, as from an object store."""

import argparse
import http.client
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Remote(Dataset):
    def __init__(self, host, samples, threads):
        self.host, self.samples, self.threads, self.pool = host, samples, threads, None

    def __len__(self):
        return self.samples

    def fetch(self, i):
        connection = http.client.HTTPConnection(self.host, timeout=30)
        connection.request("GET", f"/sample/{i}")
        body = connection.getresponse().read()
        connection.close()
        return torch.from_numpy(np.frombuffer(body, np.float32).copy()), float(i % 7)

    def __getitem__(self, i):
        return self.fetch(i)

    def __getitems__(self, indices):
        if self.threads <= 1:
            return [self.fetch(i) for i in indices]
        if self.pool is None:
            self.pool = ThreadPoolExecutor(self.threads)
        return list(self.pool.map(self.fetch, indices))


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--host", required=True)
    p.add_argument("--samples", type=int, default=800)
    p.add_argument("--threads", type=int, default=1)
    p.add_argument("--batch-size", type=int, default=16)
    p.add_argument("--workers", type=int, default=2)
    p.add_argument("--hidden", type=int, default=256)
    a = p.parse_args()
    torch.set_num_threads(1)
    data = Remote(a.host, a.samples, a.threads)
    loader = DataLoader(data, a.batch_size, num_workers=a.workers, shuffle=True)
    features = len(data.fetch(0)[0])
    net = nn.Sequential(nn.Linear(features, a.hidden), nn.Tanh(), nn.Linear(a.hidden, 1))
    opt = torch.optim.Adam(net.parameters())
    began = time.time()
    n = 0
    for x, y in loader:
        loss = (net(x)[:, 0] - y.float()).pow(2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        n += len(x)
    print(f"{n / (time.time() - began):.2f} samples/s")


if __name__ == "__main__":
    main()
