"""Generate images instead of storing them: ten kinds of noisy stripes, each decided by (seed, index) alone."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.utils.data import Dataset

CLASSES = 10
_GOLDEN = -0x61C8864680B583EB  # 64 bits of the golden ratio, as torch's signed integers hold them
_NUMBERS = 4  # drawn for an image: width, phase and tilt of its stripes, and its light


class Stripes(Dataset[tuple[Tensor, int]]):
    """Five directions of stripes in two colours, the same on every machine and any number of ranks.

    In training each image gets fresh noise on top, from torch's own generator, so that none is seen twice.
    """

    def __init__(self, size: int, *, seed: int = 0, begin: int = 0, pixels: int = 32, augment: bool = False) -> None:
        self._size = size
        self._seed = seed
        self._begin = begin
        self._augment = augment
        self._pixels = pixels
        axis = torch.linspace(-1, 1, pixels)
        self._down, self._across = torch.meshgrid(axis, axis, indexing="ij")
        self._colours = torch.tensor([[0.9, 0.5, 0.1], [0.1, 0.5, 0.9]])

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[tuple[Tensor, int]]:
        """Return the samples of a whole batch at once; torch's loaders call this if it exists."""
        images, labels = self.draw(torch.tensor(indices))
        if self._augment:
            images += 0.2 * torch.randn_like(images)
        return list(zip(images, labels.tolist(), strict=True))

    def draw(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        """Return the images and labels with these indices, without the noise of training."""
        number = indices.to(torch.int64) + self._begin
        labels = number % CLASSES
        bits = _bits(self._seed, number, _NUMBERS + 3 * self._pixels**2)
        width, phase, tilt, light = ((bits[:, :_NUMBERS] & 0xFFFFFF).float() / (1 << 24)).T[:, :, None, None]
        angle = math.pi * (number % 5)[:, None, None] / 5 + 0.2 * (tilt - 0.5)
        along = self._across * torch.cos(angle) + self._down * torch.sin(angle)
        waves = (0.5 + light) * torch.sin((8 + 8 * width) * along + 2 * math.pi * phase)
        noise = _normal(bits[:, _NUMBERS:]).view(-1, 3, self._pixels, self._pixels)
        return waves[:, None] * self._colours[labels // 5][:, :, None, None] + 0.8 * noise, labels


def _bits(seed: int, number: Tensor, count: int) -> Tensor:
    """Return `count` numbers of 64 random bits for each image in `number`, decided by `seed` and the image's number.

    The generator is SplitMix64, which has no state.
    """
    image = _mix(_mix(torch.tensor(seed)) + number * _GOLDEN)
    return _mix(image[:, None] + torch.arange(count) * _GOLDEN)


def _mix(bits: Tensor) -> Tensor:
    """Return a hash of each element, a 64-bit integer, by the function with which SplitMix64 ends."""
    # torch shifts the sign in from above; the masks make it zeros
    bits = (bits ^ ((bits >> 30) & 0x3FFFFFFFF)) * -0x40A7B892E31B1A47
    bits = (bits ^ ((bits >> 27) & 0x1FFFFFFFFF)) * -0x6B2FB644ECCEEE15
    return bits ^ ((bits >> 31) & 0x1FFFFFFFF)


def _normal(bits: Tensor) -> Tensor:
    """Return nearly normal numbers of mean 0 and variance 1: sums of the four quarters of the 64 bits."""
    quarters = bits.contiguous().view(torch.int16).view(*bits.shape, 4)
    return (quarters.sum(-1, dtype=torch.int32) + 2).float() * (math.sqrt(3) / (1 << 16))
