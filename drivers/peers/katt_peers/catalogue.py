"""The peers by name. A library is imported when a peer of it is opened."""

import importlib
from dataclasses import dataclass

from .refusal import Refusal


@dataclass(frozen=True)
class Peer:
    """A peer: its description, and the function `module:attribute` that opens a case for it."""

    description: str
    library: str  # a Python module; "": the opener loads its own
    opener: str


PEERS = {
    "torch_flash": Peer("PyTorch attention, its flash kernel", "torch", "torch_peers:open_flash"),
    "torch_math": Peer("PyTorch attention, its unfused form", "torch", "torch_peers:open_math"),
    "torch_efficient": Peer("PyTorch attention, its memory-efficient kernel", "torch", "torch_peers:open_efficient"),
    "torch_cudnn": Peer("PyTorch attention, cuDNN's kernel", "torch", "torch_peers:open_cudnn"),
    "torch_flex": Peer("PyTorch flex_attention, on a GPU flash in Triton", "torch", "torch_peers:open_flex"),
    "torch_eager": Peer("PyTorch operators one by one", "torch", "torch_peers:open_eager"),
    "torch_compile": Peer("PyTorch operators through torch.compile", "torch", "torch_peers:open_compiled"),
    "onednn": Peer("oneDNN primitives on row-major tensors", "", "onednn:OneDnnCase"),
}


def open_case(name, case):
    """Opens a case for a peer; raises Refusal when it cannot."""
    peer = PEERS.get(name)
    if peer is None:
        raise Refusal(f"peer {name} is unknown; there are {', '.join(PEERS)}")
    try:
        if peer.library:
            importlib.import_module(peer.library)
    except ImportError as error:
        raise Refusal(f"peer {peer.library} is not installed: scripts/peers installs it ({error})") from error
    module, function = peer.opener.split(":")
    return getattr(importlib.import_module(f".{module}", __package__), function)(case)
