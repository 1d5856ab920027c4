"""The table of options, the classes of model.py, the reference and the starters cover each other."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec import Struct
from msgspec.structs import replace

from launcher.cli.shipped import shipped, starter, starters
from launcher.errors import BadInput
from launcher.spec import model as models
from launcher.spec.fields import JOB
from launcher.spec.kinds.leaf import Kind
from launcher.spec.kinds.sections import Field, Section, Shorthand
from launcher.spec.problems import Wrong
from launcher.spec.read import parse_spec
from launcher.spec.yaml_reader import read_tree
from tests.spec.reference import reference

PAGE = Path(__file__).parents[2] / "launcher/docs/spec.md"


def sections(kind: Kind) -> Iterator[Section]:
    """Every section of the table, from the outermost in."""
    if isinstance(kind, Shorthand):
        kind = kind.section
    if isinstance(kind, Section):
        yield kind
        for field in kind.options:
            yield from sections(getattr(field.kind, "item", field.kind))


def options() -> list[tuple[Section, Field]]:
    return [(section, field) for section in sections(JOB) for field in section.options]


def test_the_table_sets_every_attribute_once() -> None:
    for section in sections(JOB):
        attributes = [name for field in section.options for name in field.attributes]
        assert issubclass(section.model, Struct)
        # Filled by what other packages bring, and by the reader where a number of restarts is written.
        of_the_class = {*section.model.__struct_fields__} - {"plugins", "explicit"}
        assert sorted(attributes) == sorted(of_the_class), section.model


def test_the_table_names_every_class() -> None:
    found = {item for item in vars(models).values() if isinstance(item, type) and issubclass(item, Struct)}
    # A range, a secret, who is told, what is waited for and what a sweep may choose are each written as one value.
    # What a role is among the others is of a table of its own.
    values = {models.Role, models.Readiness}
    values |= {models.NodeRange, models.Secret, models.NotifyTarget, models.Predecessor, models.Dimension}
    assert found - {Struct} == {section.model for section in sections(JOB)} | values


def test_keys_are_unique() -> None:
    assert all(len(section.by_key) == len(section.options) for section in sections(JOB))


def test_a_default_can_be_written() -> None:
    written = 0
    for section, field in options():
        if isinstance(field.kind, Section) or "default" not in (shown := section.shown_default(field)):
            continue
        text = str(shown["default"]).lower() if isinstance(shown["default"], bool) else str(shown["default"])
        root = read_tree(text).root
        assert root is not None
        parsed = field.kind.parse(root)
        if isinstance(parsed, models.Budget):
            assert parsed.explicit == (parsed.restarts is not None)
            parsed = replace(parsed, explicit=False)
        assert parsed == section.default(field), field.key
        written += 1
    assert written > 30


def test_an_example_can_be_written() -> None:
    for _, field in options():
        if field.example:
            root = read_tree(field.example).root
            assert root is not None
            field.kind.parse(root)
        else:
            assert isinstance(field.kind, Section)


def test_an_option_is_wrong_where_it_is_alone_wrong() -> None:
    """A kind that takes anything would make the two tests above say nothing."""
    root = read_tree("{'\\0': {? [] }}").root
    assert root is not None
    for _, field in options():
        with pytest.raises(Wrong):
            field.kind.parse(root)


def test_the_page_of_options_holds_the_reference() -> None:
    assert PAGE.read_text().endswith(f"\n{reference()}"), "run python -m tests.spec.reference"


def test_the_names_of_the_run_directory_are_taken() -> None:
    """Floors above own these names; this is where the two lists meet."""
    from launcher.run.layout import NamedFile, RunDir

    root = RunDir(Path("run"))
    names = {getattr(root, name).name for name, item in vars(RunDir).items() if isinstance(item, NamedFile)}
    assert len(names) > 8
    for name in names:
        with pytest.raises(BadInput, match=f"got the launcher's {name}"):
            parse_spec(f"name: a\nrun: {{script: t.py}}\ncheckpoint: {{dir: {name}/x}}\n", "job.yaml")


@pytest.mark.parametrize("name", starters())
def test_a_starter_reads(name: str) -> None:
    text = starter(name)
    assert text.startswith("# yaml-language-server: $schema={{schema}}\n")
    assert parse_spec(text, name).name.startswith("my-")


@pytest.mark.parametrize("name", starters())
def test_every_commented_option_of_a_starter_is_right(name: str) -> None:
    text = starter(name)
    lines = text.splitlines()
    commented = [number for number, line in enumerate(lines) if line.lstrip().startswith("#") and line.strip("# ")]
    taken = [number for number in commented if not lines[number].lstrip().startswith("# ")]
    everything = "\n".join(line.replace("#", "", 1) if number in taken else line for number, line in enumerate(lines))
    assert parse_spec(everything, name) != parse_spec(text, name)
    for number in taken:
        if not lines[number].startswith("#"):
            alone = [*lines[:number], lines[number].replace("#", "", 1), *lines[number + 1 :]]
            parse_spec("\n".join(alone), name)


def test_the_starters_show_every_option() -> None:
    shown = "\n".join(starter(name) for name in starters())
    for _, field in options():
        assert f"{field.key}:" in shown, field.key


def test_a_starter_that_is_not_there() -> None:
    with pytest.raises(BadInput, match=r"hint: did you mean slurm\?"):
        starter("slrm")
    with pytest.raises(BadInput, match="hint: there is ddp, gridengine, k8s, lsf, minimal"):
        starter("../../etc/passwd")


def test_starters_say_what_they_are_for() -> None:
    assert all(len(purpose) > 20 and not purpose.startswith("#") for purpose in starters().values())


def test_what_is_shipped_is_there() -> None:
    assert (shipped("templates") / "minimal.yaml").is_file()
    assert shipped("jobs").name == "jobs"
