DEPTH = 2

if __name__ == "__main__":
    raise RuntimeError("raised in a module")
