"""The table of all runs in a real browser: found, sorted, chosen, by mouse and by keys."""

import pytest
from browser import again_if_cut_off, needs_browser

from launcher.apps.sweeps.folder import SweepDir, register_sweep
from launcher.health.findings import ok, problem
from launcher.health.last import keep
from launcher.places.local.cluster import LocalCluster
from launcher.places.place import HostNow
from launcher.run.records import Labels
from tests.apps.board.page.conftest import EVIL, look_at, started_with

pytestmark = [needs_browser, pytest.mark.nightly]
SHOWN = "[...document.querySelectorAll('tr[data-key] .named a')].map(one => one.textContent)"
THREE = ["lr1-aaaa", "lr2-bbbb", "vit-cccc"]


@pytest.fixture
def three(house, page):
    """Write three runs, one of which fails and one of which has a hostile note."""
    started_with(house.run("lr1-aaaa").succeeded(step=7, metrics={"loss": 0.5}), "--lr", "9")
    run = house.run("lr2-bbbb").running(step=40, message=EVIL, metrics={"loss": 0.25})
    started_with(run, "--lr", "10")
    run.write(run.run.labels, Labels(tags=("sweep",), note=EVIL))
    started_with(house.run("vit-cccc").failed(step=1000, message="out of luck"), "--lr", EVIL)
    shows(page, *THREE, in_order=False)
    return page


def begin(page):
    page.run("localStorage.clear(); location.hash = '#/runs'")
    page.reload()
    shows(page, *THREE, in_order=False)


def shows(page, *runs, in_order=True):
    found = SHOWN if in_order else f"{SHOWN}.sort()"
    page.until(f"return {found}.join() === arguments[0]", ",".join(runs if in_order else sorted(runs)))


def search(page, words):
    page.run("document.body.focus()")
    page.press("/")
    page.until("return document.activeElement.id === 'search'")
    page.press(*words)


@pytest.mark.daily
@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("state:active", ["lr2-bbbb"]),
        ("name:lr*", ["lr1-aaaa", "lr2-bbbb"]),
        ("-tag:sweep", ["lr1-aaaa", "vit-cccc"]),
        ("luck", ["vit-cccc"]),
        ("<script>", ["lr2-bbbb"]),
        ("name:[", []),
    ],
)
@again_if_cut_off
def test_words_find_runs(three, words, found):
    begin(three)
    search(three, words)
    shows(three, *found, in_order=False)


@again_if_cut_off
def test_a_column_sorts_either_way(three):
    begin(three)
    three.click("step", "th button")
    shows(three, "vit-cccc", "lr2-bbbb", "lr1-aaaa")
    three.until("return document.querySelector('[aria-sort=descending]')?.textContent.includes('step')")
    three.run("[...document.querySelectorAll('th button')].find(one => one.textContent.startsWith('step')).click()")
    shows(three, "lr1-aaaa", "lr2-bbbb", "vit-cccc")


@again_if_cut_off
def test_an_argument_is_a_column_and_its_numbers_sort_as_numbers(three):
    begin(three)
    three.click("columns", "summary")
    three.until("return document.querySelector('.menu label') !== null")
    three.run(
        "[...document.querySelectorAll('.menu label')].find(one => one.textContent === '--lr').firstChild.click()"
    )
    three.click("--lr", "th button")
    shows(three, "vit-cccc", "lr2-bbbb", "lr1-aaaa")
    assert three.run("return document.title.includes('evil')") is False


@again_if_cut_off
def test_all_of_it_goes_by_keys(three):
    begin(three)
    search(three, "lr")
    shows(three, "lr1-aaaa", "lr2-bbbb", in_order=False)
    three.press("ArrowDown")
    three.press("x", "ArrowDown", "x")
    three.until_text("compare 2")
    three.press("c")
    three.until_text("Results beside what differs")
    three.press("?")
    three.until("return document.querySelector('dialog[open]') !== null")
    three.press("1")  # of what is behind the dialog nothing happens
    three.press("Escape")
    three.until("return document.querySelector('dialog') === null && location.hash.startsWith('#/compare/')")
    three.press("1")
    shows(three, "lr1-aaaa", "lr2-bbbb", in_order=False)  # the words stay
    three.run("document.querySelector('tr[data-key]').focus()")
    three.press("Enter")
    three.until("return location.hash.startsWith('#/run/')")
    three.press("Escape")
    three.until("return location.hash.split('?')[0] === '#/runs'")


