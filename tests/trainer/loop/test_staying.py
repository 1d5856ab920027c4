"""A rank is killed and replaced while the others stay: the numbers and the weights are those of a run left alone."""

import pytest
from replaced_ranks import Launched

from trainer.checkpoint_files import catalog
from trainer.loop import staying

STEPS = 24


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """Fingerprint and numbers by number of ranks, of a training that nothing happened to."""
    known = {}

    def of(size):
        if size not in known:
            run = Launched(tmp_path_factory.mktemp("alone") / "run", size, "--steps", str(STEPS))
            assert run.run() == [0] * size, run.said()
            known[size] = run.fingerprint(), run.numbers()
        return known[size]

    return of


def killed(folder, size, *deaths, words=(), **how):
    """Each death is a rank, a step and a place, at which it kills itself."""
    for number, death in enumerate(deaths):
        (folder / f"die-{number}").write_text(death)
    run = Launched(folder / "run", size, "--steps", str(STEPS), "--die", str(folder / "die"), *words, **how)
    codes = run.run()
    assert not list(folder.glob("die-*")), f"not all faults fired: {run.said()}"
    return run, codes


@pytest.mark.dealt(8)
@pytest.mark.parametrize("victim", [0, 1])
@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize(
    ("step", "place"),
    [
        (0, "forward"), (0, "backward"), (7, "forward"), (8, "backward"), (8, "on_step"), (9, "on_step"),
        (10, "on_step"), (10, "forward"), (10, "backward"), (15, "on_validation"), (15, "forward"), (23, "backward"),
    ],
)  # fmt: skip
def test_whatever_a_rank_was_at(tmp_path, alone, victim, size, step, place):
    fingerprint, wanted = alone(size)
    run, codes = killed(tmp_path, size, f"{victim} {step} {place}")
    assert codes == [0] * size, run.said()
    assert run.replaced == [[victim]]
    assert run.numbers() == wanted
    assert run.fingerprint() == fingerprint
    for entry in catalog.entries(run.folder / "checkpoints"):
        catalog.verify(entry)


@pytest.mark.dealt(2)
@pytest.mark.parametrize(
    "deaths",
    [
        ("0 3 backward", "1 6 backward", "0 9 forward"),
        ("1 4 on_step", "2 8 backward", "0 12 on_step", "1 20 on_validation"),
    ],
)
def test_one_after_the_other(tmp_path, alone, deaths):
    fingerprint, wanted = alone(3)
    run, codes = killed(tmp_path, 3, *deaths)
    assert codes == [0] * 3, run.said()
    assert run.replaced == [[int(death[0])] for death in deaths]
    assert (run.fingerprint(), run.numbers()) == (fingerprint, wanted)


@pytest.mark.dealt(2)
@pytest.mark.parametrize(
    ("deaths", "replaced"),
    [
        pytest.param(("1 8 backward", "1 0 start"), [[1], [1]], id="the new one at once"),
        pytest.param(("1 8 backward", "1 0 load"), [[1], [1]], id="the new one that has half of it"),
        pytest.param(("1 8 backward", "0 8 load"), [[1], [0, 1]], id="who gives it"),
        pytest.param(("0 8 on_step", "2 8 load"), [[0], [0, 2]], id="who stays, after the first rank"),
    ],
)
def test_one_more_while_they_meet(tmp_path, alone, deaths, replaced):
    fingerprint, wanted = alone(3)
    run, codes = killed(tmp_path, 3, *deaths)
    assert codes == [0] * 3, run.said()
    assert run.replaced == replaced
    assert (run.fingerprint(), run.numbers()) == (fingerprint, wanted)


def test_two_at_once(tmp_path, alone):
    fingerprint, wanted = alone(3)
    run, codes = killed(tmp_path, 3, "0 8 backward", "2 8 backward")
    assert codes == [0] * 3, run.said()
    assert {rank for dead in run.replaced for rank in dead} == {0, 2}
    assert (run.fingerprint(), run.numbers()) == (fingerprint, wanted)


def test_a_model_without_buffers(tmp_path):
    calm = Launched(tmp_path / "calm", 2, "--steps", str(STEPS), "--no-buffers")
    assert calm.run() == [0, 0], calm.said()
    (tmp_path / "hit").mkdir()
    run, codes = killed(tmp_path / "hit", 2, "1 8 backward", words=["--no-buffers"])
    assert codes == [0, 0], run.said()
    assert (run.fingerprint(), run.numbers()) == (calm.fingerprint(), calm.numbers())


def test_without_launchs_word_a_rank_fails_as_ever(tmp_path, monkeypatch):
    monkeypatch.setattr(staying, "_WORD_S", 0.1)
    run, codes = killed(tmp_path, 2, "1 5 backward", replaces=False)
    assert codes == [1, -9]
    assert "gloo" in run.said()


@pytest.mark.parametrize("sabotage", ["draw_on", "put_bytes", "losses"])
def test_what_is_not_put_back_shows(tmp_path, alone, monkeypatch, sabotage):
    """Generators, buffers, what was logged of a step: without any of them the numbers differ."""
    if sabotage == "losses":
        monkeypatch.setattr(staying.Stay, "_put_back_losses", lambda *_: None)
    else:
        monkeypatch.setattr(staying, sabotage, lambda *_: None)
    fingerprint, wanted = alone(2)
    run, codes = killed(tmp_path, 2, "0 8 on_step")
    assert codes != [0, 0] or (run.fingerprint(), run.numbers()) != (fingerprint, wanted)
