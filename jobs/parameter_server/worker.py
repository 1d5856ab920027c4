"""A worker of the parameter server: it pulls weights and pushes a gradient of them, and keeps no state."""

import argparse
import http.client
import json
import os
import time

import torch
from torch import nn

import launcher
from jobs.parameter_server.master import pack, unpack
from jobs.parameter_server.mlp import draw, new_mlp

_PAUSE_S = 0.1  # until the next attempt to reach the master
_PATIENCE_S = 10.0  # for its answer, before it is asked again


def main() -> None:
    """Pull weights and push gradients of them, until killed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch-size", type=int, default=64, help="samples of each gradient")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    rank = int(os.environ["LAUNCH_ROLE_RANK"])
    net = new_mlp(args.seed)
    report = open(os.environ["LAUNCH_PROGRESS"], "w", buffering=1)
    pushes = 0
    while True:
        master = http.client.HTTPConnection(launcher.peers("master")[0], timeout=_PATIENCE_S)
        try:
            body = b""
            while True:
                report.write(json.dumps({"step": pushes}) + "\n")
                master.request("POST", "/", body)
                pulled = unpack(master.getresponse().read())
                nn.utils.vector_to_parameters(pulled["weights"], net.parameters())
                samples, classes = draw(args.seed, rank, pulled["step"], args.batch_size)
                loss = nn.functional.cross_entropy(net(samples), classes)
                gradient = torch.cat([one.flatten() for one in torch.autograd.grad(loss, list(net.parameters()))])
                body = pack(
                    {"step": pulled["step"], "samples": len(samples), "loss": loss.item(), "gradient": gradient}
                )
                pushes += 1
        except (OSError, http.client.HTTPException):
            time.sleep(_PAUSE_S)
        finally:
            master.close()


if __name__ == "__main__":
    main()
