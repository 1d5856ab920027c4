"""A tag publishes nothing that is not ready, and its notes are what the changelog says."""

import pytest

from launcher.states import VERSION
from tests.packaging.release import not_ready, notes

URL = "https://git.example/launch"


@pytest.fixture
def checkout(tmp_path):
    """A checkout that is ready to be released as v1.2.0."""
    for folder in ("launcher/docs", "tests/local/recorded/1.2.0", "tests/recorded"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "tests" / "recorded" / "launch-1.2.0.tar.xz").touch()
    (tmp_path / "pyproject.toml").write_text("[project.urls]\nSource = 'https://git.host/launch'\n")
    changelog = "# Changelog\n\n## 1.2.0 - 2026-12-01\n\n### Added\n- One.\n\n## 1.1.0 - 2026-11-01\n- Old.\n"
    (tmp_path / "launcher" / "docs" / "changelog.md").write_text(changelog)
    return tmp_path


def lines(checkout, tag="v1.2.0", repository="https://git.host/launch"):
    return not_ready(tag, repository, version="1.2.0", root=checkout)


def test_one_that_is_ready(checkout):
    assert lines(checkout) == []
    assert notes("1.2.0", checkout) == "### Added\n- One.\n"
    assert notes("1.1.0", checkout) == "- Old.\n"


def test_a_tag_of_another_version(checkout):
    assert lines(checkout, tag="v1.3.0") == ["launcher/states.py: expected the version of the tag v1.3.0, got 1.2.0"]


def test_a_changelog_without_a_date(checkout):
    changelog = checkout / "launcher" / "docs" / "changelog.md"
    changelog.write_text("## 1.2.0 (not yet released)\n")
    (line,) = lines(checkout)
    assert line.endswith("got '## 1.2.0 (not yet released)'")
    changelog.write_text("## 1.1.0 - 2026-11-01\n")
    (line,) = lines(checkout)
    assert line.endswith("got 'nothing'")


def test_addresses_that_are_not_the_repositorys(checkout):
    assert lines(checkout, repository="https://git.host/fork") == [
        "pyproject.toml: project.urls.Source: expected https://git.host/fork, got https://git.host/launch"
    ]
    (checkout / "pyproject.toml").write_text(f"[project.urls]\nSource = '{URL}'\n")
    assert lines(checkout, repository=URL) == ["pyproject.toml: project.urls.Source: is an example"]


def test_a_version_that_is_not_recorded(checkout):
    (checkout / "tests" / "recorded" / "launch-1.2.0.tar.xz").unlink()
    (checkout / "tests" / "local" / "recorded" / "1.2.0").rmdir()
    assert [line.partition(":")[0] for line in lines(checkout)] == [
        "tests/local/recorded/1.2.0", "tests/recorded/launch-1.2.0.tar.xz",
    ]  # fmt: skip


def test_the_changelog_of_this_checkout_has_notes():
    assert "### Added" in notes()
    assert not [line for line in not_ready(f"v{VERSION}", URL) if line.startswith("launcher/states.py")]
