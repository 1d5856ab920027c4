"""The project's own packages are imported from the frozen code, however they are laid out and installed."""

import os
import subprocess
from pathlib import Path

import msgspec
import package_layouts as layouts
import pytest
from run_folder import plan_of

from launcher.node.environment import node_environment
from launcher.run.code.freezing import freeze
from launcher.spec.model import JobSpec, RunOptions
from launcher.submission.project import code_of, facts_of_code, live_imports

SPEC = JobSpec("job", RunOptions(script="scripts/train.py"))


@pytest.fixture(params=layouts.ALL, ids=lambda make: make.__name__)
def layout(request, tmp_path):
    return request.param(tmp_path / "project")


def looked_at(layout, spec=SPEC):
    code = code_of(layout.project, spec, str(layout.python), frozen=False)
    project = facts_of_code(spec, layout.project, code.listed, str(layout.python), code.own_folders)
    return code, project


def live_imports_of(layout, spec=SPEC):
    """Return the imports that ranks would read from the live project, for this layout."""
    code, project = looked_at(layout, spec)
    return live_imports(project, code)


def freezes(layout, tmp_path):
    """The frozen code, and what ranks find in their environment."""
    code, project = looked_at(layout)
    run = tmp_path / "runs" / "job-abcd"
    freeze(code.listed, tmp_path / "store", run / "code")
    plan = msgspec.structs.replace(plan_of(run), own_folders=project.own_folders, project=str(layout.project))
    return run / "code", node_environment({}, plan, plan.nodes[0], 1, {})


def output(layout, code, env):
    script = [str(layout.python), "scripts/train.py"]
    return subprocess.run(script, cwd=code, env=env, capture_output=True, text=True, check=True).stdout


def test_an_edit_after_submit_reaches_no_rank(layout, tmp_path):
    assert live_imports_of(layout) == []
    code, env = freezes(layout, tmp_path)
    layout.edit()
    found = output(layout, code, env)
    assert (f"from {code}/" in found, "as submitted" in found) == (True, True), found


def test_its_imports_are_the_projects_own(layout):
    assert looked_at(layout)[1].imports == set()


def test_without_a_word_of_ours_the_live_tree_is_imported(tmp_path):
    """What the test above tells apart."""
    layout = layouts.uv_package(tmp_path / "project")
    code, _ = freezes(layout, tmp_path)
    layout.edit()
    assert f"from {layout.package}/__init__.py edited since" in output(layout, code, {})


def test_a_module_of_a_src_layout_is_found(tmp_path):
    layout = layouts.not_installed(tmp_path / "project")
    assert looked_at(layout, JobSpec("job", RunOptions(module="imgproj.words")))[1].module_found


def test_what_git_ignores_of_a_package_and_python_imports_is_frozen(tmp_path):
    layout = layouts.uv_package(tmp_path / "project")
    subprocess.run(["git", "init", "-q", layout.project], check=True)
    for name in ("_version.py", "fast.so", "weights.pt"):
        (layout.package / name).touch()
    (layout.project / "scripts" / "_version.py").touch()
    (layout.project / ".gitignore").write_text(".venv\n_version.py\n*.so\n*.pt\n")
    files = {file.path for file in looked_at(layout)[0].listed.files}
    assert {"src/imgproj/_version.py", "src/imgproj/fast.so"} <= files
    assert not {"src/imgproj/weights.pt", "scripts/_version.py"} & files


def test_a_package_that_is_renamed_by_its_finder_stays_live_and_is_named(tmp_path):
    layout = layouts.Layout(tmp_path / "project", "lib", layouts.STATED)
    layout.finder({"imgproj": str(layout.project / "lib")})
    [text] = live_imports_of(layout)
    assert text.startswith(f"imgproj would be imported from {layout.project}/lib, which is not frozen")
    assert "hint: install it without -e" in text


def test_a_package_elsewhere_stays_live_and_is_named_where_it_is_imported(tmp_path):
    layout = layouts.uv_app(tmp_path / "project")
    for name in ("theirs", "unused"):
        folder = tmp_path / name / "src" / name
        folder.mkdir(parents=True)
        (folder / "__init__.py").touch()
        layout.path_file(f"{name}.pth", folder.parent)
    (layout.project / "scripts" / "train.py").write_text("import theirs.deep\n")
    [text] = live_imports_of(layout)
    assert text.splitlines() == [
        f"theirs would be imported from {tmp_path}/theirs/src/theirs, which is not frozen: edits reach the run",
        "hint: install it without -e (editable) into the environment of the ranks",
    ]


def test_a_package_that_is_rebuilt_as_it_is_imported_stays_live_and_is_named(tmp_path):
    layout = layouts.Layout(tmp_path / "project", "src")
    (layout.site / "_imgproj_editable.py").write_text(f"install({{'imgproj': '{layout.package}/__init__.py'}})\n")
    assert len(live_imports_of(layout)) == 1
    assert live_imports_of(layout)[0].startswith("imgproj would be imported from")


def test_a_package_that_git_ignores_as_a_whole_stays_live_and_is_named(tmp_path):
    layout = layouts.uv_package(tmp_path / "project")
    subprocess.run(["git", "init", "-q", layout.project], check=True)
    (layout.project / ".gitignore").write_text(".venv\nsrc/\n")
    [text] = live_imports_of(layout)
    assert "code.include: [src/imgproj]" in text


def test_of_a_command_nobody_knows_what_it_imports_and_the_projects_own_are_named(tmp_path):
    layout = layouts.Layout(tmp_path / "project", "lib", layouts.STATED)
    layout.finder({"imgproj": str(layout.project / "lib")})
    layout.path_file("other.pth", tmp_path)
    assert len(live_imports_of(layout, JobSpec("job", RunOptions(command="make train")))) == 1


def test_a_folder_that_hides_the_standard_library_is_not_put_before_it(tmp_path):
    layout = layouts.hatch_flat(tmp_path / "project")
    (layout.project / "types.py").touch()
    code, _ = looked_at(layout)
    assert code.own_folders == ()
    assert live_imports_of(layout)[0].startswith("imgproj would be imported from")


def test_compiled_modules_that_only_the_installed_copy_has_are_not_hidden(tmp_path):
    layout = layouts.copied(tmp_path / "project")
    (layout.site / "imgproj" / "fast.so").touch()
    assert looked_at(layout)[0].own_folders == ()


def test_what_a_user_has_put_onto_pythonpath_of_the_project_is_frozen_too():
    plan = msgspec.structs.replace(plan_of(Path("/runs/job-abcd")), project="/home/me/proj")
    env = node_environment({"PYTHONPATH": "/home/me/proj/lib:/opt/lib"}, plan, plan.nodes[0], 1, {})
    assert env["PYTHONPATH"].split(os.pathsep) == ["/runs/job-abcd/code/lib", "/home/me/proj/lib", "/opt/lib"]
    assert node_environment({"PYTHONPATH": "src"}, plan, plan.nodes[0], 1, {})["PYTHONPATH"] == "src"
    assert "PYTHONPATH" not in node_environment({}, plan, plan.nodes[0], 1, {})
