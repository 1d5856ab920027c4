"""The metrics of runs as the board draws them."""
