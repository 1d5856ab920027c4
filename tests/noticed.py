"""A training on two nodes whose hosts may be about to go, and what it lost by that: with each place's own hosts."""

import json
from collections import Counter
from itertools import pairwise

GOES = """#!/bin/sh
test -e "$1/goes-$LAUNCH_NODE"
"""


def told_by_command(desk):
    """Return the `notice` of a spec whose command looks for a file of `goes`."""
    (desk.project / "goes.sh").write_text(GOES)
    (desk.project / "goes.sh").chmod(0o755)
    return f"notice: {{command: [./goes.sh, {json.dumps(str(desk.project.parent))}], lead: 60s}}\n"


def goes(desk, node):
    """Return the file that tells that the host of this node goes."""
    return desk.project.parent / f"goes-{node}"


class NoticedRun:
    """A run of in_place.py that writes down each update of each rank; slow as long as the file `brake` is there."""

    def __init__(self, desk, state, more, *, notices=1, mode="hot", spares=0):
        self._desk, self._state = desk, state
        self._steps = min(560, 60 + 80 * notices)  # in_place.py has data for no more
        for name in ("in_place.py", "audited.py"):
            desk.script(name)
        desk.brake.touch()
        self._audit = desk.project.parent / "audit"
        args = {"steps": self._steps, "pause": max(0.2, 0.04 * notices), "slow": str(desk.brake)}
        self.alone = self._spec(args, "alone.yaml", f"recovery: {{mode: {mode}}}\n")
        recovery = f"recovery: {{mode: {mode}, spares: {spares}}}\n"
        self.spec = self._spec({**args, "audit": str(self._audit)}, "job.yaml", f"{recovery}{more}")

    def _spec(self, args, name, more):
        body = f"name: noticed\nrun: {{script: in_place.py, args: {json.dumps(args)}}}\n"
        resources = "resources: {ranks_per_node: 1, nodes: 2, gpus_per_node: 0, cpus_per_rank: 1}\n"
        return self._desk.spec(f"{body}{resources}checkpoint: {{every: 100000 steps}}\n{more}", name)

    def trains_on(self, *nodes, after):
        """Wait for steps of a generation after this one with ranks on these nodes; return that state."""

        def trains():
            state = self._state()
            there = {rank["node"] for rank in state.get("ranks", ())} == {*nodes}
            right = there and state["state"] == "running" and state["generation"] > after
            return state if right and (state["step"] or 0) > self._last_before(state["generation"]) else None

        return self._desk.until(f"steps on nodes {nodes} after generation {after}", trains)

    def _last_before(self, generation):
        return max([line["step"] for line in self._updates() if line["generation"] < generation], default=0)

    def waits_without(self, node):
        """Wait until all ranks have left that node and none has begun elsewhere."""

        def waits():
            state = self._state()
            return state["state"] == "regrouping" and state["nodes"][node]["state"] == "drained" and state

        state = self._desk.until(f"all to wait without node {node}", waits)
        assert state["checkpoint"] == self._last_before(state["generation"] + 1), "the last step is saved"

    def moves_at_each_notice(self, notices, goes):
        """Have node 1 and the spare, node 2, go by turns: `goes(node)` is the file that tells of it."""
        generation, leaves, comes = self.trains_on(0, 1, after=0)["generation"], 1, 2
        for _ in range(notices):
            self._desk.until("a spare", lambda node=comes: self._state()["nodes"][node]["state"] == "spare")
            goes(leaves).touch()
            generation = self.trains_on(0, comes, after=generation)["generation"]
            goes(leaves).unlink()
            leaves, comes = comes, leaves

    def waits_at_each_notice(self, notices, goes):
        """Have node 1 go, and stay once all ranks have left it, so many times."""
        generation = self.trains_on(0, 1, after=0)["generation"]
        for _ in range(notices):
            goes(1).touch()
            self.waits_without(1)
            goes(1).unlink()
            generation = self.trains_on(0, 1, after=generation)["generation"]

    def _updates(self):
        if not self._audit.exists():
            return []
        lines = self._audit.read_text().rpartition("\n")[0].splitlines()
        return [line for line in map(json.loads, lines) if line["what"] == "step"]

    def steps_of(self, rank):
        """Return the steps of a rank in the order in which it made them."""
        return [line["step"] for line in self._updates() if line["rank"] == rank]

    def none_is_lost(self, status, again=0):
        """Check that each rank made each step, at most `again` of them twice, with an undisturbed run's weights.

        Rank 1, which moves, may leave at most `again` times between rank 0's update and its own: its successor then
        takes the state after that step.
        """
        for rank in (0, 1):
            steps = self.steps_of(rank)
            missing = [after - before - 1 for before, after in pairwise(steps) if after > before + 1]
            assert missing == [1] * len(missing) and len(missing) <= rank * again, steps
            assert all(after >= before for before, after in pairwise(steps)), steps
            assert (steps[0], steps[-1]) == (1, self._steps)
            assert sum(times - 1 for times in Counter(steps).values()) <= again
        assert (status["attempt"], status["restarts"]["total"], status["step"]) == (1, 0, self._steps)
        assert status["fingerprint"] == self._desk.wait(self._desk.submit(self.alone))["fingerprint"]
