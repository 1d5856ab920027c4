"""Metrics of torchmetrics give what they give of all the data at once, however many ranks share it."""

import importlib.util

import pytest
import torch
from ranks import spawn_ranks
from tiny_training import Noisy, history, hits, run_tiny

from trainer.errors import TrainerError
from trainer.loop.metric_objects import MetricObjects
from trainer.world import World, join

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("torchmetrics") is None, reason="comes with lightning, of the group of recipes"
)


ALONE = World(0, 1, 0, 1, torch.device("cpu"))
SCORES = torch.rand(40, generator=torch.Generator().manual_seed(4))
WANTED = (SCORES + 0.5 * torch.rand(40, generator=torch.Generator().manual_seed(5)) > 0.7).long()


def updated(places):
    """A pass over these batches of ten."""
    from metric_samples import some  # late: as it says

    objects, metrics = MetricObjects(), some()
    for place in places:
        scores, wanted = SCORES[10 * place : 10 * place + 10], WANTED[10 * place : 10 * place + 10]
        objects.update("auroc", metrics["auroc"], scores, wanted)
        objects.update("pearson", metrics["pearson"], scores, wanted.float())
        objects.update("both", metrics["both"], (scores > 0.6).long(), wanted)
        objects.update("mean", metrics["mean"], scores)
        objects.update("error", metrics["error"], scores, wanted)
        objects.update("twice", metrics["twice"], scores)
    return objects


def of_this_rank(places_of):
    world = join(group=True, device="cpu", timeout_s=200)
    objects = updated(places_of[world.rank])
    return objects.values(world)


def expected():
    from metric_samples import some  # late: as it says

    whole = some()
    whole["auroc"].update(SCORES, WANTED)
    whole["pearson"].update(SCORES, WANTED.float())
    whole["both"].update((SCORES > 0.6).long(), WANTED)
    whole["mean"].update(SCORES)
    whole["error"].update(SCORES, WANTED)
    whole["twice"].update(SCORES)
    both = whole.pop("both").compute()
    found = {name: one.compute() for name, one in whole.items()}
    return {name: float(value) for name, value in {**found, **{f"both_{key}": both[key] for key in both}}.items()}


@pytest.mark.parametrize("places_of", [[[0, 2], [1, 3]], [[0, 1, 2], [3], []]])
def test_the_same_as_of_all_at_once(places_of):
    wanted = expected()  # before the ranks are forked: else each of them would import torchmetrics
    for found in spawn_ranks(of_this_rank, len(places_of), places_of):
        assert found == pytest.approx(wanted, rel=1e-5)


def test_each_pass_begins_anew():
    from metric_samples import MeanMetric, Twice  # late: as it says

    objects, metric, made_of_it = MetricObjects(), MeanMetric(), Twice()
    metric.update(100.0)
    made_of_it.update(torch.tensor(100.0))
    objects.update("mean_of_all", MeanMetric(), torch.zeros(3))
    objects.update("mean", metric, torch.ones(3))
    objects.update("twice", made_of_it, torch.ones(3))
    assert objects.values(ALONE) == {"mean_of_all": 0.0, "mean": 1.0, "twice": 2.0}
    assert metric.update_count == 0


def test_more_than_one_number_is_refused():
    from torchmetrics.classification import MulticlassConfusionMatrix  # late: see metric_samples.py

    objects = MetricObjects()
    objects.update("confused", MulticlassConfusionMatrix(2), torch.tensor([0, 1]), torch.tensor([1, 1]))
    with pytest.raises(TrainerError, match="metrics: confused: expected one number, got tensor"):
        objects.values(ALONE)


class Another:
    """A metric as another library has them."""

    def update(self, values): ...

    def compute(self): ...


@pytest.mark.parametrize("another", [False, True])
def test_a_metric_whose_state_is_not_to_be_found_is_refused(another):
    from metric_samples import Hidden  # late: as it says

    metric = Another() if another else Hidden()
    with pytest.raises(TrainerError, match=f"metrics: odd: found no state in {type(metric).__name__}"):
        MetricObjects().update("odd", metric, torch.ones(3))


def train(folder):
    from metric_samples import BinaryAUROC  # late: as it says

    auroc = BinaryAUROC()

    def metrics(model, batch):
        x, y = batch
        return {**hits(model, batch), "auroc": (auroc, model(x).softmax(1)[:, 1], y)}

    settings = {"max_steps": 6, "monitor": "val_auroc", "mode": "max", "keep_best": True, "validation_batch_size": 8}
    return run_tiny(folder, settings, metrics=metrics, validation=Noisy(33, noise=0.0))


def test_a_training_reports_them_and_goes_by_them(tmp_path):
    spawn_ranks(train, 2, tmp_path)
    last = history(tmp_path)[-1]
    assert 0.0 < last["val_auroc"] <= 1.0
    assert {"val_loss", "val_accuracy"} < set(last)
