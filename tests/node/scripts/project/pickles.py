import pickle
from dataclasses import dataclass, fields


@dataclass(frozen=True)
class Point:
    x: int
    y: "list[int]"


if __name__ == "__main__":
    copy = pickle.loads(pickle.dumps(Point(1, [2])))
    print(copy, copy == Point(1, [2]), [field.name for field in fields(Point)], Point.__module__)
