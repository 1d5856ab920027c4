"""Messages between agents and the coordinator: message types, frames, and network interfaces."""
