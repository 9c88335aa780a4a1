"""katt-peers NAME: answers the requests of a sweep as the peer NAME. katt-peers --list names the peers."""

import sys

from .catalogue import PEERS, open_case
from .server import Server, private_lines


def main():
    arguments = sys.argv[1:]
    if arguments == ["--list"]:
        for name, peer in PEERS.items():
            print(f"{name:<15}{peer.description}")
        return 0
    if len(arguments) != 1:
        print("usage: katt-peers NAME | --list", file=sys.stderr)
        return 2
    requests, replies = private_lines()
    Server(lambda case: open_case(arguments[0], case)).serve(requests, replies)
    return 0


if __name__ == "__main__":
    sys.exit(main())
