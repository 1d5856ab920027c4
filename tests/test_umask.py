"""The umask of who submits, whatever a process of ours has made of its own."""

import os
import subprocess
import sys

from launcher.run.umask import users_umask


def test_it_is_this_process_s_own() -> None:
    before = os.umask(0o027)
    try:
        assert users_umask() == 0o027
    finally:
        os.umask(before)


def test_it_is_that_of_before_in_a_process_that_keeps_its_files_private() -> None:
    source = (
        "import os; from launcher.run.umask import *; make_files_private(); make_files_private();"
        "print(oct(users_umask()), oct(os.umask(0)))"
    )
    done = subprocess.run([sys.executable, "-c", source], umask=0o027, capture_output=True, text=True, check=True)
    assert done.stdout == "0o27 0o77\n"
