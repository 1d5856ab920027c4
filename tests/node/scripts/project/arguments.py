import argparse

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, required=True)
print(parser.parse_args())
