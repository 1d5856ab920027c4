"""Build queries for Slurm's clients and parse their answers. Pure: command lines and text, no process.

Fields are separated by control characters, which every Slurm since 20.11 passes through; the JSON of newer ones changes
with each release. Times are Unix times: `SLURM_TIME_FORMAT=%s` makes the clients write them (see `reach.ask`).
"""
