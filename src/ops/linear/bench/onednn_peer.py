"""A linear layer by oneDNN."""

from katt_peers.onednn import ONE, Matrix, product


def steps(library, case, t):
    """x · weightᵀ + bias; its gradients dout · weight, doutᵀ · x and 1 · dout."""
    if not case.backward:
        return [product(library, t["out"].view(), t["x"].view(), t["weight"].view(transposed=True),
                        t["bias"].view() if "bias" in t else None)]  # fmt: skip
    dout = t["dout"]
    products = [product(library, t["dx"].view(), dout.view(), t["weight"].view()),
             product(library, t["dweight"].view(), dout.view(transposed=True), t["x"].view())]  # fmt: skip
    if "dbias" in t:
        tokens = dout.shape[0]
        t["ones"] = Matrix(library, case.dtype, 1, tokens, ONE[case.dtype] * tokens)
        products.append(product(library, t["dbias"].view(), t["ones"].view(), dout.view()))
    return products
