"""Read and write `notify.json`: who is notified of a run and when; its addresses are secret and never shown."""

import re
from urllib.parse import unquote, urlsplit

import msgspec


class MailServer(msgspec.Struct, frozen=True):
    """The SMTP server by which mail is sent; without one, sendmail is used."""

    host: str
    port: int = 587
    user: str | None = None
    password: str | None = None
    sender: str | None = None
    tls: str = "auto"  # auto: tls on port 465, else starttls where the server has it, or a password needs it

    def __repr__(self) -> str:
        return f"MailServer({self.host}:{self.port})"


class Recipient(msgspec.Struct, frozen=True):
    """One recipient of notifications and how to reach it."""

    id: str  # in this run, such as slack-1; deliveries are recorded under it
    kind: str
    address: str = ""
    argv: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return f"Recipient({self.label})"

    @property
    def label(self) -> str:
        """Return the recipient's name for users: the host of a web address, the scheme of an apprise URL, a
        command's program.
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
        """Return the strings that no message, log or error may contain: the address and the parts after its host."""
        if self.kind in ("email", "command"):
            return ()
        if self.kind == "apprise":
            words = re.split(r"[/?&=@:#]+", self.address.partition("://")[2])
            return (self.address, *words, *map(unquote, words))
        parts = urlsplit(self.address)
        return tuple(one for one in (self.address, parts.path.strip("/"), parts.query, parts.password or "") if one)


class Notifying(msgspec.Struct, frozen=True):
    """The notifications that a run sends: to whom, on which occasions, and with which mail server."""

    recipients: tuple[Recipient, ...]
    on: tuple[str, ...]
    restarts: int = 3
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
    """Return whether the command was given as one string, which the shell runs."""
    return argv[:2] == ("/bin/sh", "-c") and len(argv) == 3 and bool(argv[2].strip())
