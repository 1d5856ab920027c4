"""Test functions of the page's modules in a browser without a board."""

import pytest
from browser import needs_browser

from launcher.apps.board.bundle import module

pytestmark = needs_browser


@pytest.fixture(scope="module")
def ask(window):
    """Return the value of an expression that uses a module of the page; `given` is its input."""
    window.open("about:blank")
    return lambda name, expression, *given: window.run(
        f"{module(name)}\nconst given = arguments; return {expression}", *given
    )


@pytest.mark.parametrize(("count", "said"), [(0, "0 ranks"), (1, "1 rank"), (2, "2 ranks"), (1234, "1\u202f234 ranks")])
def test_one_is_no_plural(ask, count, said):
    assert ask("parts/format.js", "plural(given[0], 'rank')", count) == said


def test_what_is_cut_is_spread_over_all_of_it(ask):
    assert ask("parts/format.js", "spread(given[0], 3)", [*range(101)]) == [0, 50, 100]
    assert ask("parts/format.js", "spread(given[0], 3)", [1, 2, 3]) == [1, 2, 3]


@pytest.mark.parametrize(
    ("text", "shown"),
    [("ask `launch doctor`, <b>", "ask <code>launch doctor</code>, &lt;b&gt;"), ("it`s", "its"), ("", "")],
)
def test_backticks_are_not_shown(ask, text, shown):
    assert ask("parts/dom.js", "h('p', {}, prose(given[0])).innerHTML", text) == shown


def row(run, group=None, state="succeeded", **more):
    whole = {"id": run, "state": state, "ended": True, "cluster": "local", "restarts": 0, "submitted_at": 1, "args": {}}
    return {**whole, "started_at": 2, "ended_at": 3, "group": group, **more}


SWEEP, PROOF = {"id": "lr-7k3f", "kind": "sweep"}, {"id": "vit-2222", "kind": "proof"}
ROWS = [
    row("a"), row("t1", SWEEP), row("p1", PROOF), row("t2", SWEEP, "running", ended=False, ended_at=None), row("b"),
    row("t3", SWEEP, restarts=2),
]  # fmt: skip


def lines(ask, found, opened):
    script = "grouped(given[0], groupsOf(given[1]), id => given[2].includes(id))"
    return ask("views/run_groups.js", script, found, ROWS, opened)


def test_trials_are_under_their_sweep_and_a_run_alone_is_under_none(ask):
    folded = lines(ask, ROWS, [])
    assert [one["id"] for one in folded] == ["a", "group/lr-7k3f", "p1", "b"]
    sweep = folded[1]
    assert (sweep["state"], sweep["ended_at"], sweep["restarts"]) == ("running", None, 2)
    assert sweep["headline"] == "3 trials of a sweep: 2 succeeded, 1 running"
    opened = lines(ask, ROWS, ["lr-7k3f"])
    assert [one["id"] for one in opened] == ["a", "group/lr-7k3f", "t1", "t2", "t3", "p1", "b"]


def test_a_member_that_is_searched_for_is_found(ask):
    found = lines(ask, [ROWS[3]], ["lr-7k3f"])
    assert [one["id"] for one in found] == ["group/lr-7k3f", "t2"]
    assert found[0]["headline"].endswith("; 1 found")


def test_what_was_not_measured_is_not_expected_after_the_end(ask):
    assert ask("views/curves.js", "noneWords(true)").startswith("The run ended without a measured value")
    assert ask("views/curves.js", "noneWords(false)").startswith("Nothing measured yet")


def test_what_is_said_where_no_checkpoint_is_listed(ask):
    said = "step 30, saved by the script itself"
    assert said in ask("views/checkpoints.js", "noCheckpointWords(given[0], true)", said)
    assert ask("views/checkpoints.js", "noCheckpointWords('', true)") == "The run saved no checkpoint."
    assert ask("views/checkpoints.js", "noCheckpointWords('', false)") == "No checkpoint yet."


@pytest.mark.parametrize(("value", "said"), [(0.5, "last 0.5 at step 400"), ("nan", "last NaN at step 400")])
def test_head_and_curve_say_the_last_value_with_its_step(ask, value, said):
    assert ask("parts/chart.js", "lastValueWords(given[0], 400)", value) == said
    curve = {"x": [1, 399], "min": [0.1, 0.2], "max": [1, 2], "odd": [], "last": [400, value]}
    assert ask("parts/chart.js", "lastWords(readCurve(given[0]), {by: 'step'})", curve) == said


