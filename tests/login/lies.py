"""Generate false values for each field of a message."""

WORDS = (
    "../../../../../../tmp/pwned", "/tmp/pwned/x", "a\0b", "\x1b]0;pwned\x07\u202e\n", "",
    {"times": 1 << 22, "of": "x"}, "--", "$(touch canary)",
)  # fmt: skip
NUMBERS = (-1, 0, 256, 1 << 62, 1 << 70, 1e308, -1e308)


def fields(value, at=()):
    """Every place in an answer, with values that are not what it says."""
    match value:
        case bool():
            wrong = [not value, "x", None]
        case str():
            wrong = [*WORDS, 7, None]
        case int() | float():
            wrong = [*NUMBERS, "x", None]
        case None:
            wrong = ["x", 1 << 70, []]
        case list():
            wrong = [[], None, "x", {"deep": 5000}]
            if value:
                wrong.append({"times": 100_000, "of": value[:1]})
            for index, one in enumerate(value):
                yield from fields(one, (*at, index))
        case dict():
            wrong = [{}, None, [], "x"]
            for name, one in value.items():
                yield from fields(one, (*at, name))
    yield from ((at, one) for one in wrong)
