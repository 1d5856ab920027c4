import sys

sys.exit("left at import")
