"""From lines of metrics to speed-ups, what was lost on the way, and the sentences that say so."""

import msgspec
import pytest

from launcher.apps.scaling.accounts import accounted, advice, unsteady
from launcher.apps.scaling.findings import KINDS, ScaledRun, StepParts
from launcher.apps.scaling.measured import measured, parts_of, ratios, spread


def row(*, rate, at, **traced):
    shown = {f"traced/{name}": value for name, value in traced.items()}
    return {"samples_per_s": rate, "elapsed_s": at, "memory_gb": 0.5, **shown}


def rows(step_s, batch=32):
    found = {step: row(rate=batch / step_s, at=step * step_s) for step in range(5, 36, 5)}
    found[5] = row(rate=1.0, at=5 * step_s)  # warming up
    parts = {"data": 0.1, "compute": 1.4, "optimizer": 0.1, "communication": 0.3, "straggler": 0.1, "other": 0.0}
    found[40] = row(rate=2.0, at=99.0, step=2.0, hidden=0.2, bytes=11e6, messages=3.0, **parts)
    return found


def test_warming_up_and_traced_steps_do_not_count():
    found = measured([rows(0.5)], 5, 35)
    assert found.rates == (64.0,) * 6
    assert len(measured([rows(0.5)], 15, 35).rates) == 4, "some lines of warming up"
    assert found.steps_s == pytest.approx((0.5,) * 6)
    assert found.memory_gb == 0.5
    parts = parts_of(found)
    assert parts is not None
    assert parts.compute == pytest.approx(0.35), "the share of the slower, traced step of the usual one"
    assert sum(getattr(parts, kind) for kind in KINDS) == pytest.approx(0.5)
    assert (parts.bytes, parts.messages) == (11e6, 3)


def test_runs_of_several_rounds_are_taken_together():
    found = measured([rows(0.5), rows(0.25)], 5, 35)
    assert sorted(found.rates) == [64.0] * 6 + [128.0] * 6
    assert len(found.shares) == 2


def test_without_a_trace_nothing_is_said_of_parts():
    plain = {step: line for step, line in rows(0.5).items() if step < 40}
    assert parts_of(measured([plain], 5, 35)) is None
    assert measured([{}], 5, 35).rates == ()


def test_spreads():
    assert msgspec.structs.astuple(spread([3, 1, 2])) == (2, 1, 3)
    assert msgspec.structs.astuple(ratios([2.0, 4.0], [1.0, 2.0])) == (2.0, 1.0, 4.0)
    assert ratios([2.0] * 9 + [50.0], [1.0]).high == 2.0, "an outlier"


def point(ranks, rate, scaling="strong", batch=32, **parts):
    step = batch / rate
    rest = step - sum(parts.values())
    some = {kind: parts.get(kind, 0.0) for kind in KINDS} | {"compute": rest}
    return ScaledRun(
        "ddp", scaling, ranks, rates=(rate,) * 5, samples_per_s=spread([rate]), step_samples=batch, step_s=step,
        parts=StepParts(**some, hidden=0.0, bytes=11e6, messages=3.0),
    )  # fmt: skip


def test_what_was_lost_is_what_the_efficiency_lacks():
    one = point(1, 32.0, optimizer=0.1)
    two = point(2, 51.2, optimizer=0.1, communication=0.0875, straggler=0.0125)
    _, found = accounted([one, two])
    assert found.efficiency == pytest.approx(0.8)
    assert sum(found.lost.values()) == pytest.approx(1 - 0.8)
    assert found.lost["communication"] == pytest.approx(0.14)
    assert found.lost["optimizer"] == pytest.approx(0.08), "each rank does all of it"
    assert found.lost["compute"] == pytest.approx(-0.04)
    assert found.says == (
        "2 ranks are 1.60 times as fast as one (1.60 to 1.60): 14% is communication in the open (11 MB in 3 messages a "
        "step), 8% is the optimizer, of which each rank does more than its part, 2% is waiting for the slower rank, "
        "4% is won back by parts that got quicker"
    )


def test_in_weak_scaling_the_same_step_is_even():
    one, two = point(1, 32.0, "weak"), point(2, 51.2, "weak", batch=64, communication=0.25)
    _, found = accounted([one, two])
    assert found.efficiency == pytest.approx(0.8)
    assert found.lost["communication"] == pytest.approx(0.2)
    assert sum(found.lost.values()) == pytest.approx(0.2)
    assert "with as many times the batch" in found.says


def test_each_strategy_and_scaling_has_its_own_base():
    others = [msgspec.structs.replace(point(ranks, rate), strategy="fsdp") for ranks, rate in ((2, 10.0), (4, 15.0))]
    found = accounted([point(1, 32.0), point(2, 64.0), *others])
    assert [one.base for one in found] == [None, 1, None, 2]
    assert found[3].speedup is not None and found[3].speedup.usual == 1.5
    assert found[3].efficiency == 0.75
    assert found[3].says.startswith("4 ranks are 1.50 times as fast as 2 ")


def test_who_could_not_be_measured_says_why_and_is_no_base():
    failed = ScaledRun("ddp", "strong", 1, why="out of memory")
    found = accounted([failed, point(2, 32.0), point(4, 48.0)])
    assert found[0].says == "1 rank: out of memory"
    assert [one.base for one in found] == [None, None, 2]


def test_what_would_help_first_is_what_costs_most():
    one, two = point(1, 32.0), point(2, 51.2, communication=0.125)
    [told] = advice(accounted([one, two]))
    assert told.startswith("ddp, strong, 2 ranks: 20% of a step is communication in the open; without it 2.00 times")
    assert "accumulate" in told
    crowded = msgspec.structs.replace(point(2, 40.0), crowded="2 ranks on 1 core")
    [told] = advice(accounted([one, crowded]))
    assert "a core, or more, for each rank" in told
    assert advice(accounted([one, point(2, 64.0)])) == [], "nothing is lost"


def test_rates_that_vary_are_told_of():
    shaky = msgspec.structs.replace(point(2, 40.0), samples_per_s=spread([30.0, 40.0, 50.0]))
    [told] = unsteady([point(1, 32.0), shaky])
    assert told.startswith("unsure: something else uses the machine")
    assert told.endswith(": ddp, strong, 2 ranks (30 to 50)")
    assert unsteady([point(1, 32.0)]) == []
