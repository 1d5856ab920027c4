"""Draw the pictures of a sweep with Optuna and matplotlib: history, parallel coordinates, slices, importances."""

import html
import io
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import optuna
from optuna.importance import PedAnovaImportanceEvaluator, get_param_importances
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend

from launcher.apps.sweeps.folder import SweepDir, record_of
from launcher.errors import BadInput

if TYPE_CHECKING:
    from optuna.study import Study

KINDS = ("history", "parallel", "slice", "importance")
_TITLES = {
    "history": "Values in the order of trials",
    "parallel": "What each option was, and what came of it",
    "slice": "The value by each option",
    "importance": "How much of the differences each option explains",
}
_FEWEST = 2  # trials that are complete: of less there is nothing to see
_PAGE = """<!doctype html>
<html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>{title}</title>
<style>body{{font:15px system-ui,sans-serif;margin:2rem auto;max-width:70rem;padding:0 1rem}}
svg{{max-width:100%;height:auto}}</style><h1>{title}</h1>
{pictures}
</html>
"""


def importances(sweep: SweepDir) -> dict[str, float]:
    """Return the share of the differences between results that each option explains, by the option's name; the shares
    add up to 1.

    The result is empty if there are too few trials.
    """
    study = _study(sweep)
    return _importances(study)


def draw(sweep: SweepDir, out: Path, kinds: Sequence[str] = KINDS) -> list[str]:
    """Write pictures into the file `out`: those of `kinds` in one page if its name ends in .html, else a single one as
    .png, .svg or .pdf.

    Return a line for each picture that was left out. Raise BadInput if nothing can be drawn, for an unknown kind, if a
    file for a single picture is given several kinds, or if matplotlib is missing.
    """
    if unknown := [kind for kind in kinds if kind not in KINDS]:
        raise BadInput(f"--kind: expected one of {', '.join(KINDS)}, got {unknown[0]!r}")
    study = _study(sweep)
    if _complete(study) < _FEWEST:
        raise BadInput(f"{sweep.id}: pictures need {_FEWEST} complete trials, and there are {_complete(study)}")
    is_page = out.suffix in (".html", ".htm")
    if not is_page and len(kinds) > 1:
        raise BadInput(f"{out}: one picture is one of {', '.join(kinds)}", "hint: --kind says which; a .html has all")
    drawn, left_out = _drawn(study, kinds, "svg" if is_page else out.suffix.removeprefix("."), out)
    if not drawn:
        raise BadInput(*(f"{sweep.id}: {line}" for line in left_out))
    try:
        out.write_bytes(_page(sweep, drawn) if is_page else next(iter(drawn.values())))
    except OSError as error:
        raise BadInput(f"{out}: {error.strerror}") from error
    return left_out


def _study(sweep: SweepDir) -> "Study":
    """Return the sweep's Optuna study, which has all its trials."""
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    storage = JournalStorage(JournalFileBackend(str(sweep.journal)))
    return optuna.load_study(study_name=record_of(sweep).id, storage=storage)


def _complete(study: "Study") -> int:
    """Return the number of complete trials."""
    return len(_values(study))


def _values(study: "Study") -> list[float | None]:
    """Return the value of each complete trial; None for one without a value."""
    return [one.value for one in study.get_trials(deepcopy=False, states=(optuna.trial.TrialState.COMPLETE,))]


def _importances(study: "Study") -> dict[str, float]:
    """Return how much each option contributes to the differences between the trials' values, as shares by option.

    Return an empty dict if all values are equal, or no option is common to all trials. An option whose share is NaN is
    left out.
    """
    if len(set(_values(study))) < _FEWEST:
        return {}  # all has come to the same
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            found = get_param_importances(study, evaluator=PedAnovaImportanceEvaluator())
        except (ValueError, RuntimeError):  # no option is in all of them
            return {}
    return {name: share for name, share in found.items() if not math.isnan(share)}


def _drawn(study: "Study", kinds: Sequence[str], form: str, out: Path) -> tuple[dict[str, bytes], list[str]]:
    """Return (the pictures of these `kinds`, by kind, as files of the format `form`, such as "png"; a line for each
    that was left out). Only the picture of kind "importance" can be left out, if too few different trials are
    complete.

    Raise BadInput if matplotlib is missing, or cannot write the format; the message then names the file `out`.
    """
    try:
        import matplotlib as mpl  # late: an optional package, and slow to import

        mpl.use("Agg")
        from matplotlib import pyplot as plt  # late: likewise
        from optuna.visualization import matplotlib as pictures  # late: likewise
    except ImportError as error:
        from trainer.extras import install_hint  # late: after a failure alone

        raise BadInput(f"pictures need matplotlib: {error}", install_hint("plot")) from error
    told = _importances(study)
    by_kind: Mapping[str, Callable[[], Any]] = {
        "history": lambda: pictures.plot_optimization_history(study),
        "parallel": lambda: pictures.plot_parallel_coordinate(study),
        "slice": lambda: pictures.plot_slice(study),
        "importance": lambda: _bars(plt, told),
    }
    drawn, left_out = dict[str, bytes](), list[str]()
    for kind in kinds:
        if kind == "importance" and not told:
            left_out.append("importance: it takes more trials that are complete, with other values")
            continue
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            by_kind[kind]()
        drawn[kind] = _saved(plt, form, out)
    return drawn, left_out


def _bars(plt: Any, told: Mapping[str, float]) -> None:
    """Draw a horizontal bar with its name for each number in `told` with matplotlib (`plt`)."""
    names = [*told][::-1]
    _, axes = plt.subplots()
    axes.barh(names, [told[name] for name in names])
    axes.set_xlabel(_TITLES["importance"])


def _saved(plt: Any, form: str, out: Path) -> bytes:
    """Return the current figure as bytes in this format; raise BadInput, which names the file `out`, if matplotlib
    cannot write it.
    """
    written = io.BytesIO()
    try:
        plt.gcf().savefig(written, format=form, bbox_inches="tight", metadata={"Date": None} if form == "svg" else {})
    except ValueError as error:
        raise BadInput(f"{out}: {error}", "hint: a name that ends with .html, .png, .svg or .pdf") from error
    finally:
        plt.close("all")
    return written.getvalue()


def _page(sweep: SweepDir, drawn: Mapping[str, bytes]) -> bytes:
    """Return an HTML page, in UTF-8, with the pictures in `drawn`: SVG files by kind, such as history."""
    pictures = "\n".join(f"<h2>{_TITLES[kind]}</h2>\n{_svg(one)}" for kind, one in drawn.items())
    return _PAGE.format(title=html.escape(sweep.id), pictures=pictures).encode()


def _svg(picture: bytes) -> str:
    """Return the `<svg>` element of a picture, without the XML declaration before it."""
    text = picture.decode()
    return text[text.index("<svg") :]
