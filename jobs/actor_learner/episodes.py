"""Hand out the episodes of a step to actors over HTTP, and collect the episodes that they have played."""

import contextlib
import http.server
import json
import threading
from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class Episodes:
    """The episodes of one step at a time; if an actor disconnects, another actor plays its episode.

    `policy` has the weights as JSON, `waiting` the numbers of episodes without an actor, `played` the finished ones by
    number, and `count` is how many the step has. `changed` guards the fields and wakes threads that wait for a change.
    """

    step: int = -1  # of training; -1 before the first
    policy: Any = None  # as JSON
    waiting: list[int] = field(default_factory=list)  # numbers of episodes that nobody plays yet
    played: dict[int, Any] = field(default_factory=dict)
    count: int = 0
    changed: threading.Condition = field(default_factory=threading.Condition)

    def ask_for(self, step: int, policy: Any, count: int) -> list[Any]:
        """Hand out the episodes 0 to `count` - 1 of `step`, to be played with this policy, and wait for all.

        Returns the played episodes in the order of their numbers.
        """
        with self.changed:
            self.step, self.policy, self.count = step, policy, count
            self.waiting, self.played = list(range(count)), {}
            self.changed.notify_all()
            self.changed.wait_for(lambda: len(self.played) == count)
            return [self.played[number] for number in range(count)]

    def take(self) -> tuple[int, int, Any]:
        """Return the step, the number and the policy of an episode to play; wait until there is one."""
        with self.changed:
            self.changed.wait_for(lambda: self.waiting)
            return self.step, self.waiting.pop(0), self.policy

    def give_back(self, step: int, number: int) -> None:
        """Let another actor play episode `number` of `step`, whose actor has disconnected. Do nothing if the episode
        was delivered already, or the step is not the present one.
        """
        with self.changed:
            if step == self.step and number not in self.played:
                self.waiting.insert(0, number)
                self.changed.notify_all()

    def deliver(self, step: int, number: int, episode: Any) -> None:
        """Keep the played episode `number` of `step`; if it was delivered before, the later one counts.

        An episode of another step, from before a restart, is dropped, as is a number that the step does not have.
        """
        with self.changed:
            if step == self.step and 0 <= number < self.count:
                self.played[number] = episode
                self.changed.notify_all()


def serve(episodes: Episodes, address: str) -> http.server.ThreadingHTTPServer:
    """Start a thread that answers requests of actors at `address`, written HOST:PORT; return its server.

    Each POST contains the episode that was played, or null. The answer, which waits until there is one to play, has the
    number of the next one, its step, and the policy.
    """
    host, _, port = address.rpartition(":")

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"  # one connection for each actor: when it is closed, the actor has gone
        disable_nagle_algorithm = True
        held: tuple[int, int] | None = None

        def do_POST(self) -> None:
            done = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            if done is not None:
                episodes.deliver(done["step"], done["number"], done["episode"])
            step, number, policy = episodes.take()
            self.held = step, number
            answer = json.dumps({"step": step, "number": number, "policy": policy}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def handle(self) -> None:
            with contextlib.suppress(ConnectionError):  # it has gone: that is no news
                super().handle()

        def finish(self) -> None:
            super().finish()
            if self.held is not None:
                episodes.give_back(*self.held)

        def log_message(self, *_: object) -> None:
            """Log nothing about requests."""

    server = http.server.ThreadingHTTPServer((host, int(port)), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server
