import signal
import sys

print("up", *sys.argv[1:])
while True:
    signal.pause()
