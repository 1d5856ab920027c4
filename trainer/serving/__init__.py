"""Answer requests with a trained model: the service, and the processes that compute answers.

The HTTP side, batching and the cache are in `launcher.apps.serving`, which starts `python -m trainer.serving`.
"""

from trainer.serving.service import Rejected, Service

__all__ = ["Rejected", "Service"]
