"""A loss that is a sum with a count weighs each token alike, however tokens lie in samples, batches and ranks."""

import math

import pytest
import torch
from ranks import spawn_ranks
from tiny_training import history
from torch import nn
from torch.nn import functional as F  # noqa: N812 - its usual name
from torch.utils.data import Dataset

from trainer.data import Batch
from trainer.errors import TrainerError
from trainer.loop import Settings, Trainer
from trainer.loop.losses import Answer, StepCount, StepLosses, answer_of, own_loss
from trainer.world import World, join

ALONE = World(0, 1, 0, 1, torch.device("cpu"))
SAMPLES, LENGTH, WORDS, STEPS = 14, 9, 5, 4
BATCH = 6  # the last one of an epoch has two samples


class Sentences(Dataset):
    """Sentences of very unequal lengths; what is behind their end must not be learned."""

    def __init__(self, samples=SAMPLES):
        chance = torch.Generator().manual_seed(7)
        self.tokens = torch.randint(0, WORDS, (samples, LENGTH), generator=chance)
        self.ends = [1 + (5 * number) % LENGTH for number in range(samples)]

    def __len__(self):
        return len(self.ends)

    def __getitem__(self, index):
        labels = self.tokens[index].clone()
        labels[self.ends[index] :] = -100
        return {"input_ids": self.tokens[index], "labels": labels}


class TinyForMaskedLM(nn.Module):
    """A model like Hugging Face's: it returns its own loss, a mean over the labels that count."""

    def __init__(self):
        super().__init__()
        self.words, self.head = nn.Embedding(WORDS, 8), nn.Linear(8, WORDS)

    def forward(self, input_ids, labels=None):
        logits = self.head(self.words(input_ids).tanh())
        return {"logits": logits, "loss": F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=-100)}

    def total(self, batch):
        """A method of the model, which a loss may call."""
        logits = self(**batch)["logits"]
        return F.cross_entropy(logits.flatten(0, 1), batch["labels"].flatten(), ignore_index=-100, reduction="sum")


class TinyForCausalLM(TinyForMaskedLM):
    """A tiny causal language model: each token predicts the next one."""

    def forward(self, input_ids, labels=None):
        logits = self.head(self.words(input_ids).tanh())
        shifted = F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten(), ignore_index=-100)
        return {"logits": logits, "loss": shifted}


def made(kind=TinyForMaskedLM):
    torch.manual_seed(3)
    return kind()


def summed(model, batch):
    return model.total(batch), (batch["labels"] != -100).sum()


def sgd(parameters):
    return torch.optim.SGD(parameters, lr=0.5)


def by_hand():
    """The mean over all tokens of each batch, and in the end over all of the validation data."""
    model, data = made(), Sentences()
    optimizer, losses = sgd(model.parameters()), []
    for step in range(STEPS):
        first = (step % 3) * BATCH
        some = [data[index] for index in range(first, min(first + BATCH, SAMPLES))]
        loss = model(**{key: torch.stack([one[key] for one in some]) for key in some[0]})["loss"]
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    whole = {key: torch.stack([one[key] for one in data]) for key in data[0]}
    return losses, model(**whole)["loss"].item()


def train(folder, world=None, loss=summed, model=made, **settings):
    """Losses of the steps, and of the validation at the end."""
    given = {} if loss is None else {"loss": loss}
    chosen = Settings(
        max_steps=STEPS,
        batch_size=BATCH,
        shuffle=False,
        validate_every=STEPS,
        log_every=1,
        device="cpu",
        checkpoint_dir=folder / "checkpoints",
        out=folder / "metrics",
        **settings,
    )
    Trainer(chosen, model=model, data=Sentences(), validation=Sentences(), optimizer=sgd, **given).fit(world)
    lines = history(folder)
    return [line["loss"] for line in lines], lines[-1]["val_loss"]


@pytest.mark.parametrize("accumulate", [1, 2, 5])
@pytest.mark.parametrize("loss", [summed, None])
def test_each_token_weighs_alike_under_accumulation(tmp_path, accumulate, loss):
    losses, validated = train(tmp_path, ALONE, loss, accumulate=accumulate, validation_batch_size=3)
    expected, at_the_end = by_hand()
    assert losses == pytest.approx(expected, rel=1e-5)
    assert validated == pytest.approx(at_the_end, rel=1e-5)


def on_two_ranks(folder):
    world = join(group=True, device="cpu")
    found = []
    for strategy, accumulate in (("ddp", 1), ("ddp", 2), ("zero1", 1), ("fsdp", 2)):
        place = folder / f"{strategy}-{accumulate}"
        found.append(train(place, world, strategy=strategy, accumulate=accumulate, clip_norm=100.0))
    return found