@pytest.mark.parametrize(
    "view", ["runs", "run/lr2-bbbb", "run/lr2-bbbb/logs", "compare/lr1-aaaa,lr2-bbbb,vit-cccc", "clusters"]
)
@again_if_cut_off
def test_a_telephone_shows_it_without_scrolling_aside(three, view):
    three.look(400, 800)
    words = {"runs": "vit-cccc", "clusters": "local"}.get(view, "lr2-bbbb")
    look_at(three, view, words)
    three.drawn()
    wide = "[document.documentElement, document.querySelector('main')].map(one => one.scrollWidth - one.clientWidth)"
    assert three.run(f"return {wide}") == [0, 0]


@again_if_cut_off
def test_what_is_found_is_compared_such_as_the_trials_of_a_sweep(three):
    begin(three)
    three.press("/")
    three.press(*"lr")
    three.click("compare these 2", "button:not([hidden])")
    three.until("return ['#/compare/lr1-aaaa,lr2-bbbb', '#/compare/lr2-bbbb,lr1-aaaa'].includes(location.hash)")


def test_what_doctor_found_and_which_gpus_are_taken(house, page, monkeypatch):
    house.run("vit-9x2d").running()
    node = HostNow("n0", "taken", 4, 1, runs=("vit-9x2d",), text=EVIL)
    monkeypatch.setattr(LocalCluster, "hosts_now", lambda *_: [node])
    page.until_text("vit-9x2d")
    look_at(page, "clusters", "Nobody has looked")
    keep("local", [ok("python", "3.12"), problem("torch", EVIL, "install it")], trial=False)
    page.run("location.hash = '#/runs'")
    look_at(page, "clusters", "1 problem")
    page.until_text(f"torch: {EVIL} hint: install it")
    page.until("return document.querySelector('.gpus')?.getAttribute('aria-label') === '1 of 4 GPUs free'")
    assert page.run("return document.querySelector('.host a').getAttribute('href')") == "#/run/vit-9x2d"
    assert page.run("return document.title.includes('evil')") is False


@pytest.mark.daily
@again_if_cut_off
def test_trials_of_a_sweep_are_folded_until_one_asks_for_them(house, page):
    folder = house.root / "runs" / ".sweeps" / "lr-7k3f"
    folder.mkdir(parents=True)
    register_sweep(SweepDir(folder))
    for trial in ("lr-7k3f-t0000", "lr-7k3f-t0001"):
        house.run(trial).succeeded()
    house.run("vit-cccc").running()
    page.run("localStorage.clear(); location.hash = '#/runs'")
    page.reload()
    shows(page, "vit-cccc")
    page.until_text("2 trials of a sweep: 2 succeeded")
    page.click("\u25b8 lr-7k3f")
    shows(page, "lr-7k3f-t0000", "lr-7k3f-t0001", "vit-cccc", in_order=False)
    page.run("document.querySelector('tr[data-key=\"group/lr-7k3f\"]').focus()")
    page.press("ArrowLeft")
    shows(page, "vit-cccc")
    page.press("ArrowRight")
    shows(page, "lr-7k3f-t0000", "lr-7k3f-t0001", "vit-cccc", in_order=False)
    page.press("ArrowDown", "ArrowLeft")  # from a trial to its sweep
    page.until("return document.activeElement.dataset.key === 'group/lr-7k3f'")
    page.press("Enter")
    shows(page, "vit-cccc")
    search(page, "t0001")
    shows(page, "lr-7k3f-t0001")
