"""A small residual network: every sample for itself (no batch statistics), so batches of any size train alike."""

from __future__ import annotations

from itertools import pairwise

from torch import Tensor, nn
from torch.nn import functional as F

GROUPS = 8
STRIDE = 16
"""Pixels a side that become one place of the last map."""


class Backbone(nn.Module):
    """Pictures, as bytes or as 0…1, to maps at strides 4, 8 and 16 with 1, 2 and 4 times `width` channels."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        widths = [width, 2 * width, 4 * width]
        self.stem = nn.Conv2d(3, width, 4, stride=4)
        self.down = nn.ModuleList(nn.Conv2d(a, b, 2, stride=2) for a, b in pairwise(widths))
        self.stages = nn.ModuleList(nn.Sequential(*(Block(each) for _ in range(depth))) for each in widths)

    def forward(self, pictures: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Bytes go to the device as bytes, and become numbers here."""
        floats = pictures if pictures.is_floating_point() else pictures.float() / 255
        fine = self.stages[0](self.stem(floats - 0.45))
        middle = self.stages[1](self.down[0](fine))
        return fine, middle, self.stages[2](self.down[1](middle))


class Block(nn.Module):
    """Two convolutions around which the input goes, too."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.second = (nn.Conv2d(width, width, 3, padding=1, bias=False) for _ in range(2))
        self.norm, self.normed = (nn.GroupNorm(GROUPS, width) for _ in range(2))

    def forward(self, maps: Tensor) -> Tensor:
        """Of the same shape."""
        inside = F.relu(self.norm(self.first(maps)))
        return F.relu(maps + self.normed(self.second(inside)))
