"""Layer normalisation by oneDNN."""

from katt_peers.onednn import normalisation


def steps(library, case, t):
    return normalisation(library, case, t)
