"""The network between simulated machines: connections as `launcher/wire` gives them, without sockets.

What is sent while its way is cut arrives once that is whole again, as TCP would have it; a lost connection stands
still. A process that is killed closes its connections; a machine without power says nothing.
"""

import asyncio

import msgspec

from launcher.wire.frames import WireError, parsed

HANDSHAKE_S = 5.0


class Network:
    def __init__(self, world, chance):
        self._world, self._chance = world, chance
        self.cut: set[tuple[int, int]] = set()  # ways from one host to another
        self.lost = self.slow = 0.0  # of connections, and of messages
        self.late: dict[tuple[int, int], float] = {}  # ways on which each message takes so much longer
        self._waiting: dict[tuple[int, int], list] = {}
        self._listeners: dict[tuple[str, int], Server] = {}

    def listen(self, server, address, port):
        port = port or 1024 + server.process.pid % 60_000
        if (address, port) in self._listeners:
            raise OSError(f"{address}:{port} is in use")
        self._listeners[address, port] = server
        return port

    def close_all(self, process):
        self._listeners = {place: one for place, one in self._listeners.items() if one.process is not process}
        for end in list(process.ends):
            end.close(by_kernel=process.host.up)
        process.ends.clear()

    def carry(self, source, target, deliver):
        """Have this done at the other host, after a while and when the way is open."""
        way = (source.number, target.number)
        delay_s = self._chance.uniform(0.0002, 0.004) + self.late.get(way, 0.0)
        if way[0] != way[1] and self.slow and self._chance.random() < self.slow:
            delay_s += self._chance.uniform(0.0, 2.5)

        def arrive():
            if way in self.cut:
                self._waiting.setdefault(way, []).append(deliver)
            else:
                deliver()

        self._world.at(self._world.now + delay_s, None, arrive)

    def heal(self, ways):
        """Open these ways; what has waited for that arrives now, in its order."""
        self.cut -= set(ways)
        for way in sorted(ways):
            for deliver in self._waiting.pop(way, []):
                self._world.at(self._world.now + 0.001, None, deliver)

    def server_at(self, address, port):
        return self._listeners.get((address, port))

    def loses(self):
        return self.lost > 0 and self._chance.random() < self.lost


class Server:
    """As much of `WireServer` as its users need."""

    def __init__(self, key, decoder, serve, most_peers, line_bytes=0, process=None, world=None):
        self.process = process or world.process
        self.key, self.decoder, self._serve = key, decoder, serve
        self.lossy = False

    async def start(self, address, port=0):
        return self.process.world.net.listen(self, address, port)

    async def close(self):
        self.process.world.net.close_all(self.process)

    async def attend(self, wire):
        try:
            await self._serve(wire)
        except (WireError, OSError, TimeoutError):
            wire.abort()
        finally:
            wire.close()


class Wire:
    """One end of a connection: as much of `Wire` as its users need."""

    def __init__(self, process, decoder, address):
        self.process, self._decoder, self.address = process, decoder, address
        self.other: Wire | None = None
        self._came: list[bytes | None] = []
        self._last_at = 0.0
        self._sent, self._open, self._waits = 0, True, None
        self._expected, self._early = 0, {}
        self.stands_still = False
        process.ends[self] = None

    def send(self, message):
        if self._open:
            self._pass_on(msgspec.json.encode(message))

    async def deliver(self, message):
        self.send(message)

    async def receive(self):
        while not self._came:
            self._waits = self.process.loop.create_future()
            await self._waits
        line = self._came.pop(0)
        if line is None:
            self._came.append(None)
            return None
        return parsed(line, self._decoder)

    async def attend(self, handle):
        while (message := await self.receive()) is not None:
            handle(message)

    def close(self, *, by_kernel=True):
        if self._open:
            self._open = False
            self.process.ends.pop(self, None)
            if by_kernel:
                self._pass_on(None)

    abort = close

    def complain(self, error):
        pass

    def _pass_on(self, line):
        other, place = self.other, self._sent
        self._sent += 1
        if self.stands_still and line is not None:
            return
        self.process.world.net.carry(self.process.host, other.process.host, lambda: other._take(place, line, self))

    def _take(self, place, line, sender):
        """Take the line after all that was sent before it."""
        if not self.process.alive:
            host = self.process.host
            if host.up and sender.process.alive:
                self.process.world.net.carry(host, sender.process.host, lambda: sender._came_now(None))
            return
        self._early[place] = line
        while self._expected in self._early:
            self._came_now(self._early.pop(self._expected))
            self._expected += 1

    def _came_now(self, line):
        self._came.append(line)
        if self._waits is not None and not self._waits.done() and self.process.alive:
            self.process.world.at(self.process.world.now, self.process, self._wake)

    def _wake(self):
        if self._waits is not None and not self._waits.done():
            self._waits.set_result(None)


async def dial(world, process, address, port, key, decoder):
    """Connect and prove the key, as `frames.dial` does."""
    net, came = world.net, process.loop.create_future()
    target = world.host_at(address)

    def answer(wire):
        def arrive():
            if process.alive and not came.done():
                world.at(world.now, process, lambda: None if came.done() else came.set_result(wire))

        net.carry(target, process.host, arrive)

    def reach():
        server = net.server_at(address, port)
        if not target.up or not process.alive:
            return
        if server is None:
            answer(None)
            return
        ours, theirs = Wire(process, decoder, address), Wire(server.process, server.decoder, process.host.address)
        ours.other, theirs.other = theirs, ours
        ours.stands_still, theirs.stands_still = server.lossy and net.loses(), server.lossy and net.loses()
        if server.key != key:
            raise AssertionError("a stranger has connected")
        world.at(world.now, server.process, lambda: server.process.loop.create_task(server.attend(theirs)))
        answer(ours)

    net.carry(process.host, target, reach)
    try:
        async with asyncio.timeout(HANDSHAKE_S):
            wire = await came
    except TimeoutError as error:
        raise WireError(f"{address}:{port}: no answer") from error
    if wire is None:
        raise WireError(f"{address}:{port}: refused") from ConnectionRefusedError()
    return wire