def test_validations_are_spread_over_the_strip_and_counted_as_what_they_are(ask):
    saved = [{"kind": "checkpoint" if at in (7, 300) else "validation", "at": at} for at in range(302)]
    shown = ask("views/life.js", "shownOnStrip(given[0])", saved)
    assert (len(shown), shown[0]["at"], shown[-1]["at"]) == (62, 0, 301)
    assert [mark["at"] for mark in shown if mark["kind"] == "checkpoint"] == [7, 300]
    for of, words in (
        (saved, "2 checkpoints and 300 of its validations"),
        (saved[6:9], "1 checkpoint and 2 validations"),
        (saved[:1], "1 validation"),
    ):
        assert ask("views/life.js", "savedWords(given[0])", of) == words


def test_goodput_says_what_it_is_a_share_of(ask):
    life = {"goodput": 0.5, "counted_s": 120, "seconds": {"training": 60, "starting": 60, "waiting": 240}}
    assert (
        ask("views/life.js", "goodputWords(given[0])", life)
        == "1 min 00 s of 2 min 00 s, without 4 min 00 s waiting or idle"
    )


@pytest.mark.parametrize(
    ("values", "equal"),
    [([(1, None), (1, None)], True), ([(1, 0.5), (1, 0.25)], False), ([(1, None), None], False), ([None, None], False)],
)
def test_a_metric_that_is_the_same_in_all_runs_is_one(ask, values, equal):
    figures = [value and {"last": value[0], "best": value[1]} for value in values]
    assert ask("views/results.js", "isEqualInAll(given[0])", figures) is equal


def test_a_group_is_the_mean_of_its_curves_between_their_extremes(ask):
    short, long = {"x": [0, 2], "y": [0, 2]}, {"x": [0, 1, 2, 4], "y": [4, 4, 4, 8]}
    found = ask(
        "views/compare.js", "meanCurve(given.length ? [readCurve(given[0]), readCurve(given[1])] : [])", short, long
    )
    assert (found["x"], found["low"]) == ([0, 1, 2, 4], [0, 1, 2, 8])
    assert (found["high"], found["middle"]) == ([4, 4, 4, 8], [2, 2.5, 3, 8])


def test_a_value_that_is_none_does_not_spoil_the_mean(ask):
    curves = {"x": [0, 1], "y": [1, "nan"]}, {"x": [0, 1], "y": [3, 5]}
    found = ask("views/compare.js", "meanCurve([...given].map(readCurve))", *curves)
    assert (found["x"], found["middle"]) == ([0, 1], [2, 5])


@pytest.mark.parametrize(
    ("by", "groups"), [("sweep", {"lr-7k3f": 3, "vit-2222": 1, "others": 2}), ("tag", {"others": 6})]
)
def test_runs_are_grouped_by_what_they_have_in_common(ask, by, groups):
    expression = "groupedRuns(given[0].map((row) => ({row})), given[1]).map((one) => [one.name, one.runs.length])"
    assert dict(ask("views/compare.js", expression, ROWS, by)) == groups


def test_columns_that_nobody_chose_are_arguments_in_which_runs_differ(ask):
    rows = [row(name, args={"--lr": value, "--seed": "1"}) for name, value in (("a", "1"), ("b", "2"))]
    assert ask("views/runs.js", "differing(given[0])", [*rows, row("c", args={"--lr": "1", "--odd": "3"})]) == [
        "arg --lr"
    ]


def test_what_is_chosen_is_in_the_address(ask):
    chosen = "putInAddress('curves', {by: 'time'}), putInAddress('metrics', 'lo ss'), toPath('#/run/a/logs')"
    shown = "inAddress('curves').by, inAddress('metrics'), inAddress('none') ?? null, location.hash.split('?')[0]"
    assert ask("parts/address.js", f"({chosen}, [{shown}])") == ["time", "lo ss", None, "#/run/a/logs"]


def test_markup_in_markdown_is_shown_as_it_is_written(ask):
    text = "# One\n\ntwo `code`\nthree <b>\n\n- a\n- b\n```\n<i>\n```\n[x](javascript:alert(1))\n"
    shown = ask("views/artifacts.js", "h('div', {}, markdown(given[0])).innerHTML", text)
    assert shown.replace(' data-open="1"', "") == (
        "<h2>One</h2><p>two <code>code</code> three &lt;b&gt; </p><ul><li>a</li><li>b</li></ul>"
        "<pre>&lt;i&gt;\n</pre><p>[x](javascript:alert(1)) </p>"
    )


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        ("a,b\r\n1,2\r\n", [["a", "b"], ["1", "2"]]),
        ('a,"b,""c"\n,\n', [["a", 'b,"c'], ["", ""]]),
        ('"x\ny",2', [["x\ny", "2"]]),
        ("", []),
    ],
)
def test_a_csv_is_read_with_its_quotes(ask, text, rows):
    assert ask("views/artifacts.js", "csvRows(given[0])", text) == rows
