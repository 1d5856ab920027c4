"""The actions that a web page may take on a run, if the board was started with `--actions`: cancel, resume, tag and
note. With `dry`, an action is only described to the user before it is confirmed. The errors of the Python API's methods
are passed on.
"""

import msgspec

from launcher import api
from launcher.errors import BadInput
from launcher.status.text import plain

_MOST_TAGS, _LONGEST_TAG, _LONGEST_NOTE = 64, 63, 10_000


class ActionRequest(msgspec.Struct, frozen=True):
    """The body of a request for an action, whose path names the action and the run: tags to `add` and `remove`, or the
    `text` of a note. With `dry`, the action is described and not taken.
    """

    dry: bool = False
    add: tuple[str, ...] = ()
    remove: tuple[str, ...] = ()
    text: str = ""


class ActionReport(msgspec.Struct, frozen=True):
    """The answer to a request for an action. `said` is text for the user: what an action that was taken (`done`) did,
    or what one that was only described would do.
    """

    said: str
    done: bool


def cancel(one: api.Run, wish: ActionRequest) -> ActionReport:
    """Cancel the run, and return a report of what was done; with `wish.dry`, only describe what that would do."""
    if wish.dry:
        said = f"cancel {one.id}: its ranks get SIGTERM and the spec's grace to save, then no process of it is left"
        return ActionReport(f"{said}; its files stay", done=False)
    report = one.cancel()
    if report.already:
        return ActionReport(f"{one.id} has already ended", done=True)
    return ActionReport("\n".join([f"{one.id} was told to end", *report.ended, *report.cut_off]), done=True)


def resume(one: api.Run, wish: ActionRequest) -> ActionReport:
    """Open a new attempt of the run, and return a report; with `wish.dry`, only describe from which checkpoint it would
    continue.
    """
    if wish.dry:
        from launcher.status.checkpoints import by_script  # late: 10 ms that no other page needs

        status = one.status(api.WATCH_S)
        step = status.checkpoint
        at = "its beginning" if step is None else f"its newest whole checkpoint (step {step})"
        if step is not None and one.saved_by_script(step):
            at = f"its newest checkpoint ({by_script(step)})"
        return ActionReport(f"resume {one.id} on {status.cluster}, from {at}, with the code it had", done=False)
    one.resume()
    return ActionReport(f"{one.id} goes on", done=True)


def tag(one: api.Run, wish: ActionRequest) -> ActionReport:
    """Add and remove the run's tags, and return a report of the tags that it then has; with `wish.dry`, only describe
    the change.

    Raise BadInput for a tag that is not one word of at most 63 characters, or for more than 64 tags at once.
    """
    for text in wish.add:
        if not text or len(text) > _LONGEST_TAG or plain(text) != text or text.split() != [text] or "," in text:
            raise BadInput(f"expected a tag of one word of at most {_LONGEST_TAG} characters, got {text[:100]!r}")
    if len(wish.add) + len(wish.remove) > _MOST_TAGS:
        raise BadInput(f"expected at most {_MOST_TAGS} tags at once")
    if wish.dry:
        words = [*(f"+{text}" for text in wish.add), *(f"-{text}" for text in wish.remove)]
        return ActionReport(f"tag {one.id}: {' '.join(words) or 'nothing'}", done=False)
    return ActionReport(f"tags: {', '.join(one.label(add=wish.add, remove=wish.remove).tags) or 'none'}", done=True)


def note(one: api.Run, wish: ActionRequest) -> ActionReport:
    """Replace the run's note by `wish.text` ("" removes it), and return a report; with `wish.dry`, only describe that.

    Raise BadInput for a note of more than 10,000 characters.
    """
    if len(wish.text) > _LONGEST_NOTE:
        raise BadInput(f"a note is at most {_LONGEST_NOTE} characters long, this has {len(wish.text)}")
    if wish.dry:
        return ActionReport(f"write this note at {one.id}, in the place of what was there", done=False)
    one.label(note=wish.text)
    return ActionReport("the note is written" if wish.text else "the note is taken away", done=True)


ACTIONS = {"cancel": cancel, "resume": resume, "tag": tag, "note": note}
