"""The user's notification settings, ~/.config/launch/notify.yaml, and their combination with a spec's at submit.

to: [{slack: "https://hooks.slack.com/services/..."}, {email: me@example.org}]
on: [stalled, ended]
smtp: {host: smtp.example.org, user: me, password: {file: ~/.smtp}, from: me@example.org}
"""

import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from urllib.parse import urlsplit

from msgspec import Struct

from launcher.errors import BadInput
from launcher.plan.secret_values import is_set, read_secret
from launcher.run.ownership import refuse_strangers
from launcher.spec.fields import OCCASIONS, notify_fields
from launcher.spec.kinds.numbers import Integer
from launcher.spec.kinds.sections import Field, Section
from launcher.spec.kinds.targets import APPRISE, SECRET_ADDRESSES, WEB_ADDRESS, SecretText
from launcher.spec.kinds.text import Choice, word
from launcher.spec.model import NotifyOptions, NotifyTarget, Secret
from launcher.spec.problems import Wrong, lines_of, printable
from launcher.spec.yaml_reader import read_tree
from launcher.spec.yaml_text import read_text
from launcher.supervisor.notify.record import MailServer, Notifying, Recipient

_HOST = word("the name or address of a host")
_RESTARTS, _STALLED_AFTER_S = 3, 600.0


class SmtpOptions(Struct, frozen=True):
    """The option `smtp:` of the settings file: the mail server."""

    host: str
    port: int = 587
    user: str | None = None
    password: Secret | None = None
    sender: str | None = None  # `from:`; None: `user` if that is an address, else launch@ and this machine's name
    tls: str = "auto"  # auto: TLS on port 465, else STARTTLS if the server offers it or a password requires it


class NotifySettings(Struct, frozen=True):
    """The content of the settings file; None for an option that it does not have."""

    to: tuple[NotifyTarget, ...] | None = None  # the recipients
    on: tuple[str, ...] | None = None  # the occasions on which they are notified
    restarts: int | None = None  # a message is sent after more restarts than this
    stalled_after_s: float | None = None  # the time without progress, or of waiting, that counts as stalled
    smtp: SmtpOptions | None = None  # the server through which mail is sent


_SMTP = Section(
    SmtpOptions,
    (
        Field("host", _HOST, "Who takes mail"),
        Field("port", Integer(1, 65535), "Its port"),
        Field("user", word("the name of a user"), "The user name to log in with"),
        Field("password", SecretText(), "What with: the variable that holds it at submit, or {file: PATH}"),
        Field("from", word("an address such as me@example.org"), "The sender of the mail", ("sender",)),
        Field("tls", Choice(("auto", "tls", "starttls", "none")), "How it is encrypted"),
    ),
)  # fmt: skip
SETTINGS = Section(
    NotifySettings, (*notify_fields(spelled_out=True), Field("smtp", _SMTP, "Who takes mail; without it sendmail"))
)


def settings_file() -> Path:
    """Return the path of the user's settings file."""
    home = os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")
    return Path(home) / "launch" / "notify.yaml"


def read_settings(path: Path) -> NotifySettings:
    """Return the settings in the file, or empty settings if it does not exist. Raise BadInput with every problem of it,
    or if another user owns it or can read or change it.
    """
    shown = printable(str(path))
    if not path.exists():
        return NotifySettings()
    refuse_strangers(path, shown, "names commands that run as you")
    if path.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise BadInput(
            f"{shown}: others can read it, and it holds addresses that are secrets", f"hint: chmod 600 {shown}"
        )
    try:
        read = read_tree(read_text(path, shown))
        problems = list(read.problems)
        settings = SETTINGS.parse(read.root) if read.root is not None and not problems else NotifySettings()
    except Wrong as error:
        problems, settings = list(error.problems), NotifySettings()
    if problems:
        raise BadInput(*lines_of(problems, shown, lambda _: ""))
    found: NotifySettings = settings
    return found


