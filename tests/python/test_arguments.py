"""Every public function with wrong arguments, one at a time: ValueError, in one line that names the argument."""

import inspect
import math

import numpy
import pytest
from conftest import EXTENTS, array, ids, right_tensor

katt = pytest.importorskip("katt")
from katt._functions import PLANS  # noqa: E402
from katt._schema import chosen  # noqa: E402


def made_calls() -> dict[str, dict]:
    """A right call of every function that is made from a schema."""
    found = {}
    for plan in chosen(PLANS):
        tensors = {tensor.name: tensor for tensor in [*plan.inputs, *plan.outputs]}
        found[plan.name] = {
            **{name: right_tensor(tensors[name]) for name in plan.names + plan.given},
            **{name: EXTENTS.get(name, 16) for name in plan.extents},
            **dict(plan.numbers),
            **dict.fromkeys(plan.flags, False),
            "variant": "auto",
            **({"tile": None} if plan.has_tiles else {}),
        }
    return found


def calls() -> dict[str, dict]:
    """A right call of every operator: function and arguments."""
    x, vector, heads = array(2, 3, 16), array(16), array(1, 2, 4, 8)
    lse, slopes = array(1, 2, 4), array(2)
    packed = katt.ternary_pack(array(8, 16))
    attention = dict(q=heads, k=heads, v=heads, causal=True, window=(-1, -1), bias=array(1, 1, 4, 4), softcap=0.0,
                     scale=0.5, alibi_slopes=slopes, kv_lengths=ids(1) + 4, block_mask=(numpy.ones((1, 1), bool), 64),
                     variant="auto", tile=None)  # fmt: skip
    scaling = dict(factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=64)
    return made_calls() | {
        "attention": attention | {"return_lse": False},
        "attention_backward": {"dout": heads, "out": heads, "lse": lse} | attention,
        "rope_cache": {"rows": 8, "head_dim": 8, "theta": 1e4, "scaling": scaling, "angles": "f64", "like": x},
        "rmsnorm_quantized": {"x": x, "weight": vector, "eps": 1e-5, "variant": "auto"},
        "ternary_pack": {"weight": array(8, 16), "weights_per_byte": 4},
        "ternary_linear": {"x": x, "weight": packed, "variant": "auto"},
        "ternary_linear_backward": {"dout": array(2, 3, 8), "x": x, "weight": packed, "variant": "auto"},
        "alibi_slopes": {"heads": 4},
        "set_num_threads": {"threads": 1},
    }  # fmt: skip


class NoArray:
    """Looks like an array, and is none."""

    shape = (2, 3, 16)
    dtype = "float32"


