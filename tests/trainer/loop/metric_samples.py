"""Metrics of torchmetrics. To import it takes as long as many a test: who needs them imports this in the test."""

from torchmetrics import MeanMetric, Metric, MetricCollection
from torchmetrics.classification import BinaryAUROC, MulticlassF1Score
from torchmetrics.regression import PearsonCorrCoef


class Twice(Metric):
    """Made of another one, which it does not reset; its value is no tensor."""

    def __init__(self):
        super().__init__()
        self.mean = MeanMetric()

    def update(self, values):
        self.mean.update(values)

    def compute(self):
        return 2 * self.mean.compute().item()


class Hidden(Metric):
    """A metric that keeps its parts in a plain list."""

    def __init__(self):
        super().__init__()
        self.means = [MeanMetric()]

    def update(self, values):
        self.means[0].update(values)

    def compute(self):
        return self.means[0].compute()


def some():
    return {
        "auroc": BinaryAUROC(),
        "pearson": PearsonCorrCoef(),
        "both": MetricCollection({"macro": MulticlassF1Score(2), "micro": MulticlassF1Score(2, average="micro")}),
        "mean": MeanMetric(),
        "error": 1 - BinaryAUROC() * BinaryAUROC(),
        "twice": Twice(),
    }
