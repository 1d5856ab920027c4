"""`invoke` stays away until somebody asks for what it does."""

import subprocess
import sys


def test_it_is_not_brought_along_and_whoever_needs_it_has_it():
    lines = """
import sys
from launcher.remote import paramiko_library as transport
assert not [name for name in sys.modules if name.startswith(("invoke", "unittest", "asyncio"))]
import paramiko
config = paramiko.SSHConfig.from_text("Match exec true\\n  User bob\\nMatch exec false\\n  Port 7")
assert config.lookup("anywhere") == {"user": "bob", "hostname": "anywhere"}
import invoke.context
assert paramiko.config.invoke.run("exit 3", hide=True, warn=True).exited == 3
"""
    subprocess.run([sys.executable, "-c", lines], check=True, timeout=150)
