"""Find steps whose loss is far above the usual one, before the optimizer uses them."""

import math
from collections import deque
from collections.abc import Mapping
from statistics import median
from typing import Any

from trainer.errors import NotFinite

_WINDOW = 100  # steps that the median is of
_LEAST = 20  # of them, before it is one to go by


class Spikes:
    """Counts the steps whose loss is more than `factor` times the running median.

    The caller passes the mean loss over all ranks, so that they all find the same steps.
    """

    def __init__(self, factor: float) -> None:
        self.total = 0  # found so far
        self.in_a_row = 0
        self._factor = factor
        self._losses: deque[float] = deque(maxlen=_WINDOW)

    @property
    def usual(self) -> float | None:
        """The running median of the loss, or None while fewer than 20 losses are known."""
        return median(self._losses) if len(self._losses) >= _LEAST else None

    def take(self, loss: float) -> bool:
        """Return whether the loss is a spike, and count it, or else add it to the running median.

        A loss that is no spike ends a row of spikes. NaN is neither a spike nor added, and without a median there are
        none.
        """
        usual = self.usual
        if usual is not None and usual > 0 and loss > self._factor * usual:
            self.total += 1
            self.in_a_row += 1
            return True
        if not math.isnan(loss):
            self._losses.append(loss)
        self.in_a_row = 0
        return False

    def too_many_error(self, where: str, limit: int) -> NotFinite:
        """Return the error to raise when more than `limit` steps in a row are spikes; its message begins with `where`.

        It is also raised if spikes sent the training back to the same checkpoint that often.
        """
        return NotFinite(
            f"{where}: the loss was over {self._factor:g} times its running median\n"
            "hint: a smaller learning rate, clip_norm, or a look at the data; "
            f"up to skip_limit={limit} such steps in a row are left out"
        )

    def state_dict(self) -> dict[str, Any]:
        """Return the counts of spikes, and the last losses, of which the median is made."""
        return {"total": self.total, "in_a_row": self.in_a_row, "losses": list(self._losses)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the counts of spikes and the last losses, as `state_dict` returned them."""
        self.total, self.in_a_row = state["total"], state["in_a_row"]
        self._losses = deque(state["losses"], maxlen=_WINDOW)
