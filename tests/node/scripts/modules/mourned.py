class Mourned:
    def __del__(self):
        print("taken apart")


mourned = Mourned()
