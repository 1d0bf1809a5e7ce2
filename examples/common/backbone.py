"""A small residual network without batch statistics, so that batches of any size train alike."""

from __future__ import annotations

from itertools import pairwise

from torch import Tensor, nn
from torch.nn import functional as F

GROUPS = 8
STRIDE = 16
"""Pixels per side that become one position of the last feature map."""


class Backbone(nn.Module):
    """A network from images (uint8 or 0…1) to maps at strides 4, 8 and 16 with 1, 2 and 4 times `width` channels."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        widths = [width, 2 * width, 4 * width]
        self.stem = nn.Conv2d(3, width, 4, stride=4)
        self.down = nn.ModuleList(nn.Conv2d(a, b, 2, stride=2) for a, b in pairwise(widths))
        self.stages = nn.ModuleList(nn.Sequential(*(Block(each) for _ in range(depth))) for each in widths)

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the three feature maps; uint8 images are copied to the device as bytes and become floats here."""
        floats = images if images.is_floating_point() else images.float() / 255
        fine = self.stages[0](self.stem(floats - 0.45))
        middle = self.stages[1](self.down[0](fine))
        return fine, middle, self.stages[2](self.down[1](middle))


class Block(nn.Module):
    """A residual block of two convolutions."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.second = (nn.Conv2d(width, width, 3, padding=1, bias=False) for _ in range(2))
        self.first_norm, self.second_norm = (nn.GroupNorm(GROUPS, width) for _ in range(2))

    def forward(self, maps: Tensor) -> Tensor:
        """Return feature maps of the same shape."""
        hidden = F.relu(self.first_norm(self.first(maps)))
        return F.relu(maps + self.second_norm(self.second(hidden)))
