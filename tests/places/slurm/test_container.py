"""Running a command inside a container: the exact words, by Pyxis and by a line before it."""

import json

import pytest

from launcher.api import validate
from launcher.errors import BadInput
from launcher.places.slurm.container import container_of, container_problems, image_path

MOUNTS = ["/runs/r 1", "/opt/py"]
BINDS = ("--bind", "/runs/r 1", "--bind", "/opt/py")


@pytest.mark.parametrize(
    ("text", "gpus", "program", "prefix"),
    [
        ("/images/x.sif", False, "apptainer", ("apptainer", "exec", *BINDS, "/images/x.sif")),
        ("/images/x.sif", True, "apptainer", ("apptainer", "exec", *BINDS, "--nv", "/images/x.sif")),
        ("apptainer exec --nv x.sif", False, "apptainer", ("apptainer", "exec", *BINDS, "--nv", "x.sif")),
        ("/opt/bin/singularity run x.sif", True, "/opt/bin/singularity",
         ("/opt/bin/singularity", "run", *BINDS, "x.sif")),
        ("apptainer --silent exec 'an image.sif'", False, "apptainer",
         ("apptainer", "--silent", "exec", *BINDS, "an image.sif")),
    ],
)  # fmt: skip
def test_a_line_before_the_command(text, gpus, program, prefix):
    container = container_of(text, MOUNTS, gpus)
    assert (container.program, container.srun_options, container.prefix) == (program, (), prefix)


@pytest.mark.parametrize(
    "text", ["nvcr.io#nvidia/pytorch:24.05-py3", "/images/x.sqsh", "docker://ubuntu", "apptainer", "./x.sqsh"]
)
@pytest.mark.parametrize("gpus", [False, True])
def test_whatever_else_is_an_image_for_pyxis(text, gpus):
    container = container_of(text, MOUNTS, gpus)
    assert container.program == "--container-image"
    assert container.prefix == ()
    assert container.srun_options == (
        f"--container-image={text}",
        "--container-mounts=/runs/r 1:/runs/r 1,/opt/py:/opt/py",
        "--container-workdir=/",
    )


def test_without_a_container_there_is_none():
    assert container_of(None, MOUNTS, False) is None


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("/images/x.sqsh", "/images/x.sqsh"),
        ("apptainer exec --nv '/images/an x.sif'", "/images/an x.sif"),
        ("apptainer exec x.sif", None),
        ("docker://ubuntu", None),
        ("nvcr.io#nvidia/pytorch:24.05", None),
    ],
)
def test_the_file_that_it_is(text, path):
    assert image_path(text) == path


@pytest.fixture
def site(tmp_path, monkeypatch):
    """Gives a PATH that has just these programs."""

    def having(**programs):
        for name, body in programs.items():
            (tmp_path / name).write_text(f"#!/bin/sh\n{body}\n")
            (tmp_path / name).chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}")
        return tmp_path

    return having


def test_a_program_that_is_not_there_is_named(site):
    site()
    (line,) = container_problems("apptainer exec docker://ubuntu")
    assert line == "no `apptainer` on PATH; the nodes need it to open docker://ubuntu"
    assert "no `apptainer`" in container_problems("x.sif")[0]


def test_a_file_that_is_not_there_is_named(site):
    folder = site(apptainer="exit 0")
    missing = folder / "x.sif"
    assert container_problems(str(missing)) == [f"no file {missing}"]
    missing.touch()
    assert container_problems(str(missing)) == []
    assert container_problems(f"apptainer exec --nv {missing}") == []


def test_pyxis_is_an_option_of_srun(site):
    site(srun="echo '      --container-image=[USER@]  the image to use'")
    assert container_problems("docker://ubuntu") == []
    site(srun="echo '      --container=path  an OCI bundle'")
    (line,) = container_problems("docker://ubuntu")
    assert line.startswith("srun here has no option --container-image")


def test_words_that_no_shell_would_read_are_refused():
    assert container_problems("apptainer exec 'x.sif") == ["cannot be read as words: No closing quotation"]


@pytest.mark.parametrize("text", ["   ", "", "\t", "'' x"])
def test_nothing_is_no_container(text, tmp_path):
    assert container_problems(text) == ["cannot be read as words: there is none"]
    spec = tmp_path / "job.yaml"
    spec.write_text(f"name: x\nrun: {{command: [echo]}}\nslurm: {{container: {json.dumps(text)}}}\n")
    if text in ("   ", ""):
        with pytest.raises(BadInput, match=r"slurm\.container: expected a container"):
            validate(spec)
