"""Programs of a run with roles, and their parts: a learner, which asks the others whether they are there; a server."""

STEPS = """
import json, os, pathlib, time
wire = open(os.environ["LAUNCH_PROGRESS"], "w", buffering=1)
step = 0
while not pathlib.Path("enough").exists():
    step += 1
    wire.write(json.dumps({"step": step}) + "\\n")
    time.sleep(0.05)
"""
HEALTH = """
import http.server
class Health(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
"""
_ASKS = """
import json, os, socket, time, urllib.request
names = ("RANK", "WORLD_SIZE", "LAUNCH_ROLE", "LAUNCH_ROLE_RANK", "LAUNCH_ADDR_ACTORS", "LAUNCH_ADDR_REWARD")
said = {name: os.environ[name] for name in names}
others = {"host": socket.gethostname(), "gpus": os.environ.get("CUDA_VISIBLE_DEVICES")}
print(json.dumps(said | others), flush=True)
for address in (said["LAUNCH_ADDR_REWARD"], *said["LAUNCH_ADDR_ACTORS"].split(",")):
    while True:
        try:
            print(address, "says", urllib.request.urlopen(f"http://{address}/health").status, flush=True)
            break
        except OSError:
            time.sleep(0.1)
"""
LEARNER = _ASKS + STEPS
SERVER = (
    HEALTH
    + """
import json, os, socket
names = ("RANK", "WORLD_SIZE", "LAUNCH_ROLE", "LAUNCH_ROLE_RANK", "LAUNCH_PORT")
others = {"host": socket.gethostname(), "gpus": os.environ.get("CUDA_VISIBLE_DEVICES")}
print(json.dumps({name: os.environ[name] for name in names} | others), flush=True)
http.server.HTTPServer(("", int(os.environ["LAUNCH_PORT"])), Health).serve_forever()
"""
)


def place_of(state):
    return state.get("attempt", 0), state.get("generation", 0), state.get("step") or 0


def is_further(state, before):
    """Return whether the main role has worked since, in whichever attempt and generation."""
    attempt, generation, step = place_of(before)
    return state.get("state") == "running" and place_of(state) >= (attempt, generation, step + 3)
