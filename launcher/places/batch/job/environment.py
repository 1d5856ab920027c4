"""An alias of `batch.environment` for the scripts of jobs that an earlier version has submitted."""

from launcher.places.batch.environment import main

if __name__ == "__main__":
    main()
