"""`python -m trainer.serving FD`: started by `launch serve`, which has the other end of that socket."""

import sys

from trainer.serving.worker_pool import serve_server

if __name__ == "__main__":
    serve_server(int(sys.argv[1]))
