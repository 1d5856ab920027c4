"""A small transformer that predicts the next token: pre-norm, rotary positions, torch's own attention."""

import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - its usual name

from trainer.errors import BadSettings


@dataclass(frozen=True, slots=True)
class Shape:
    """The sizes of a transformer; `tied`: the head uses the embedding's weights."""

    tokens: int = 256  # the size of the vocabulary
    context: int = 128  # the length of a window
    layers: int = 4
    heads: int = 4
    width: int = 128
    dropout: float = 0.0
    tied: bool = True

    def __post_init__(self) -> None:
        for name in ("context", "layers", "heads", "width"):
            if getattr(self, name) < 1:
                raise BadSettings(f"--{name}: expected at least 1, got {getattr(self, name)}")
        if self.width % (2 * self.heads):
            raise BadSettings(
                f"--width: expected a multiple of {2 * self.heads} for {self.heads} heads, got {self.width}"
            )
        if not 0 <= self.dropout < 1:
            raise BadSettings(f"--dropout: expected a number from 0 to below 1, got {self.dropout}")


class Transformer(nn.Module):
    """A transformer from tokens (batch, time) to the logits of each one's successor (batch, time, tokens)."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.embedding = nn.Embedding(shape.tokens, shape.width)
        self.dropout = nn.Dropout(shape.dropout)
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.layers))
        self.norm = nn.LayerNorm(shape.width)
        self.head = nn.Linear(shape.width, shape.tokens, bias=False)
        self._draw_weights(shape)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the logits of the next token for each token."""
        x = self.dropout(self.embedding(tokens))
        for block in self.blocks:
            x = block(x)
        logits: Tensor = self.head(self.norm(x))
        return logits

    pipeline = ("embedding", "dropout", "blocks.*", "norm", "head")  # what is called one after the other

    def tp_plan(self) -> dict[str, str]:
        """Return the tensor-parallel plan as {pattern of layer names: the style in which these layers are divided}.

        Attention is divided by heads, feed-forward layers by hidden units, and embedding and logits by vocabulary;
        between these layers the activations are divided along the sequence.
        """
        return {
            "embedding": "rowwise_to_sequence",
            "*norm": "sequence_parallel",
            "*.qkv_by_head": "colwise_from_sequence",
            "*.out": "rowwise_to_sequence",
            "*.up": "colwise_from_sequence",
            "*.down": "rowwise_to_sequence",
            "head": "vocabulary_from_sequence",
        }

    def _draw_weights(self, shape: Shape) -> None:
        """Draw the initial weights from a normal distribution, but leave those of the norms as torch makes them.

        Layers whose outputs are added up from block to block get smaller weights the more blocks there are. With
        `shape.tied`, the head then uses the embedding's weights.
        """
        for name, parameter in self.named_parameters():
            if parameter.ndim < 2:
                continue  # norms begin as torch makes them
            # what is added to the stream, twice a block, must not make it grow with the depth
            adds = name.endswith((".out.weight", ".down.weight"))
            nn.init.normal_(parameter, std=0.02 / math.sqrt(2 * shape.layers) if adds else 0.02)
        if shape.tied:
            self.head.weight = self.embedding.weight


class Block(nn.Module):
    """Attention, then a feed-forward layer, each on a normalised input and added to it."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(shape.width)
        self.attention = Attention(shape)
        self.feed_norm = nn.LayerNorm(shape.width)
        self.feed = Feed(shape)

    def forward(self, x: Tensor) -> Tensor:
        """Return the block's output for the activations `x`, of the same shape: (batch, length, width)."""
        x = x + self.attention(self.attention_norm(x))
        y: Tensor = x + self.feed(self.feed_norm(x))
        return y


class Attention(nn.Module):
    """Causal self-attention."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.size = shape.width // shape.heads  # of a head
        self.dropout = shape.dropout
        # Query, key and value of one head after the other: ranks that divide its rows have whole heads.
        self.qkv_by_head = nn.Linear(shape.width, 3 * shape.width, bias=False)
        self.out = nn.Linear(shape.width, shape.width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return the attention's output."""
        found: Tensor = self.qkv_by_head(x)
        q, k, v = found.unflatten(-1, (-1, 3, self.size)).permute(3, 0, 2, 1, 4)
        dropout = self.dropout if self.training else 0.0
        seen = F.scaled_dot_product_attention(_rotate(q), _rotate(k), v, is_causal=True, dropout_p=dropout)
        y: Tensor = self.out(seen.transpose(1, 2).flatten(2))
        return F.dropout(y, self.dropout, self.training)


class Feed(nn.Module):
    """The feed-forward layer: a linear layer to four times the width, GELU, and a linear layer back to the width."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.up = nn.Linear(shape.width, 4 * shape.width, bias=False)
        self.down = nn.Linear(4 * shape.width, shape.width, bias=False)
        self.dropout = nn.Dropout(shape.dropout)

    def forward(self, x: Tensor) -> Tensor:
        """Return the layer's output."""
        y: Tensor = self.dropout(self.down(F.gelu(self.up(x))))
        return y


def _rotate(x: Tensor) -> Tensor:
    """Rotate each head (…, time, size) by angles that grow with the position in time.

    An element of the head's first half is rotated with the one at the same index of its second half. The angles are
    computed each time: a buffer would be broadcast before each step, and rounded with the parameters.
    """
    time, half = x.shape[-2], x.shape[-1] // 2
    speeds = 10_000.0 ** -(torch.arange(half, device=x.device, dtype=torch.float32) / half)
    angles = torch.arange(time, device=x.device, dtype=torch.float32)[:, None] * speeds
    cos, sin = angles.cos(), angles.sin()
    a, b = x.float().split(half, dim=-1)
    return torch.cat([a * cos - b * sin, a * sin + b * cos], dim=-1).type_as(x)


def decay_groups(parameters: Iterable[nn.Parameter], weight_decay: float) -> list[dict[str, object]]:
    """Return parameter groups: matrices with weight decay, all others without."""
    known = list(parameters)
    return [
        {"params": [parameter for parameter in known if parameter.ndim >= 2], "weight_decay": weight_decay},
        {"params": [parameter for parameter in known if parameter.ndim < 2], "weight_decay": 0.0},
    ]


@torch.no_grad()
def continue_text(model: nn.Module, begin: Tensor, count: int, *, context: int, generator: torch.Generator) -> Tensor:
    """Return `begin` (a row of tokens) followed by `count` tokens, each drawn from the model's prediction.

    The model sees at most the last `context` tokens; `generator` draws.
    """
    tokens = begin[None]
    for _ in range(count):
        expected = model(tokens[:, -context:])[:, -1].float().softmax(dim=-1).cpu()
        drawn = torch.multinomial(expected, 1, generator=generator)
        tokens = torch.cat([tokens, drawn.to(tokens.device)], dim=1)
    return tokens[0]
