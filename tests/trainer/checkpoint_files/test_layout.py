import subprocess
import sys

import pytest

from trainer.checkpoint_files.layout import (
    LAST_STEP,
    bad_name,
    data_name,
    draft_name,
    folder_name,
    is_bad,
    is_data_name,
    is_draft,
    is_trash,
    parse_folder_name,
    trash_name,
)


@pytest.mark.parametrize("step", [0, 7, 99_999_999, 100_000_000, LAST_STEP])
@pytest.mark.parametrize("kind", ["step", "best"])
def test_a_folder_says_which_step_it_is(step, kind):
    assert parse_folder_name(folder_name(step, kind)) == (kind, step)


@pytest.mark.parametrize(
    "name",
    ["", "step-", "step-1", "step-000000001", "step-0000000a", "step-00000001 ", "step-00000001\n", "STEP-00000001",
     "step-\u0661\u0661\u0661\u0661\u0661\u0661\u0661\u0661", "best-1", ".step-00000001", "step-00000001.data", "last",
     f"step-{LAST_STEP + 1}", "../step-00000001", "step--0000001"],
)  # fmt: skip
def test_no_other_name_is_a_checkpoint(name):
    assert parse_folder_name(name) is None


def test_what_is_under_way_or_on_its_way_out_is_no_checkpoint():
    for name, kind in (
        (draft_name(1, 2, "ab"), is_draft),
        (trash_name("step-00000001"), is_trash),
        (bad_name("step-00000001"), is_bad),
        (trash_name(draft_name(1, 2, "ab")), is_trash),
    ):
        assert kind(name) and parse_folder_name(name) is None
        assert [is_draft(name), is_trash(name), is_bad(name)].count(True) == 1


@pytest.mark.parametrize("name", [".tmp-" + "x" * 250, ".tmp-" + "\N{SNOWMAN}" * 80, "." * 255])
def test_a_name_of_any_length_can_be_thrown_away(name):
    assert len(trash_name(name).encode()) <= 255
    assert len(bad_name(name).encode()) <= 255


def test_two_that_go_get_two_names():
    assert trash_name("step-00000001") != trash_name("step-00000001")
    assert bad_name("step-00000001") != bad_name("step-00000001")


def test_each_rank_has_one_name():
    assert data_name(3) == "rank-00003.data" and is_data_name(data_name(3)) and is_data_name(data_name(123_456))
    for name in (
        "rank-3.data",
        "rank-000003.data",
        "rank-00003.data\n",
        "../rank-00003.data",
        "rank-\u0663\u0663333.data",
    ):
        assert not is_data_name(name)


def test_none_of_it_needs_torch():
    names = ("layout", "manifest", "durable", "fence", "commit", "retention", "catalog")
    imports = "\n".join(f"import trainer.checkpoint_files.{name}" for name in names)
    code = f"{imports}\nimport sys\nsys.exit(any(name in sys.modules for name in ('torch', 'numpy')))"
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0
