"""A shell lets its background jobs ignore SIGINT, and so would the programs that tests interrupt."""

import signal

signal.signal(signal.SIGINT, signal.default_int_handler)