NO_ARRAYS = ["text", 3, [[1.0, 2.0]], {"a": 1}, NoArray(), object(), math.nan]
# Values that no number may be: other types, and numbers of another kind.
NO_NUMBERS = ["text", [1.0], None, object(), 1j, numpy.zeros(3)]
WRONG = {
    "eps": [math.nan, math.inf, -1.0, 1e300, *NO_NUMBERS],
    "scale": [math.nan, math.inf, -math.inf, 1e300, *(no for no in NO_NUMBERS if no is not None)],
    "softcap": [math.nan, math.inf, -1.0, *NO_NUMBERS],
    "theta": [math.nan, math.inf, 0.0, -1.0, *NO_NUMBERS],
    "dloss": NO_NUMBERS,
    "causal": ["no", 2, None, 0.5],
    "interleaved": ["no", 2, None, 0.5],
    "window": [3, (1,), (1, 2, 3), ("a", 0), (0.5, 0), (2**70, 0), (-2, 0), (0, numpy.int64(-7)), None, "ab"],
    "block_mask": [3, numpy.ones((1, 1), bool), (numpy.ones((1, 1), bool), 0), (numpy.ones((1, 1), bool), "a"),
                   (numpy.ones((7, 1), bool), 64), (None, -1, 2), ("a", 64)],
    "first_position": [0.5, "a", None, 2**70],
    "ignore_index": [0.5, "a", None, 2**70],
    "variant": ["nonsense", "", None, 3, "au\nto", b"auto"],
    "tile": ["64x64", (1,), (-1, -1), 1.5, (0.5, 0.5), (2**40, 2), [None, 1], (1, 2, 3, 4)],
    "rows": [-1, 0.5, "a", None, 2**70],
    "head_dim": [-1, 0, 7, 0.5, "a", None, 2**70],
    "scaling": [3, [1, 2], {"factor": 8.0}, *({"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                "original_max_position_embeddings": 64} | {name: value} for name in ("factor", "low_freq_factor")
                for value in (math.nan, -1.0, "a", None))],
    "angles": ["f16", None, 3],
    "vocab": [-1, 0.5, "a", None, 2**70],
    "weights_per_byte": [3, 0, -1, "a", None, 2**70],
    "heads": [-1, 0.5, "a", None, 2**70],
    "threads": [0, -1, 2**20, 2**40, 2**70, 0.5, "a", None],
}  # fmt: skip
# The name in a line, when it is not the argument's.
LOOSE = {"head_dim": "", "weight": "", "ids": "", "scaling": "scaling|factor"}
OPTIONAL = {"bias", "alibi_slopes", "kv_lengths", "like"} | {name for plan in chosen(PLANS) for name in plan.optional}


def wrong_arrays(name: str, right) -> list:
    """Values that are not the expected array."""
    if name == "like":  # of which only the library matters
        return NO_ARRAYS
    wrong = [*NO_ARRAYS, right.astype("complex64"), right.astype(object), numpy.array(["a"]), right.astype("S4"),
             numpy.zeros(right.shape, [("a", "f4")]), numpy.zeros((1,) * 9, right.dtype), right.astype(numpy.float64),
             right.astype(numpy.int32)]  # fmt: skip
    return wrong + ([] if name in OPTIONAL else [None])


def cases() -> list:
    return list(wrong_calls())


def wrong_calls():
    for function, right in calls().items():
        for name, value in right.items():
            if isinstance(value, bool) and name not in WRONG:  # a choice: anything is true or false
                continue
            if name == "weight" and not hasattr(value, "astype"):
                wrong = [*NO_ARRAYS, None, array(8, 16)]
            else:
                wrong = WRONG[name] if name in WRONG else wrong_arrays(name, value)
            for number, bad in enumerate(wrong):
                yield pytest.param(function, right | {name: bad}, name, id=f"{function}-{name}-{number}")


def test_every_operator_is_here():
    operators = {name for name in katt.__all__ if inspect.isfunction(getattr(katt, name))}
    assert operators == set(calls()) | {"get_include", "get_num_threads", "referee", "stream", "sweep", "threads"}


@pytest.mark.parametrize("function", calls())
def test_the_right_call(function):
    before = katt.get_num_threads()
    getattr(katt, function)(**calls()[function])
    katt.set_num_threads(before)


@pytest.mark.parametrize(("function", "arguments", "name"), cases())
def test_wrong_arguments(function, arguments, name):
    if name == "tile" and isinstance(arguments["tile"], (tuple, list)):
        arguments["variant"] = "fused" if "mlp" in function else "flash"  # "auto" has none
    with pytest.raises(ValueError, match=LOOSE.get(name, name)) as error:
        getattr(katt, function)(**arguments)
    text = str(error.value)
    assert "\n" not in text and len(text) < 400


def test_shapes_that_do_not_fit():
    x, heads = array(3, 16), array(1, 2, 4, 8)
    for function, arguments in (
        (katt.attention, (array(4, 8), heads, heads)), (katt.attention, (array(), heads, heads)),
        (katt.attention, (array(1, 2, 4, 0),) * 3), (katt.attention, (heads, array(1, 3, 4, 8), heads)),
        (katt.linear, (x, array(16))), (katt.linear, (x, array())), (katt.linear, (array(), array(8, 16))),
        (katt.linear, (x, array(8, 15))), (katt.embedding, (ids(2), array(8))), (katt.softmax, (array(),)),
        (katt.embedding_backward, (array(), ids(1), 8)), (katt.embedding_backward, (x, ids(2), 8)),
        (katt.cross_entropy, (array(), ids(1))), (katt.cross_entropy, (x, ids(2))), (katt.ternary_pack, (array(16),)),
        (katt.rmsnorm, (x, array(15))), (katt.rmsnorm_quantized, (array(), array(1))),
        (katt.layernorm, (x, array(16), array(15))),
        (katt.swiglu, (x, array(4, 16))), (katt.swiglu_mlp, (x, array(8, 16), array(8, 15), array(16, 8))),
        (katt.rope, (heads, array(8, 6))), (katt.convert_dtype, (x, array(3, 15))),
    ):  # fmt: skip
        with pytest.raises(ValueError) as error:
            function(*arguments)
        assert "\n" not in str(error.value) and str(error.value).count(":") >= 1


def test_files_and_sweeps(tmp_path):
    quick = {"tokens": 8, "vocab": 64, "progress": False}
    for arguments in (
        {"seq": None}, {"seq": object()}, {"dtype": numpy.float64}, {"dtype": object}, {"output": 3},
        {"output": None, "seq": [[None]]},
    ):  # fmt: skip
        with pytest.raises(ValueError, match="seq|dtype|output"):
            katt.sweep("softmax", **quick | arguments)
    for peers in (3, "mine", {"mine": 3}):
        with pytest.raises(ValueError, match="peers"):
            katt.sweep("softmax", peers=peers, **quick)
    with pytest.raises(ValueError, match="None"):
        katt.sweep(None, **quick)
    for path in (3, None, tmp_path, tmp_path / "none.h5"):
        with pytest.raises(ValueError):
            katt.open(path)
    with pytest.raises(ValueError, match="open: no path"):
        katt.open()


def test_streams():
    for handle in ("text", -1, None, 1.5):
        with pytest.raises(ValueError, match="stream: holds"), katt.stream(handle):
            pass


def test_objects_say_what_they_are():
    packed = katt.ternary_pack(array(8, 16))
    assert repr(packed) == f"TernaryWeight(8 x 16, 4 weights a byte, {packed.nbytes} bytes)"
