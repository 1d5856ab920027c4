"""A Kubernetes cluster as a user meets it, by a kubectl that carries pods out here: see scripts/kube_site.py."""

import json
import os
import sys
from pathlib import Path

SCRIPT = Path(__file__).parent / "scripts" / "kube_site.py"


def set_up(lab, folder):
    """Give this user a cluster, which a clusters file says all of; its state is in the folder that comes back."""
    site, programs = folder / "cluster", folder / "programs"
    site.mkdir()
    programs.mkdir()
    (programs / "kubectl").write_text(f'#!/bin/sh\nexec {sys.executable} {SCRIPT} "$@"\n')
    (programs / "kubectl").chmod(0o755)
    own = folder / "config" / "launch" / "clusters.yaml"
    own.parent.mkdir(parents=True)
    own.write_text(
        f"k8s: {{kind: k8s, defaults: {{image: train:1, claim: runs, mount: {folder}, queue: team}}}}\n"
        f"plain: {{kind: k8s, defaults: {{image: train:1, claim: runs, mount: {folder}}}}}\n"
    )
    own.chmod(0o600)
    lab.env |= {"KUBE_SITE": str(site), "PATH": f"{programs}:{os.environ['PATH']}"}
    return site


def objects(site):
    return {file.stem: json.loads(file.read_text()) for file in site.glob("*.json")}


def tear_down(lab, site):
    """End all of its pods."""
    for made in objects(site):
        (site / f"{made}.deleted").touch()
    done = ("Completed", "Failed")
    lab.until(
        "the end of all pods",
        lambda: all(one["conditions"] and one["conditions"][0]["type"] in done for one in objects(site).values()),
    )
