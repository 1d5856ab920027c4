"""What agents and the coordinator send each other: messages, frames, and the interface they use."""
