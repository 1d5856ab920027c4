"""A sweep of the small ResNet whose ranks and conductor are killed at random until it is over, wherever its runs go."""

import json
import random
import time

from lab import all_pids, environment, kill, read

from launcher.run.processes import TAG

TRIALS, STEPS = 2, 30  # both trials at once
MOST_S = 240.0
KILLS = 1  # at least, of either kind; until then a step takes two seconds
SPEC = """
name: resnet
run: {{script: small_resnet.py, args: {{steps: {steps}, lr: 0.05, brake: {brake}}}}}
resources: {{nodes: 1, ranks_per_node: 2, gpus_per_node: 0, cpus_per_rank: 1}}
checkpoint: {{every: 5 steps}}
sweep:
  search: random
  seed: 7
  trials: {trials}
  parallel: 2
  metric: loss
  mode: min
  space:
    run.args.lr: {{from: 0.01, to: 0.1}}
"""


def spec_of(desk):
    desk.script("small_resnet.py")
    return desk.spec(SPEC.format(steps=STEPS, brake=json.dumps(str(desk.brake)), trials=TRIALS), "sweep.yaml")


def undisturbed(desk):
    """The values of its trials on this machine."""
    desk.launch("sweep", spec_of(desk), "--follow", timeout=MOST_S)
    return values(sweep_status(desk, "last"))


def sweep_status(desk, sweep):
    """Return the status that `launch sweep status --json` shows for the sweep."""
    return json.loads(desk.launch("sweep", "status", sweep, "--json").stdout)["status"]


def values(status):
    return [(one["number"], one["state"], one["value"]) for one in status["trials"]]


def conductor(desk, sweep):
    path = desk.project / ".launch/runs/.sweeps" / sweep / "conductor.json"
    return [json.loads(path.read_text())["pid"]] if path.exists() else []


def ranks(desk, status):
    """Their pids as this machine has them, on whichever node they are: a node may have pids of its own."""
    runs = [one["run"] for one in status["trials"] if one["state"] == "running" and one["run"]]
    found = {
        (run, rank["pid"])
        for run in runs
        if there(desk, run)
        for rank in desk.status(run)["ranks"]
        if rank["state"] == "running"
    }
    return [pid for pid in all_pids() for run, inside in found if inside == pid_inside(pid) and is_of(pid, run)]


def pid_inside(pid):
    """Return a process's id inside its node."""
    line = next((line for line in read(pid, "status").splitlines() if line.startswith(b"NSpid:")), b"NSpid: 0")
    return int(line.split()[-1])


def is_of(pid, run):
    return any(word.startswith(f"{TAG}=".encode()) and word.endswith(run.encode()) for word in environment(pid))


def there(desk, run):
    return (desk.project / ".launch/runs" / run).is_dir()


def struck_until_over(desk, seed, *words):
    """The sweep, its status at its end, and how often a kill of either kind has hit."""
    dice, hits = random.Random(seed), {"rank": 0, "conductor": 0}
    spec = spec_of(desk)
    desk.brake.touch()
    sweep = desk.launch("sweep", spec, *words).stdout.strip()
    until = time.monotonic() + MOST_S
    while (status := sweep_status(desk, sweep))["state"] in ("running", "lost"):
        assert time.monotonic() < until, (status, hits)
        if status["state"] == "lost":
            desk.launch("sweep", "resume", sweep)
        elif min(hits.values()) < KILLS:
            what = dice.choice([what for what, count in hits.items() if count < KILLS])
            pids = conductor(desk, sweep) if what == "conductor" else ranks(desk, status)
            hits[what] += bool(pids) and kill(dice.choice(pids))
            time.sleep(dice.uniform(0, 2))
        else:
            desk.brake.unlink(missing_ok=True)
            time.sleep(0.2)
    return sweep, status, hits


def check(desk, sweep, status, hits, expected):
    """Check that no trial is lost or doubled, and that each has the result of an undisturbed sweep."""
    assert status["state"] == "succeeded", status
    assert values(status) == expected, (values(status), expected)
    runs = sorted(path.name for path in (desk.project / ".launch/runs").glob(f"{sweep}-*"))
    assert runs == [f"{sweep}-t{number:04d}" for number in range(TRIALS)]
    assert [one["run"] for one in status["trials"]] == runs
    restarts = [desk.status(run)["restarts"]["total"] for run in runs]
    assert sum(restarts) > 0, (restarts, hits)
