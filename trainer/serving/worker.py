"""Compute answers in a process, batch by batch, until the server closes its end.

```
◄ {"inputs": [...]}     ► {"answers": [{"json": bytes} | {"field", "why"} | {"error"}]}
```
"""

import os
import sys
import traceback
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import msgspec
import torch
from torch import nn

from trainer.serving.frames import MessageSocket
from trainer.serving.service import Rejected, Service

Answer = dict[str, Any]


def serve_batches(server: MessageSocket, service: Service, model: Any, threads: int, number: int) -> None:
    """Compute answers batch by batch until the server closes its end."""
    torch.set_num_threads(threads)
    model = on_device(model, number)
    server.send({"op": "ready", "pid": os.getpid()})
    with suppress(ConnectionError):
        while (message := server.receive()) is not None:
            server.send({"answers": answers(service, model, message["inputs"])})


def on_device(model: Any, number: int) -> Any:
    """Return the model on a GPU for this worker, if there is any.

    Call it after the fork, which CUDA does not survive.
    """
    if not isinstance(model, nn.Module) or not torch.cuda.is_available():
        return model
    return model.to(f"cuda:{number % torch.cuda.device_count()}")


def answers(service: Service, model: Any, inputs: Sequence[Any]) -> list[Answer]:
    """Return one answer for each input; if a batch fails, each input is tried alone."""
    try:
        return _computed(service, model, inputs)
    except Exception as error:  # noqa: BLE001 - what the user's code does is anything
        if len(inputs) == 1:
            return [_refused(error)]
        return [one for alone in inputs for one in answers(service, model, [alone])]


def _computed(service: Service, model: Any, inputs: Sequence[Any]) -> list[Answer]:
    """Return the answers that `predict` gives. Raises ValueError if there are too many or too few."""
    with torch.inference_mode():
        found = service.predict(model, list(inputs))
    if len(found) != len(inputs):
        raise ValueError(f"predict: expected {len(inputs)} answers, one for each input, got {len(found)}")
    return [{"json": msgspec.json.encode(one)} for one in found]


def _refused(error: Exception) -> Answer:
    """Return the answer for an input that failed with this error."""
    if isinstance(error, Rejected):
        return {"field": error.field, "why": error.why}
    traceback.print_exc(file=sys.stderr)
    return {"error": traceback.format_exception_only(error)[-1].strip()[:1000]}
