"""Views of more than one curve: what machines used, and runs of very different length over one another."""

import json
import math
import time

import msgspec
import pytest
from browser import needs_browser
from run_folder import RunFolder, plan_of

from tests.apps.board.page.conftest import look_at, measure, started_with

pytestmark = [needs_browser, pytest.mark.nightly]
TITLES = "[...document.querySelectorAll('.chart h3')].map(one => one.textContent)"
SAID = "[...document.querySelectorAll('.chart .plot')].map(one => one.getAttribute('aria-label') ?? '')"
GROUP_BY_LR = """
const lists = [...document.querySelectorAll('select')];
const list = lists.find(one => [...one.options].some(option => option.value === 'arg --lr'));
list.value = 'arg --lr';
list.dispatchEvent(new Event('change'));
"""


def sample(folder, node):
    """Ten minutes of a rank and a GPU."""
    folder.run.metrics.mkdir(exist_ok=True)
    lines, began = [{"generation": 0}], int(time.time()) - 600
    for at in range(began, began + 600, 5):
        wave = math.sin(at / 40 + node)
        of_node = {"cpu": 3 + wave, "memory": 9e9 + 1e9 * wave, "gpu0/busy": 80 + 15 * wave, "gpu0/gpu_memory": 4e10,
                   "received": 1e6 * (2 + wave), "sent": 2e6}  # fmt: skip
        values = {f"node{node}/{name}": value for name, value in of_node.items()}
        values |= {f"rank{node}/cpu": 1.0 + 0.1 * wave, f"rank{node}/memory": 2e9}
        lines.append({"step": at, "at": at, "rank": node, "values": values})
    folder.run.system(1, node).write_text("".join(json.dumps(line) + "\n" for line in lines))


def test_what_machines_used_is_drawn_over_time(house, page):
    folder = house.run().trained(for_s=600, starting_s=5).running()
    sample(folder, 0)
    sample(folder, 1)
    look_at(page, "run/job-abcd/system", "GPU use")
    page.until(f"return {TITLES}.length >= 7")
    page.until(f"return {SAID}[0].includes('2 lines')")


@pytest.fixture
def unequal(house, page):
    """Six trials of two learning rates, of which the longest is twenty times as long as the shortest."""
    names = [f"lr-{letter * 4}" for letter in "abcdef"]
    for at, name in enumerate(names):
        folder = house.run(name).trained(for_s=300, starting_s=10).succeeded(step=100, metrics={"loss": 0.5})
        started_with(folder, "--lr", ("0.1", "0.01")[at % 2])
        steps = range(1, 1 + (100 * (at + 1) if at < 5 else 2000))
        measure(folder, {step: {"loss": (at % 2 + 1) / (step + 5) ** 0.5 + at / 100} for step in steps})
    page.until_text(names[-1])
    page.run("location.hash = arguments[0]", f"#/compare/{','.join(names)}")
    page.until(f"return {SAID}[0]?.includes('6 runs')")
    return page


def test_runs_of_very_different_length_are_shown_as_far_as_the_shortest_goes(unequal):
    unequal.click("common part")
    unequal.until("return location.hash.includes(encodeURIComponent('[1,100]'))")
    unequal.reload()
    unequal.until(f"return {SAID}[0]?.includes('6 runs')")
    unequal.click("show all", "button:not([hidden])")
    unequal.until("return !location.hash.includes('range')")
    unequal.click("by part done")
    unequal.until(f"return {SAID}[0]?.includes('by part')")
    unequal.run("localStorage.clear()")


def test_runs_of_one_argument_are_one_curve_also_for_who_gets_the_link(unequal):
    unequal.run(GROUP_BY_LR)
    unequal.until(f"return {SAID}[0]?.includes('2 groups')")
    unequal.run("localStorage.clear()")
    unequal.reload()
    unequal.until(f"return {SAID}[0]?.includes('2 groups')")
    unequal.run("localStorage.clear()")


def test_a_page_that_a_run_wrote_is_shown_and_nothing_runs_in_it(house, page):
    folder = house.run().running().path / "code" / "artifacts"
    folder.mkdir(parents=True)
    (folder / "report.html").write_text(
        "<style>h1 { color: green }</style><h1>mine</h1><script>top.document.title = 'evil'</script>"
    )
    (folder / "table.csv").write_text("name,loss\none,0.5\ntwo,0.25\n")
    (folder / "notes.md").write_text("# Notes\n\nIt went `well`.\n\n- one\n- two\n")
    (folder / "plot.svg").write_text(
        "<svg xmlns='http://www.w3.org/2000/svg' width='300' height='200'><circle cx='99' cy='99' r='80'/></svg>"
    )
    look_at(page, "run/job-abcd/artifacts", "plot.svg")
    page.click("plot.svg")
    page.until("return document.querySelector('.artifact img')?.naturalWidth === 300")
    page.click("notes.md")
    page.until("return document.querySelector('.artifact h2')?.textContent === 'Notes'")
    page.click("table.csv")
    page.until("return document.querySelector('.artifact tbody')?.textContent === 'one0.5two0.25'")
    page.click("report.html")
    page.until("return document.querySelector('.artifact iframe')?.getAttribute('sandbox') === ''")
    page.until("return performance.getEntriesByType('resource').some(one => one.name.endsWith('report.html'))")
    page.drawn()
    assert page.run("return document.title.includes('evil')") is False
    assert [said for said in page.errors() if "Blocked script execution" not in said] == []


def test_a_role_leads_to_its_log_and_the_log_back_to_that_of_the_main_one(house, page):
    whole = house.run().running().log(0, "of the learner\n")
    whole.write(whole.run.plan, msgspec.structs.replace(plan_of(whole.path), role="learner"))
    part = RunFolder(whole.run.roles / "actors-1").running().log(0, "of an actor\n")
    part.write(part.run.plan, msgspec.structs.replace(plan_of(part.path), role="actors", role_rank=1))
    look_at(page, "run/job-abcd/ranks", "actors-1")
    page.click("actors-1")
    page.until_text("of an actor")
    part.log(0, "of an actor\nand more of it\n")
    whole.running(step=8)
    page.until_text("and more of it")
    choose = "const one = document.querySelector('select[aria-label=role]'); one.value = '';"
    page.run(f"{choose} one.dispatchEvent(new Event('change'))")
    page.until_text("of the learner")


def test_the_curves_of_a_role_are_shown_and_go_on(house, page):
    whole = house.run().running()
    measure(whole, {step: {"loss": 1 / step} for step in range(1, 4)})
    whole.write(whole.run.plan, msgspec.structs.replace(plan_of(whole.path), role="learner"))
    part = RunFolder(whole.run.roles / "actors-1").running()
    part.write(part.run.plan, msgspec.structs.replace(plan_of(part.path), role="actors", role_rank=1))
    measure(part, {1: {"tokens": 5.0}})
    look_at(page, "run/job-abcd", "loss")
    page.until("return document.querySelector('select[aria-label=role]')?.hidden === false")
    choose = "const one = document.querySelector('select[aria-label=role]'); one.value = 'actors-1';"
    page.run(f"{choose} one.dispatchEvent(new Event('change'))")
    page.until_text("tokens")
    measure(part, {2: {"tokens": 7.5}})
    whole.running(step=8)
    page.until("return document.querySelector('[aria-label*=tokens]').getAttribute('aria-label').includes('7.5')")
