"""Use the loss that a model computes itself, as Hugging Face's do: `model(**batch).loss`."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from trainer.errors import TrainerError

_IGNORED = -100  # a label that is to be left out
_NEXT_TOKEN = ("CausalLM", "LMHead", "ForConditionalGeneration")  # in the names of models that predict the next one


def own_loss(model: nn.Module, batch: Any) -> Tensor | tuple[Tensor, Tensor]:
    """Return the model's own loss, which the Trainer uses when given no `loss`.

    Such a loss is a mean over the labels that are not -100. Where each token has a label they are counted, so that
    accumulation, ranks and validation weigh each token alike.
    """
    if not isinstance(batch, Mapping):
        raise TrainerError(
            f"loss: without one of yours a batch goes to the model as model(**batch): expected a dict, "
            f"got {type(batch).__name__}\nhint: Trainer(loss=...), or a collate function that makes dicts"
        )
    answer = model(**batch)
    loss = answer.get("loss") if isinstance(answer, Mapping) else getattr(answer, "loss", None)
    if not isinstance(loss, Tensor):
        raise TrainerError(
            f"loss: {type(model).__name__} gave none by itself\nhint: Trainer(loss=...), or labels in the batch"
        )
    labels = batch.get("labels")
    if not isinstance(labels, Tensor) or labels.dim() < 2 or labels.is_floating_point():
        return loss
    counted = (labels[..., 1:] if _predicts_the_next(model) else labels) != _IGNORED
    count = counted.sum()
    return loss * count, count


def _predicts_the_next(model: nn.Module) -> bool:
    """Return whether the model predicts the next token, so that the first label has no part in the loss."""
    if getattr(getattr(model, "config", None), "is_encoder_decoder", False):
        return False
    return any(word in kind.__name__ for kind in type(model).__mro__ for word in _NEXT_TOKEN)
