"""What torch an interpreter has, asked of that interpreter: this one never imports it."""

import json
import subprocess
from collections.abc import Mapping

import msgspec

_LOOK = """\
import json, torch
built_for = torch.version.cuda and "CUDA " + torch.version.cuda or torch.version.hip and "ROCm " + torch.version.hip
seen = torch.cuda.device_count() if torch.cuda.is_available() else 0
print(json.dumps([torch.__version__, built_for or "", seen]))
"""
_MISSING = "No module named 'torch'"


class Torch(msgspec.Struct, frozen=True):
    """What was found; without a version there is none that works, and `error` says why."""

    version: str = ""
    built_for: str = ""  # `CUDA 12.8`; nothing: for CPUs alone
    gpus: int = 0  # that it sees
    error: str = ""

    @property
    def words(self) -> str:
        """`2.10.0 (CUDA 12.8), sees 4 GPUs`"""
        seen = f", sees {self.gpus} GPU{'' if self.gpus == 1 else 's'}" if self.built_for else ""
        return f"{self.version} ({self.built_for or 'CPU only'}){seen}"


def torch_of(python: str, environ: Mapping[str, str], limit_s: float = 60.0) -> Torch:
    """The torch that a script has which this interpreter runs."""
    try:
        done = subprocess.run(
            [python, "-c", _LOOK],
            capture_output=True, stdin=subprocess.DEVNULL, env=dict(environ), cwd="/", timeout=limit_s, check=False,
        )  # fmt: skip
    except OSError as error:
        return Torch(error=f"{python} cannot be started: {error.strerror}")
    except subprocess.TimeoutExpired:
        return Torch(error=f"import torch takes more than {limit_s:g} s")
    if done.returncode == 0:
        try:
            version, built_for, gpus = json.loads(done.stdout.decode(errors="replace").splitlines()[-1])
            return Torch(str(version), str(built_for), int(gpus))
        except (IndexError, TypeError, ValueError):
            return Torch(error="import torch prints what nobody asked for")
    said = done.stderr.decode(errors="replace").strip().splitlines() or [f"import torch ends with {done.returncode}"]
    return Torch(error="not installed" if _MISSING in said[-1] else said[-1][:200])
