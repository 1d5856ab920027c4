import pytest

from launcher.run.code.globs import Glob


@pytest.mark.parametrize(
    ("pattern", "path"),
    [
        ("*.pt", "a.pt"),
        ("*.pt", "deep/er/a.pt"),
        ("wandb", "wandb/run/x"),
        ("wandb", "a/wandb/x"),
        ("wandb/", "a/wandb/x"),
        ("/wandb", "wandb"),
        ("data/*.json", "data/a.json"),
        ("./data/*.json", "data/a.json"),
        ("data/**", "data/a/b"),
        ("data/**/x", "data/x"),
        ("data/**/x", "data/a/b/x"),
        ("**/x", "x"),
        ("**/x", "a/x"),
        ("**/**/x", "a/b/x"),
        ("a?c", "abc"),
        ("[ab]c", "bc"),
        ("[!ab]c", "cc"),
        ("[]]c", "]c"),
        ("[a-c]", "b"),
        ("a[b", "a[b"),
        ("a.b", "a.b"),
        ("*", "any\nname"),
        ("a**b", "axyb"),
        ("**", "any/thing"),
        ("*.bin", "caf\udce9.bin"),
    ],
)
def test_a_pattern_names_these(pattern, path):
    assert Glob(pattern).matches(path)


@pytest.mark.parametrize(
    ("pattern", "path"),
    [
        ("*.pt", "a.pth"),
        ("*.pt", "a.ptx/b"),
        ("wandb/", "wandb"),
        ("wandb", "mywandb/x"),
        ("/wandb", "a/wandb"),
        ("data/*.json", "data/a/b.json"),
        ("data/*.json", "x/data/a.json"),
        ("data/**", "data"),
        ("a?c", "a/c"),
        ("[!a]", "/"),
        ("a[!b]c", "a/c"),
        ("[ab]c", "cc"),
        ("[z-a]", "m"),
        ("a.b", "axb"),
        ("", "a"),
        ("/", "a"),
        (".", "a"),
    ],
)
def test_a_pattern_does_not_name_these(pattern, path):
    assert not Glob(pattern).matches(path)


@pytest.mark.parametrize(
    ("pattern", "below"),
    [
        ("data/x.txt", "data/x.txt"),
        ("data/*/x", "data"),
        ("*.pt", ""),
        ("x", ""),
        ("/x", "x"),
        ("**/x", ""),
        ("a/b/", "a/b"),
    ],
)
def test_it_is_known_where_matches_can_lie(pattern, below):
    assert Glob(pattern).below == below
