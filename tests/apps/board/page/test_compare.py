"""Runs over one another in a real browser: live, and with arguments and results that are no numbers."""

import pytest
from browser import needs_browser

from launcher.run.records import NotFinite
from tests.apps.board.page.conftest import EVIL, measure, started_with

pytestmark = [needs_browser, pytest.mark.nightly]
RUNS = ["lr1-aaaa", "lr2-bbbb", "vit-cccc", "new-dddd"]
ROWS = "[...document.querySelectorAll('section[aria-label=\"results and arguments\"] tbody tr')]"
PLACE = "one => ['d', 'cx', 'cy'].map(name => one.getAttribute(name)).join()"


@pytest.fixture
def compared(house, page):
    """Open a comparison of two running runs, one that ended with NaN, and one without values."""
    first, second, third, fourth = (house.run(name) for name in RUNS)
    started_with(first.running(metrics={"loss": 0.5}), "--lr", "0.1", "--opt", "sgd")
    started_with(second.running(metrics={"loss": 0.25}), "--lr", "1e-3", "--opt", EVIL)
    odd = {"loss": NotFinite("NaN", 17)}
    started_with(third.succeeded(metrics={}, not_finite=odd), "--lr", "0", "--opt", "nan")
    started_with(fourth.running(), "--lr", "3")
    measure(first, {1: {"loss": 0.75}, 2: {"loss": 0.5}})
    measure(second, {1: {"loss": 0.5}, 2: {"loss": 0.25}})
    measure(third, {1: {"loss": "nan"}, 2: {"loss": "nan"}})
    page.until_text("new-dddd")
    page.run("location.hash = arguments[0]", f"#/compare/{','.join(RUNS)}")
    page.until(f"return {ROWS}.length === 4")
    return first, page


def row(page, run, text):
    found = f"{ROWS}.find(one => one.textContent.includes(arguments[0]))"
    page.until(f"return {found}?.innerText.includes(arguments[1])", run, text)


def test_values_go_on_while_runs_train(compared):
    run, page = compared
    row(page, "lr1-aaaa", "0.5")
    row(page, "vit-cccc", "NaN")
    measure(run, {3: {"loss": 0.0625}})
    run.running(step=3, metrics={"loss": 0.0625})
    row(page, "lr1-aaaa", "0.0625")
    run.succeeded(step=3, metrics={"loss": 0.0625})
    row(page, "lr1-aaaa", "succeeded")


SAMPLES = "[...document.querySelectorAll('.line-sample')].map(one => getComputedStyle(one).borderTopColor).slice(0, 2)"


def test_the_samples_beside_names_have_the_colours_of_the_theme_that_is_turned_to(compared):
    _, page = compared
    page.look(1280, 900, "light")
    for colours in ("rgb(0, 114, 178) rgb(213, 94, 0)", "rgb(86, 180, 233) rgb(255, 138, 61)"):
        page.until(f"return {SAMPLES}.join(' ') === arguments[0]", colours)
        page.press("t")
    page.run("localStorage.clear()")


def test_a_metric_that_is_new_gets_its_curve(compared):
    run, page = compared
    measure(run, {3: {"acc": 0.5}})
    run.running(step=3, metrics={"loss": 0.5, "acc": 0.5})
    page.until("return [...document.querySelectorAll('.chart h3')].map(one => one.textContent).includes('acc')")
    row(page, "lr1-aaaa", "0.5")


def test_each_run_has_its_place_in_every_drawing(compared):
    _, page = compared
    for buttons in ([], ["log arguments"], ["log result"]):
        for one in buttons:
            page.click(one)
        page.until("return document.querySelectorAll('.thread').length === 4")
        assert page.run("return document.querySelectorAll('.point').length") == 4
        places = page.run("return [...document.querySelectorAll('.thread, .point')].map(" + PLACE + ")")
        assert not any(word in place for place in places for word in ("NaN", "undefined", "Infinity"))
    ticks = page.run("return [...document.querySelectorAll('.axis-tick')].map(one => one.textContent)")
    assert {"none", "NaN", "0.001"} <= {word for tick in ticks for word in tick.split(", ")}
    assert page.run("return document.title.includes('evil')") is False


def test_a_run_can_be_hidden_and_is_shown_under_the_pointer(compared):
    _, page = compared
    page.until("return document.querySelector('.charts .plot')?.getAttribute('aria-label')?.includes('3 runs')")
    page.run(f"{ROWS}[0].querySelector('input').click()")
    page.until("return document.querySelector('.charts .plot').getAttribute('aria-label').includes('2 runs')")
    page.run("document.querySelector('.thread').dispatchEvent(new PointerEvent('pointerenter'))")
    page.until(f"return {ROWS}[0].classList.contains('seen')")


def test_a_link_leaves_out_the_curves_that_are_left_out(compared):
    _, page = compared
    label = "document.querySelector('.charts .plot')?.getAttribute('aria-label')"
    page.until(f"return {label}?.includes('3 runs')")
    page.run(f"{ROWS}[0].querySelector('input').click()")
    page.until("return location.hash.includes('hidden=')")
    page.reload()
    page.until(f"return {label}?.includes('2 runs')")
    assert not page.run(f"return {ROWS}[0].querySelector('input').checked")
    page.run(f"{ROWS}[0].querySelector('input').click()")
    page.until(f"return {label}.includes('3 runs') && !location.hash.includes('hidden=')")
