"""Cache answers to earlier inputs: a limited number, each for a limited time. Pure: the time is an argument."""

from collections import OrderedDict

from launcher.apps.serving.batching import Key


class AnswerCache:
    """The cached answers: those older than `keep_s` are dropped, and beyond `size` the least recently used."""

    def __init__(self, size: int, keep_s: float) -> None:
        self._size, self._keep_s = size, keep_s
        self._answers: OrderedDict[Key, tuple[float, bytes]] = OrderedDict()
        self.hits = 0
        self.misses = 0

    def __len__(self) -> int:
        return len(self._answers)

    def get(self, key: Key, now: float) -> bytes | None:
        """Return the cached answer, or None if there is none or it is too old."""
        found = self._answers.get(key)
        if found is not None and now - found[0] < self._keep_s:
            self._answers.move_to_end(key)
            self.hits += 1
            return found[1]
        if found is not None:
            del self._answers[key]
        self.misses += 1
        return None

    def put(self, key: Key, answer: bytes, now: float) -> None:
        """Cache an answer, dropping the least recently used ones beyond the limit."""
        if self._size:
            self._answers[key] = (now, answer)
            self._answers.move_to_end(key)
            while len(self._answers) > self._size:
                self._answers.popitem(last=False)

    def clear(self) -> None:
        """Remove all answers, because another model answers now."""
        self._answers.clear()
