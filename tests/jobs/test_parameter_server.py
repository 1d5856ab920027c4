"""The job of a parameter server: its update, what workers send, and kills of all of them; and the same by DDP."""

import http.client
import json
import pickle
import random
import re
from pathlib import Path

import pytest
import torch
from lab import kill

from jobs.parameter_server.master import pack, serve, unpack, update
from jobs.parameter_server.mlp import draw, new_mlp
from launcher.node.ranks.ports import HeldPort
from tests.sizes import SCALE, SEED

SPEC = "jobs/parameter_server.yaml"


def weights(net):
    return torch.cat([parameter.detach().flatten() for parameter in net.parameters()])


def gradient_of(net, step):
    samples, classes = draw(1, 0, step, 8)
    loss = torch.nn.functional.cross_entropy(net(samples), classes)
    return torch.cat([one.flatten() for one in torch.autograd.grad(loss, list(net.parameters()))])


def test_an_update_is_a_step_of_the_optimizer_by_the_gradient_that_was_pushed():
    net = new_mlp(1)
    before, gradient = weights(net), gradient_of(net, 0)
    update(net, torch.optim.SGD(net.parameters(), lr=0.5), unpack(pack({"gradient": gradient}))["gradient"])
    assert torch.equal(weights(net), before - 0.5 * gradient)


def test_samples_follow_from_seed_rank_and_step():
    one, classes = draw(1, 2, 3, 4)
    again, _ = draw(1, 2, 3, 4)
    assert torch.equal(one, again)
    assert classes.shape == (4,)
    assert not any(torch.equal(one, draw(*words, 4)[0]) for words in ((2, 2, 3), (1, 3, 3), (1, 2, 4)))


def test_what_a_worker_sends_executes_nothing(tmp_path):
    class Bad:
        def __reduce__(self):
            return (Path.touch, (tmp_path / "done",))

    with pytest.raises(pickle.UnpicklingError):
        unpack(pack({"gradient": Bad()}))
    assert not (tmp_path / "done").exists()


def test_each_worker_gets_the_answer_to_what_it_pushed():
    port = HeldPort("127.0.0.1")
    pushed = serve(f"127.0.0.1:{port.number}")
    workers = [http.client.HTTPConnection("127.0.0.1", port.number, timeout=30) for _ in range(2)]
    for number, worker in enumerate(workers):
        worker.request("POST", "/", pack({"number": number}) if number else b"")
    for push, answer in (pushed.get(timeout=30), pushed.get(timeout=30)):
        answer.put({"for": push and push["number"]})
    assert [unpack(worker.getresponse().read())["for"] for worker in workers] == [None, 1]
    for worker in workers:
        worker.close()
    port.release()


# -- the whole job


def newest_pid(folder):
    paths = sorted(folder.glob("attempts/*/node-00/rank-000.json"))
    return json.loads(paths[-1].read_text())["process"]["pid"] if paths else None


@pytest.mark.nightly
@pytest.mark.timeout(900)
def test_whatever_is_killed_it_makes_all_its_updates_and_learns(checkout):
    chance, kills = random.Random(SEED), 4 * SCALE
    steps = 300 * kills + 2_000  # so many after the last kill that it comes before the end
    words = [f"roles.{role}.recovery.killed=unlimited" for role in ("master", "workers")]
    words += [f"roles.master.run.args.steps={steps}", "roles.master.checkpoint.every=100 steps"]
    run = checkout.submit(SPEC, *(word for one in words for word in ("--set", one)))
    folder = checkout.run_dir(run)
    for number in range(kills):
        checkout.until_step(run, 300 * number + chance.randrange(1, 200))
        struck = chance.choice([folder, folder / "roles/workers-0", folder / "roles/workers-1"])
        checkout.until("a kill", lambda struck=struck: (pid := newest_pid(struck)) and kill(pid))
    status = checkout.wait(run, timeout=600)
    assert (status["state"], status["step"], status["checkpoint"]) == ("succeeded", steps, steps)
    assert float(re.findall(r"accuracy (\S+)", checkout.rank_logs(run))[-1]) > 0.5


@pytest.mark.nightly
def test_the_same_training_by_ddp_learns_too(checkout):
    words = ("--nproc-per-node", "2", "-m", "jobs.parameter_server.ddp", "--steps", "400")
    said = checkout.launch("run", *words, timeout=300).stdout
    assert re.search(r"step 400/400  loss \S+  lr 0.05  \d+ samples/s", said)
    assert float(re.search(r"accuracy (\S+)", said)[1]) > 0.5
