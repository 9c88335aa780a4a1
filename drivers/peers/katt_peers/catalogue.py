"""The peers by name. A library is imported when a peer of it is opened."""

import importlib
from dataclasses import dataclass

from .refusal import Refusal


@dataclass(frozen=True)
class Peer:
    """A peer. A function of this package is named `module:attribute`."""

    description: str
    library: str  # a Python module; "": the opener loads its own
    opener: str  # opens a case
    operators: str  # "torch:a,b": those with a or b in bench/torch_peer.py
    needs: str = ""  # raises Refusal on a machine without what the peer needs


# CMake reads the names, one a line.
PEERS = {
    "torch_flash": Peer("PyTorch attention, its flash kernel", "torch", "torch_peers:open_flash", "torch:open_flash"),
    "torch_math": Peer("PyTorch attention, its unfused form", "torch", "torch_peers:open_math", "torch:open_math"),
    "torch_efficient": Peer("PyTorch attention, its memory-efficient kernel", "torch", "torch_peers:open_efficient",
                            "torch:open_efficient", "needs:cuda"),
    "torch_cudnn": Peer("PyTorch attention, cuDNN's kernel", "torch", "torch_peers:open_cudnn", "torch:open_cudnn",
                        "needs:cuda"),
    "torch_flex": Peer("PyTorch flex_attention, compiled", "torch", "torch_peers:open_flex", "torch:open_flex",
                       "needs:compiler"),
    "torch_flex_eager": Peer("PyTorch flex_attention, not compiled", "torch", "torch_peers:open_flex_eager",
                             "torch:open_flex_eager"),
    "torch_eager": Peer("PyTorch operators one by one", "torch", "torch_peers:open_eager", "torch:compute,open_eager"),
    "torch_compile": Peer("PyTorch operators through torch.compile", "torch", "torch_peers:open_compiled",
                          "torch:compute,open_eager", "needs:compiler"),
    "zentorch": Peer("PyTorch operators through AMD's zentorch", "zentorch", "torch_peers:open_zentorch",
                     "torch:compute,open_zentorch"),
    "onednn": Peer("oneDNN primitives, attention by its graph", "", "onednn:open_steps", "onednn:steps", "onednn:loaded"),
    "onednn_training": Peer("oneDNN attention as in training's forward pass", "", "onednn:open_training",
                            "onednn:training_steps", "onednn:loaded"),
}  # fmt: skip


def attribute(path):
    module, name = path.split(":")
    return getattr(importlib.import_module(f".{module}", __package__), name)


def require(name):
    """The peer of that name; raises Refusal when it is unknown, or its library cannot be had on this machine."""
    peer = PEERS.get(name)
    if peer is None:
        raise Refusal(f"peer {name} is unknown; there are {', '.join(PEERS)}")
    try:
        if peer.library:
            importlib.import_module(peer.library)
    except ModuleNotFoundError as error:
        raise Refusal(f"peer {peer.library} is not installed: scripts/peers installs it ({error})") from error
    except Exception as error:  # a library for other versions, or for another machine
        raise Refusal(f"{peer.library} cannot be loaded: {' '.join(str(error).split())}") from error
    if peer.needs:
        attribute(peer.needs)()
    return peer


def open_case(name, case):
    """Opens a case for a peer; raises Refusal when it cannot."""
    return attribute(require(name).opener)(case)
