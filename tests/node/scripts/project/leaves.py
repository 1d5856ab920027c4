import os
import signal
import sys

match sys.argv[1]:
    case "none":
        sys.exit()
    case "number":
        sys.exit(7)
    case "text":
        sys.exit("no data there")
    case "object":
        raise SystemExit([1, 2])
    case "at once":
        print("said", end="", flush=True)
        os._exit(9)
    case "signal":
        os.kill(os.getpid(), signal.SIGSEGV)
    case "terminated":
        os.kill(os.getpid(), signal.SIGTERM)
    case "interrupted":
        os.kill(os.getpid(), signal.SIGINT)
        signal.pause()
    case "pipe":
        try:
            read, write = os.pipe()
            os.close(read)
            os.write(write, b"x")
        except BrokenPipeError as error:
            sys.exit(str(error))
