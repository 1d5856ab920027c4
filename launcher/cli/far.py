"""`launch _far`: what a login node runs for people at other machines. Spoken to by `launcher.remote` alone."""

from collections.abc import Callable, Mapping
from pathlib import Path

from launcher.api import preview
from launcher.clusters.protocol import Preview
from launcher.plan.model import Plan
from launcher.remote.far import serve
from launcher.remote.tokens import Runs
from launcher.submission import Shipped, open_runs, prepare


def run() -> int:
    return serve(_Starter())


class _Starter:
    """Runs of projects that came from elsewhere."""

    def start(
        self,
        spec: Path,
        root: Path,
        *,
        on: str,
        overrides: tuple[str, ...],
        repeat: int | None,
        secrets: Mapping[str, str],
        taken: Callable[[str], bool],
        choose: Callable[[Runs], None],
    ) -> Runs:
        shipped = Shipped(root, secrets, taken, choose)
        return open_runs([spec], on=on, overrides=overrides, repeat=repeat, shipped=shipped)

    def prepare(self, spec: Path, root: Path, *, on: str, overrides: tuple[str, ...]) -> tuple[Plan, Preview | None]:
        shipped = Shipped(root, {}, lambda _: False, lambda _: None)
        plan, _ = prepare(spec, on=on, overrides=overrides, shipped=shipped)
        return plan, preview(plan)
