"""Answers requests with a model that was trained: what a service is, and the processes that compute its answers.

The HTTP side, batching and the cache are `launcher.apps.serving`'s, which starts `python -m trainer.serving`.
"""

from trainer.serving.service import Rejected, Service

__all__ = ["Rejected", "Service"]
