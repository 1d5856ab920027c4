"""An actor: plays the episodes that the learner asks for, with the weights that come with each request.

It keeps no state, so it may be killed at any moment; while the learner is away the actor tries the same address again.
"""

import argparse
import http.client
import json
import os
import time

import launcher
from jobs.actor_learner.cartpole import Policy, play

_PAUSE_S = 0.1  # until the next attempt to reach the learner
_PATIENCE_S = 10.0  # for its answer, before it is asked again


def main() -> None:
    """Play the episodes that the learner asks for, until killed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    seed = parser.parse_args().seed
    address, *_ = launcher.peers("learner")
    report = open(os.environ["LAUNCH_PROGRESS"], "w", buffering=1)
    played = 0
    while True:
        report.write(json.dumps({"step": played}) + "\n")
        learner = http.client.HTTPConnection(address, timeout=_PATIENCE_S)
        try:
            done = None
            while True:
                learner.request("POST", "/", json.dumps(done))
                asked = json.loads(learner.getresponse().read())
                step, number = asked["step"], asked["number"]
                episode = play(Policy(**asked["policy"]), seed, step, number)
                done = {"step": step, "number": number, "episode": episode}
                played += 1
                report.write(json.dumps({"step": played}) + "\n")
        except (OSError, http.client.HTTPException):
            time.sleep(_PAUSE_S)
        finally:
            learner.close()


if __name__ == "__main__":
    main()
