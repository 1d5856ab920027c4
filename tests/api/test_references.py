"""Test by which names a run can be found."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher import api
from launcher.errors import BadInput, LaunchError, NoSuchRun
from launcher.ids import parse_run_id
from launcher.run import registry


@pytest.mark.parametrize("ref", ["", " ", "\t\n", "\u2003"])
def test_nothing_is_no_run(tmp_path, monkeypatch, ref):
    """Every id begins with the empty text: a pool's only run was found, and cancelled, by it."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setattr(api, "_discovered", lambda _: tmp_path / "job-abcd")
    with pytest.raises(BadInput, match="expected the id of a run, got nothing"):
        api.run(ref)


@given(st.text(alphabet=st.characters(codec=None), max_size=300) | st.sampled_from(["..", "/", "job/../job-abcd", "-"]))
def test_whatever_is_asked_for(tmp_path_factory, ref):
    """A reference is compared with names and never made part of a path."""
    folder = tmp_path_factory.getbasetemp() / "references"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(folder))
        patch.setenv("XDG_CONFIG_HOME", str(folder))
        (folder / "job-abcd").mkdir(parents=True, exist_ok=True)
        if not registry.is_registered(parse_run_id("job-abcd")):
            registry.register(parse_run_id("job-abcd"), folder / "job-abcd")
        try:
            found = api.run(ref)
        except LaunchError as error:
            assert isinstance(error, BadInput if not ref.strip() else NoSuchRun)
            assert len(str(error)) < 500
        else:
            assert ref == "last" or "job-abcd".startswith(ref)
            assert found.path == folder / "job-abcd"
