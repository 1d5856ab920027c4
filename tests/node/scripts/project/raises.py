import sys


class ShapeError(ValueError):
    pass


def step(shape):
    try:
        return {}[shape]
    except KeyError as error:
        raise ShapeError(f"bad shape {shape}\nsecond line") from error


def outer():
    step((3, 4))


if sys.argv[1] == "hook":
    sys.excepthook = lambda kind, error, trace: print(kind, error, trace.tb_frame.f_code.co_filename)
if sys.argv[1] == "bad hook":
    sys.excepthook = lambda kind, error, trace: sys.exit(5)
if sys.argv[1] == "import":
    import no_such_module_anywhere  # noqa: F401
if sys.argv[1] == "group":
    raise ExceptionGroup("two", [ValueError("one"), OSError("other")])
if sys.argv[1] == "deep":
    sys.setrecursionlimit(100)

    def deeper():
        deeper()

    deeper()
outer()
