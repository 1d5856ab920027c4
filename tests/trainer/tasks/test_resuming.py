"""The shipped tasks, killed on the way and started again, end with the bytes of a run that was left alone."""

import random
import signal
import time
from functools import partial

import pytest
from holding import hold_saves
from ranks import Ranks

from tests.sizes import SEED, one_in
from trainer.checkpoint.fingerprint import fingerprint
from trainer.checkpoint_files import catalog
from trainer.tasks import gpt, resnet

pytestmark = pytest.mark.nightly

ALWAYS = ["--max-steps", "40", "--batch-size", "8", "--checkpoint-every", "4 steps", "--log-every", "1"]
NET = ["--model", "shufflenet_v2_x0_5", "--pixels", "16", "--train-images", "70", "--validation-images", "20"]
TEXT = ["--layers", "2", "--width", "32", "--context", "32", "--dropout", "0.2", "--accumulate", "2"]
TASKS = {
    "resnet ddp": (resnet.main, [*NET, "--strategy", "ddp"]),
    "resnet workers": (resnet.main, [*NET, "--strategy", "ddp", "--workers", "1"]),
    "gpt fsdp": (gpt.main, [*TEXT, "--strategy", "fsdp", "--warmup-steps", "5"]),
}


@pytest.fixture(scope="module", params=one_in(3, list(TASKS)))
def task(request, tmp_path_factory):
    """Return the command to run, and the fingerprint of its undisturbed end."""
    main, args = TASKS[request.param]
    folder = tmp_path_factory.mktemp("alone")
    if main is gpt.main:
        (folder / "text").write_bytes(b"".join(b"%d and " % number for number in range(6000)))
        args = [*args, "--text", str(folder / "text")]
    assert started(main, args, folder).results(limit_s=200) == [0, 0]
    return main, args, end_of(folder)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("sig", [signal.SIGKILL, signal.SIGTERM], ids=["killed", "stopped"])
def test_it_ends_alike(tmp_path, task, sig):
    seed = SEED
    print("seed", seed)
    chance = random.Random(seed)
    main, args, wanted = task
    ranks = started(partial(held, main, (tmp_path / "struck").exists), args, tmp_path)
    until_step(tmp_path / "metrics.jsonl", chance.randint(1, 25))
    ranks.kill(chance.choice([0, 1]), sig)
    (tmp_path / "struck").touch()
    outcomes = ranks.outcomes(limit_s=200)
    if sig == signal.SIGTERM:
        assert outcomes == [("returned", 75)] * 2
    else:
        assert {kind for kind, _ in outcomes} == {"killed", "raised"}
    assert started(main, args, tmp_path).results(limit_s=200) == [0, 0]
    assert end_of(tmp_path) == wanted


def started(main, args, folder):
    where = ["--checkpoint-dir", str(folder / "checkpoints"), "--out", str(folder)]
    return Ranks(main, 2, [*args, *ALWAYS, *where])


def held(main, released, args):
    """Run the job, but hold its saves from step 26 on until `released`."""
    hold_saves(26, released)
    return main(args)


def until_step(path, step):
    limit = time.monotonic() + 100
    while not path.exists() or path.read_bytes().count(b'"step"') < step:
        assert time.monotonic() < limit, "it does not get there"
        time.sleep(0.002)


def end_of(folder):
    newest = catalog.entries(folder / "checkpoints")[-1]
    assert newest.step == 40
    return fingerprint(newest)
