"""The record `notify.json` of a run: which recipients are notified, and when. The recipients' addresses are secrets and
never shown.
"""

import re
from urllib.parse import unquote, urlsplit

import msgspec


class MailServer(msgspec.Struct, frozen=True):
    """The SMTP server by which mail is sent; without one, sendmail is used."""

    host: str
    port: int = 587
    user: str | None = None  # None: no login
    password: str | None = None
    sender: str | None = None  # the address in From; None: `user` if it is an address, else launch@ and this host
    tls: str = "auto"  # auto: TLS on port 465, else STARTTLS if the server offers it or a password requires it

    def __repr__(self) -> str:
        return f"MailServer({self.host}:{self.port})"


class Recipient(msgspec.Struct, frozen=True):
    """A recipient of notifications: a web or mail address, or a command (`argv`). Deliveries are recorded under its
    `id`, such as slack-1.
    """

    id: str  # unique in this run, such as slack-1; deliveries are recorded under it
    kind: str  # slack, discord, teams, json (any other webhook), apprise, email or command
    address: str = ""
    argv: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return f"Recipient({self.label})"

    @property
    def label(self) -> str:
        """Return a name for users without secrets, such as `email ann@example.org`: the kind, then the mail address,
        the host of a web address, the scheme of an apprise URL, or a command's program.
        """
        match self.kind:
            case "email":
                return f"email {self.address}"
            case "command":
                return f"command {self.argv[2].split(maxsplit=1)[0] if is_shell(self.argv) else self.argv[0]}"
            case "apprise":
                return f"apprise {self.address.partition(':')[0]}"  # what follows the scheme may be a token
            case _:
                return f"{self.kind} {urlsplit(self.address).hostname or ''}".rstrip()

    def secrets(self) -> tuple[str, ...]:
        """Return the strings that no message, log or error may contain: a web address and those parts of it that follow
        the host, or an apprise URL and all its parts; none for a mail address or a command.
        """
        if self.kind in ("email", "command"):
            return ()
        if self.kind == "apprise":
            words = re.split(r"[/?&=@:#]+", self.address.partition("://")[2])
            return (self.address, *words, *map(unquote, words))
        parts = urlsplit(self.address)
        return tuple(one for one in (self.address, parts.path.strip("/"), parts.query, parts.password or "") if one)


class Notifying(msgspec.Struct, frozen=True):
    """The notifications that a run sends: to whom, on which occasions (`on`), after how many restarts, after how long
    without progress, and by which mail server.
    """

    recipients: tuple[Recipient, ...]
    on: tuple[str, ...]  # of started, restarted, stalled, ended
    restarts: int = 3  # `restarted` is sent once there are more than this since the user's submit or resume
    stalled_after_s: float = 600.0
    mail: MailServer | None = None

    def secrets(self) -> tuple[str, ...]:
        """Return the strings that no message, log or error may contain."""
        password = self.mail.password if self.mail is not None else None
        return (
            *(one for recipient in self.recipients for one in recipient.secrets()),
            *([password] if password else []),
        )


def is_shell(argv: tuple[str, ...]) -> bool:
    """Return whether `argv` is `/bin/sh -c TEXT` with a text that is not blank, as a command is recorded that the user
    gave as one string.
    """
    return argv[:2] == ("/bin/sh", "-c") and len(argv) == 3 and bool(argv[2].strip())
