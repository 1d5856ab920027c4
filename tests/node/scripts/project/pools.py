import multiprocessing
import sys

print("top of", __name__)


def square(number):
    return number * number


class Fails:
    def __call__(self):
        raise ValueError("in the child")


if __name__ == "__main__":
    with multiprocessing.get_context(sys.argv[1]).Pool(1) as pool:
        print(pool.map(square, range(5)))
    child = multiprocessing.get_context(sys.argv[1]).Process(target=sys.exit, args=(3,))
    child.start()
    child.join()
    print(child.exitcode)
