"""The files of the page: what they may do, that they fit each other, and that one can read them. Needs no browser."""

import re

import pytest

from launcher.apps.board.bundle import PAGE, PAGE_FILES

MODULES = {
    path.relative_to(PAGE).as_posix(): path.read_text() for path in PAGE.rglob("*.js") if "vendor" not in path.parts
}
IMPORT = re.compile(r'^import \{ ([^}]+) \} from "([^"]+)";$', re.MULTILINE)
DECLARED = re.compile(r"^(?:export )?(?:async )?(?:function|const|let|class) (\w+)", re.MULTILINE)
EXPORTED = re.compile(r"^export (?:async )?(?:function|const|let|class) (\w+)", re.MULTILINE)
MARKUP = re.compile(
    r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function|setAttribute\(\"style|DOMParser"
)
ELSEWHERE = re.compile(r"(?:https?:)?//(?!www\.w3\.org/2000/svg)[a-z0-9]+\.[a-z]", re.IGNORECASE)
LEGIBLE = 4.5  # the contrast that WCAG AA asks of text
MOST_BYTES = 250_000  # of all that a browser loads before it asks for runs


def imports_of(name):
    """[(names, module)] as paths below the page's folder."""
    folder = (PAGE / name).parent
    return [
        (names.split(", "), (folder / where).resolve().relative_to(PAGE).as_posix())
        for names, where in IMPORT.findall(MODULES[name])
    ]


@pytest.mark.parametrize("name", sorted(MODULES))
def test_a_module_imports_what_there_is(name):
    for names, module in imports_of(name):
        assert set(names) <= set(EXPORTED.findall(MODULES[module])), f"{name} imports from {module}"
    assert MODULES[name].count("\nimport ") + MODULES[name].startswith("import ") == len(imports_of(name))


def test_modules_can_be_put_into_one():
    """An exported page has all of them in one script: no circles, and a name is declared once in all of them."""
    left = {name: {module for _, module in imports_of(name)} for name in MODULES}
    while ready := [name for name, needed in left.items() if not needed & set(left)]:
        for name in ready:
            del left[name]
    assert not left, "these import each other"
    names = [name for text in MODULES.values() for name in DECLARED.findall(text)]
    assert sorted(names) == sorted(set(names))


@pytest.mark.parametrize("name", sorted(MODULES))
def test_what_runs_say_is_never_markup(name):
    assert not MARKUP.findall(MODULES[name])
    assert len(MODULES[name].splitlines()) <= 300


def test_nothing_is_inline_or_from_elsewhere():
    html = (PAGE / "index.html").read_text()
    assert not re.findall(r"<style|\sstyle=|\son\w+=|<script>", html)
    files = [html, *MODULES.values(), *(path.read_text() for path in PAGE.glob("*.css"))]
    assert not [found for text in files for found in ELSEWHERE.findall(text)]
    for reference in re.findall(r'(?:src|href)="(page/[^"]+)"', html):
        assert reference.removeprefix("page/") in PAGE_FILES


def test_the_page_is_small():
    assert sum(path.stat().st_size for path in PAGE.rglob("*") if path.is_file()) < MOST_BYTES


def test_what_others_wrote_says_so():
    text = (PAGE / "vendor" / "README.md").read_text()
    script = (PAGE / "vendor" / "uplot" / "uPlot.iife.min.js").read_text()
    version = re.search(r"\(v([\d.]+)\)", script[:200])
    assert version is not None
    assert version[1] in text
    assert "MIT" in (PAGE / "vendor" / "uplot" / "LICENSE").read_text()[:200]


def palettes():
    """{theme: {name: colour}}; the dark one stands twice, for who chose it and for whose system has it."""
    css = (PAGE / "base.css").read_text()
    blocks = re.findall(r"(:root[^{]*)\{([^{}]*)\}", css)
    return {
        f"{at} {head.strip()}": dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})", body))
        for at, (head, body) in enumerate(blocks)
        if "--muted" in body
    }


def luminance(colour):
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one, other):
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def test_text_stands_out_from_what_is_behind_it():
    themes = palettes()
    assert len(themes) == 3
    assert len({tuple(sorted(colours.items())) for colours in themes.values()}) == 2
    pairs = [
        (front, back)
        for front in ("text", "muted", "accent", "good", "warn", "bad")
        for back in ("back", "surface", "raised")
    ]
    pairs += [("accent", "soft"), ("text", "soft"), ("text", "mark"), ("on-accent", "accent"), ("back", "text")]
    dim = {
        (theme, *pair): round(contrast(colours[pair[0]], colours[pair[1]]), 2)
        for theme, colours in themes.items()
        for pair in pairs
        if contrast(colours[pair[0]], colours[pair[1]]) < LEGIBLE
    }
    assert not dim
