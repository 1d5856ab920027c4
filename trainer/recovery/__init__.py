"""Let surviving ranks continue in place when another rank is replaced."""
