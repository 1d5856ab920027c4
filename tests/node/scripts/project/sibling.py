VALUE = "from a sibling"
