import pytest

from launcher.run.code.imports import sure_imports, third_party_imports


def imports(entry="train.py", **files):
    texts = {name.replace("__", "/") + ".py": text.encode() for name, text in files.items()}
    return third_party_imports(texts.get, entry)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("import os, sys\nfrom __future__ import annotations", set()),
        ("import torch.nn as nn", {"torch", "torch.nn"}),
        ("from torch.nn import Linear", {"torch", "torch.nn", "torch.nn.Linear"}),
        (
            "def f():\n    import torch.distributed.checkpoint as dcp",
            {"torch", "torch.distributed", "torch.distributed.checkpoint"},
        ),
        ("def f():\n    import numpy", {"numpy"}),
        ("try:\n    import ujson\nexcept ImportError:\n    import json", {"ujson"}),
        ("if 0:\n    from a import b\nimport c.d", {"a", "a.b", "c", "c.d"}),
        ("from . import x", set()),
        ("", set()),
        ("x = '\\d'", set()),
        ("# -*- coding: latin-1 -*-\nimport torch", {"torch"}),
    ],
)
def test_what_one_file_needs(text, found):
    assert imports(train=text) == found


def test_the_users_own_modules_are_followed():
    assert imports(train="import lib", lib="import torch") == {"torch"}
    assert imports(train="from lib import build, Net", lib="def build(): ...") == set()
    assert imports(train="from lib.net import Net", lib____init__="", lib__net="import torch") == {"torch"}


def test_packages_on_the_way_are_run_too():
    texts = {"train.py": b"import a.b.c", "a/__init__.py": b"import one", "a/b/__init__.py": b"import two"}
    assert third_party_imports({**texts, "a/b/c.py": b"import three"}.get, "train.py") == {"one", "two", "three"}


def test_folders_without_init_are_packages():
    assert third_party_imports({"train.py": b"from pkg import mod", "pkg/mod.py": b"import torch"}.get, "train.py") == {
        "torch"
    }


def test_relative_imports():
    texts = {
        "pkg/train.py": b"from . import a\nfrom .sub import c",
        "pkg/a.py": b"import one",
        "pkg/sub/__init__.py": b"",
        "pkg/sub/c.py": b"from .. import b\nfrom ..b import x",
        "pkg/b.py": b"import two",
    }
    assert third_party_imports(texts.get, "pkg/train.py") == {"one", "two"}


def test_modules_are_looked_for_beside_the_entry_and_above_it():
    texts = {"src/pkg/train.py": b"import pkg.net\nimport helper", "src/pkg/net.py": b"", "src/pkg/helper.py": b""}
    assert third_party_imports(texts.get, "src/pkg/train.py") == set()


def test_circles_end():
    assert imports(train="import a", a="import b", b="import a\nimport torch") == {"torch"}


def test_a_module_of_the_users_own_hides_the_librarys():
    assert imports(train="import random", random="import torch") == {"torch"}


@pytest.mark.parametrize("text", ["def f(:", "print 'python 2'", "\0", "(" * 500])
def test_what_is_not_python_is_unknown(text):
    assert imports(train=text) == {"*"}
    assert imports(train="import lib", lib=text) == {"*"}


def test_bytes_that_no_encoding_explains_are_unknown():
    assert third_party_imports({"train.py": b"x = '\xff'"}.get, "train.py") == {"*"}


def test_an_entry_that_is_not_there_is_unknown():
    assert third_party_imports({}.get, "train.py") == {"*"}


def test_too_much_to_read_is_unknown():
    assert imports(train="import big", big="x = 1\n" * 400_000) == {"*"}
    many = {f"m{number}.py": f"import m{number + 1}".encode() for number in range(600)}
    assert third_party_imports(many.get, "m0.py") == {"*"}


def sure(entry="train.py", **files):
    texts = {name.replace("__", "/") + ".py": text.encode() for name, text in files.items()}
    return [(one.path, one.line, one.module) for one in sure_imports(texts.get, entry)]


def test_what_stands_by_itself_at_the_top_is_surely_imported():
    text = '"""About it."""\nimport os\nimport json, tqdm.auto\n\nx = 1\nfrom torch.nn import Linear\n'
    assert [one for one in sure(train=text) if one[2] not in ("os", "json")] == [
        ("train.py", 3, "tqdm.auto"),
        ("train.py", 6, "torch.nn"),
    ]


@pytest.mark.parametrize(
    "text",
    [
        "try:\n    import tqdm\nexcept ImportError:\n    tqdm = None",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import tqdm",
        "if 1:\n    import tqdm",
        "def f():\n    import tqdm",
        "class C:\n    import tqdm",
        "with open('x'):\n    import tqdm",
        "from . import tqdm",
        "from .tqdm import bar",
    ],
)
def test_what_has_a_way_out_is_not(text):
    assert "tqdm" not in {module for _, _, module in sure(train=text)}


@pytest.mark.parametrize(
    "text",
    [
        "import sys\nsys.path.insert(0, 'lib')\n",
        "from sys import path\npath.append('lib')\n",
        "import sys as system\nsystem.path.append('lib')\n",
        "import sys\nsys.modules['tqdm'] = object()\n",
        "import site\nsite.addsitedir('lib')\n",
        "import subprocess\nsubprocess.run(['pip', 'install', 'tqdm'])\n",
        "import os\nos.system('uv pip install tqdm')\n",
        "exec(open('setup_path.py').read())\n",
        "def f(:\n",
    ],
)
def test_of_a_file_that_decides_from_where_modules_come_nothing_is_known(text):
    assert sure(train=f"{text}import tqdm") == []
    assert sure(train="import lib\nimport tqdm", lib=text) == []


def test_a_word_for_something_else_decides_nothing():
    text = "import sys\nprint(sys.argv, 'pipeline')\nimport tqdm"
    assert ("train.py", 3, "tqdm") in sure(train=text)


def test_what_the_code_imports_by_itself_is_followed():
    texts = {
        "train.py": b"import lib.net\nimport lib.other",
        "lib/__init__.py": b"import two",
        "lib/net.py": b"import one",
        "lib/other.py": b"try:\n    import lib.more\nexcept ImportError:\n    pass",
        "lib/more.py": b"import three",
    }
    found = sure_imports(texts.get, "train.py")
    assert sorted(found) == [("lib/__init__.py", 1, "two"), ("lib/net.py", 1, "one")]
