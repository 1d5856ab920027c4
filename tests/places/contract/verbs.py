"""The verbs of a cluster, one a process: python verbs.py VERB CLUSTER [RUN]. Prints what came of it as JSON."""

import json
import sys
from pathlib import Path

from launcher.api import run as find_run
from launcher.places.clusters_file import entry, with_defaults
from launcher.places.kinds import of_kind
from launcher.run.attempts import new_attempt, newest, read_plan
from launcher.run.layout import RunDir
from launcher.spec.read import read_spec


def opened(on, ref):
    run = RunDir(find_run(ref).path)
    return of_kind(entry(on).kind), run, newest(run)


def machine(on):
    place = entry(on)
    spec = Path("job.yaml")
    spec.write_text("name: contract\nrun: {script: train.py}\nresources: {gpus_per_node: 0}\n")
    return of_kind(place.kind).machine(read_spec(spec, with_defaults(place.defaults, spec, []))).cpus


def prepare_and_drop(on, ref):
    place, run, attempt = opened(on, ref)
    place.prepare(read_plan(run, attempt.number)).drop()
    return newest(run).number - attempt.number


def prepare_and_start(on, ref):
    """The attempt that a resume would make, with nobody who looked at the cluster before."""
    place, run, before = opened(on, ref)
    plan = read_plan(run, before.number)
    prepared = place.prepare(plan)
    attempt, _ = new_attempt(run, on, "resume", None, kind=place.kind, after=before.number)
    prepared.start(attempt.number)
    return attempt.number


def intend(on, ref):
    """Do what a submitter does that is killed between the intent and the order to go."""
    place, run, before = opened(on, ref)
    return new_attempt(run, on, "resume", None, kind=place.kind, after=before.number)[0].number


def look(on, ref):
    place, run, attempt = opened(on, ref)
    [word] = place.look([(run, attempt)])
    return None if word is None else word.phase


def mend(on, ref):
    place, run, attempt = opened(on, ref)
    place.mend([(run, attempt)])
    return True


def cancel(on, ref):
    place, run, attempt = opened(on, ref)
    report = place.cancel(run, attempt, read_plan(run, attempt.number))
    return {"ended": report.ended, "already": report.already}


if __name__ == "__main__":
    verb, *words = sys.argv[1:]
    print(json.dumps(globals()[verb](*words)))
