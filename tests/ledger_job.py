"""A job whose rank writes a line into a ledger: which run it is, and what it was given. It fails where a file is."""

WORK = """
import os, sys
with open(os.environ["LEDGER"], "a") as file:
    file.write(" ".join([os.environ["LAUNCH_RUN_ID"], *sys.argv[1:]]) + "\\n")
sys.exit(3 if os.path.exists(os.environ["LEDGER"] + "." + sys.argv[1]) else 0)
"""
STEPS = """\
steps:
  last: {needs: first, run: {args: [last, "${steps.first.best_checkpoint}"]}}
  first: {run: {args: [first]}}
"""


def job(ledger):
    return f"""\
name: job
run: {{script: work.py, preload: [], args: [work]}}
resources: {{ranks_per_node: 1, gpus_per_node: 0}}
recovery: {{user_error: 0}}
env: {{LEDGER: {ledger}}}
"""
