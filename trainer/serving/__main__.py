"""Start a worker pool: `python -m trainer.serving FD`, run by `launch serve` with the other end of that socket."""

import sys

from trainer.serving.worker_pool import serve_server

if __name__ == "__main__":
    serve_server(int(sys.argv[1]))
