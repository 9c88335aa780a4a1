"""Other libraries as peers of `katt sweep`: each runs in a process of its own; docs/peers.md has the protocol."""
