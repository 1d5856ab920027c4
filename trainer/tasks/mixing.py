"""Mix training images in pairs, as MixUp and CutMix do; labels give the share of each."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor
from torch.utils.data import Dataset, default_collate
from torchvision.transforms import v2


class Mixed(Dataset[tuple[Tensor, Tensor]]):
    """Each image mixed with the next one of its batch, one way drawn per batch if there are both.

    All of it is drawn from torch's own generator, which the trainer seeds for each batch of each rank.
    """

    def __init__(self, dataset: Any, *, classes: int, mixup: float, cutmix: float) -> None:
        """Take each way's alpha, 0 to leave it out; large ones mix half and half, small ones hardly."""
        ways = ((v2.MixUp, mixup), (v2.CutMix, cutmix))
        self._dataset = dataset
        self._mix = v2.RandomChoice([way(alpha=alpha, num_classes=classes) for way, alpha in ways if alpha])

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[tuple[Tensor, Tensor]]:
        """Return a whole batch at once, as torch's loaders ask if they can."""
        many = getattr(self._dataset, "__getitems__", None)
        samples = many(indices) if callable(many) else [self._dataset[index] for index in indices]
        images, labels = self._mix(*default_collate(samples))
        return list(zip(images, labels, strict=True))