def test_each_token_weighs_alike_on_ranks(tmp_path):
    """Also: under every strategy a loss gets the model itself, whose own methods it may call."""
    expected, at_the_end = by_hand()
    for found in spawn_ranks(on_two_ranks, 2, tmp_path):
        for losses, validated in found:
            assert losses == pytest.approx(expected, rel=1e-5)
            assert validated == pytest.approx(at_the_end, rel=1e-5)


class HalfIdle(TinyForMaskedLM):
    """A part of it has no part in the loss of the first two steps."""

    def __init__(self):
        super().__init__()
        self.idle, self.calls = nn.Linear(1, 1), 0

    def total(self, batch):
        self.calls += 1
        return super().total(batch) + (self.idle(torch.zeros(1)).sum() if self.calls > 2 else 0.0)


def with_an_idle_part(folder):
    world = join(group=True, device="cpu")
    train(folder / "waived", world, model=lambda: made(HalfIdle), unused_parameters=True)
    with pytest.raises(TrainerError) as told:
        train(folder / "told", world, model=lambda: made(HalfIdle))
    return str(told.value)


def test_parameters_without_a_gradient_are_told_of_and_may_be_there(tmp_path):
    for told in spawn_ranks(with_an_idle_part, 2, tmp_path):
        assert "hint: unused_parameters=True (--unused-parameters)" in told


def test_a_model_that_predicts_the_next_token_counts_one_less():
    batch = {key: torch.stack([Sentences()[n][key] for n in range(4)]) for key in ("input_ids", "labels")}
    for kind, first in ((TinyForMaskedLM, 0), (TinyForCausalLM, 1)):
        model = made(kind)
        total, count = own_loss(model, batch)
        assert count == (batch["labels"][:, first:] != -100).sum()
        assert (total / count).item() == pytest.approx(model(**batch)["loss"].item())


def test_a_model_without_a_loss_of_its_own_is_told_of():
    with pytest.raises(TrainerError, match=r"expected a dict, got Tensor\nhint: Trainer\(loss="):
        own_loss(made(), torch.ones(2, 3))
    with pytest.raises(TrainerError, match="Identity returned no loss"):
        own_loss(nn.Identity(), {"input": torch.ones(2, 3)})


def test_a_step_without_a_token_is_left_out():
    count = StepCount(ALONE)
    weighted = count.weighted(Answer(torch.zeros(()), 0), Batch(None, 2, 1.0, True, 2, ()))
    assert weighted == 0
    assert math.isinf(count.factor(2)), "times gradients of zero: no number, and no step"


def test_a_filler_counts_for_nothing():
    count = StepCount(ALONE)
    real, filler = Batch(None, 2, 1.0, False, 2, ()), Batch(None, 0, 0.0, True, 2, ())
    total = count.weighted(Answer(torch.tensor(6.0), 4), real)
    assert count.weighted(Answer(torch.tensor(5.0), 3), filler) == 0
    assert total * count.factor(2) == 6 / 4
    assert count.factor(2) is None, "the next step begins anew"
    losses = StepLosses(ALONE)
    losses.add(Answer(torch.tensor(6.0), 4, {"bits": torch.tensor(0.5), "hits": (torch.tensor(3.0), 5)}), real)
    losses.add(Answer(torch.tensor(5.0), 3, {"bits": torch.tensor(0.1), "hits": (torch.tensor(1.0), 5)}), filler)
    assert losses.take() == {"loss": 6 / 4, "bits": 0.5, "hits": 3 / 5}


def test_what_a_loss_function_may_give():
    loss, said = torch.tensor(1.0), {"accuracy": torch.tensor(0.5)}
    assert answer_of(loss) == Answer(loss)
    assert answer_of((loss, said)) == Answer(loss, None, said)
    assert answer_of((loss, 3)) == Answer(loss, 3)
    assert answer_of((loss, 3, said)) == Answer(loss, 3, said)


@pytest.mark.parametrize(
    ("answer", "got"),
    [({"loss": torch.tensor(1.0)}, "dict"), (0.5, "float"), ((torch.tensor(1.0), "3"), r"a tensor of shape \(\), str")],
)
def test_what_a_loss_function_may_not_give(answer, got):
    with pytest.raises(TrainerError, match=f"got {got}\nhint: `return loss`"):
        answer_of(answer)


def test_what_ranks_have_noted_that_are_no_more_counts_as_if_they_had_said_it():
    """Exactly: sums of each rank are rounded by themselves."""
    mine, theirs = [0.1, 3.0, 0.2, 2.0, 1e16, 1.0], [0.3, 1.0, -1e16, 4.0]
    losses = StepLosses(ALONE)
    losses.put_back(("loss",), mine, [theirs, []])
    of_each = [math.fsum(mine[::2]), math.fsum(theirs[::2])]
    assert losses.take() == {"loss": math.fsum(of_each) / 11.0}
    losses.add(Answer(torch.tensor(2.0)), Batch(None, 4, 1.0, True, 4, ()))
    assert losses.take() == {"loss": 2.0}
