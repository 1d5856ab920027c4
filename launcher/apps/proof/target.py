"""Settings that all runs of a proof share."""

from dataclasses import replace

from launcher.apps.repeated_runs import RepeatedJob, gives, is_ours, steps_override
from launcher.errors import Refused
from launcher.spec.model import RunOptions

_LOGS = "log-every"
_KEPT = 1000  # checkpoints: the first that differs is looked for among all of them
# Killed again and again on purpose, and nobody is to hear of it.
_ALWAYS = (
    "sweep=null",
    "notify.to=[]",
    f"checkpoint.keep={_KEPT}",
    "recovery.no_progress=off",
    *(f"recovery.{cause}={{restarts: unlimited, backoff: 0s}}" for cause in ("killed", "communication", "node_lost")),
)


def for_a_proof(target: RepeatedJob, *, steps: int | None, kills: int) -> RepeatedJob:
    """Return the job with the settings that all runs of a proof share; the user's own overrides win. Raise BadInput
    or Refused.
    """
    wish = target.request(_ALWAYS)
    if not wish.cluster.supports_reach:
        raise Refused(f"--on {target.on}: no rank can be killed there", "hint: prove it on another cluster")
    words = [*_ALWAYS, *_logged(wish.spec.run)]
    if steps is not None:
        words += [
            steps_override(wish.spec.run, steps, wish.code.root),
            f"checkpoint.every={max(1, steps // (2 * kills + 2))} steps",
        ]
    return replace(target, overrides=(*words, *target.overrides))


def _logged(run: RunOptions) -> list[str]:
    """Return an override that logs metrics at each step, if the program supports it."""
    return [f"run.args.{_LOGS}=1"] if is_ours(run) or gives(run, _LOGS) else []
