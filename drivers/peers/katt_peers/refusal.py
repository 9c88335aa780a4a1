"""The exception of a peer for a case that it cannot compute; the reason goes into the row."""


class Refusal(Exception):
    """A case that this peer cannot compute; the message is the reason."""
