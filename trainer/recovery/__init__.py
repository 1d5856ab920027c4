"""Let surviving ranks continue in place, in their running processes, when another rank is replaced."""