def notifying_of(spec: NotifyOptions, file: Path, project: Path, environ: Mapping[str, str]) -> Notifying | None:
    """Return which notifications a run sends to whom, or None if it sends none.

    The spec, in `file`, goes before the user's settings, one setting at a time: its recipients, if it lists any or none
    on purpose (an empty list), replace all of the user's. Only the user's settings name the mail server. Secrets are
    read from variables of `environ`, or from files, which the spec names relative to `project`. Raise BadInput for a
    setting that cannot be used; its text contains no address.
    """
    path = settings_file()
    own = read_settings(path)
    by_spec = spec.to is not None
    targets, base = (spec.to or (), project) if by_spec else (own.to or (), path.parent)
    if not targets:
        return None
    smtp = own.smtp if any(one.kind == "email" for one in targets) else None
    _refuse_unset(targets, base, environ, file if by_spec else path)
    _refuse_unset([NotifyTarget("smtp", smtp.password)] if smtp is not None else [], path.parent, environ, path)
    return Notifying(
        tuple(_recipients(targets, base, environ)),
        next(one for one in (spec.on, own.on, OCCASIONS) if one is not None),
        next(one for one in (spec.restarts, own.restarts, _RESTARTS) if one is not None),
        next(one for one in (spec.stalled_after_s, own.stalled_after_s, _STALLED_AFTER_S) if one is not None),
        _mail_server(smtp, path.parent, environ),
    )


def _refuse_unset(targets: Sequence[NotifyTarget], base: Path, environ: Mapping[str, str], file: Path) -> None:
    """Raise BadInput, which names `file`, if an address is to be read from a secret that has no value.

    A secret is a variable of `environ`, or a file named relative to `base`.
    """
    lines = []
    for one in targets:
        if one.secret is not None and not is_set(one.secret, base, environ):
            name, by_file = _source(one.secret), one.secret.file is not None
            lines.append(
                f"{printable(str(file))}: notify: {one.kind}: {name} {'cannot be read' if by_file else 'is not set'}"
            )
            lines += [] if by_file else [f"hint: export {name}=..., or keep it in a file: {one.kind}: {{file: PATH}}"]
    if lines:
        raise BadInput(*lines)


def _recipients(targets: Sequence[NotifyTarget], base: Path, environ: Mapping[str, str]) -> Iterator[Recipient]:
    """Yield each recipient once, with its address; files of secrets are named relative to `base`. Raise BadInput for a
    malformed address or a secret without a value.
    """
    counts: dict[str, int] = {}
    for one in dict.fromkeys(targets):
        counts[one.kind] = counts.get(one.kind, 0) + 1
        yield Recipient(f"{one.kind}-{counts[one.kind]}", one.kind, _address(one, base, environ), one.argv)


def _address(target: NotifyTarget, base: Path, environ: Mapping[str, str]) -> str:
    """Return the address of a recipient; raise BadInput if it is malformed.

    If it is a secret, it is read from a variable of `environ`, or from a file named relative to `base`.
    """
    if target.kind not in SECRET_ADDRESSES:
        return target.address
    about = f"notify: {target.kind}"
    text = read_secret(target.secret, base, environ, about).strip() if target.secret is not None else target.address
    source = f" in {_source(target.secret)}" if target.secret is not None else ""
    if target.kind == APPRISE:
        _refuse_unknown(text, f"{about}: expected a URL that apprise knows, such as ntfy://TOPIC{source}")
    elif not _is_web_address(text):
        raise BadInput(f"{about}: expected an address such as https://host/path{source}")
    return text


def _refuse_unknown(url: str, problem: str) -> None:
    """Raise BadInput with the text `problem` if apprise cannot use the URL, or is not installed."""
    try:
        from launcher.supervisor.notify.by_apprise import opened  # late: its library takes half a second to import
    except ImportError as error:
        from trainer.extras import install_hint  # late: after a failure alone

        raise BadInput("notify: apprise is not installed", install_hint("notify")) from error
    if opened(url) is None:
        raise BadInput(problem, "hint: https://appriseit.com lists the services and their URLs")


def _is_web_address(text: str) -> bool:
    """Return whether the text is an http or https address with a host, whose port, if it has one, is possible."""
    try:
        parts = urlsplit(text)
        return WEB_ADDRESS.fullmatch(text) is not None and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False


def _mail_server(smtp: SmtpOptions | None, base: Path, environ: Mapping[str, str]) -> MailServer | None:
    """Return the mail server of the settings, or None if they name none.

    Its password is read from a variable of `environ`, or from a file named relative to `base`; raise BadInput if it has
    no value.
    """
    if smtp is None:
        return None
    password = read_secret(smtp.password, base, environ, "notify: smtp") if smtp.password is not None else None
    return MailServer(smtp.host, smtp.port, smtp.user, password, smtp.sender, smtp.tls)


def _source(secret: Secret) -> str:
    """Return the file or the variable that holds the secret, as text."""
    return secret.file if secret.file is not None else secret.name
