import multiprocessing

from .inner.deep import DEPTH


def deep(number):
    return number * DEPTH


if __name__ == "__main__":
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        print(pool.map(deep, range(3)))
