"""What makes the pages: docs/site."""

import sys

import pytest
from blocks import ROOT

sys.path.insert(0, str(ROOT / "docs/site"))

import doxygen_filter
import python_api
from links import Rewriter


def test_literal_lines_lists_and_constraints_reach_doxygen():
    header = """
/// A product:
///
///   C = A · Bᵀ   with <a, b>
///
/// and no more.
namespace katt::x {
struct Args {
  ConstTensorRef<4> q, k;  ///< (b, s)
  Shape shape{.batch = 1, .seq = 2};
};
template <class T>
requires is_element_v<T> && (sizeof(T) == 2) void f(T value);
}  // namespace katt::x
"""
    text = doxygen_filter.filtered(header, "/tree/src/ops/x/x.hpp")
    assert "/// ~~~{.unparsed}\n///   C = A · Bᵀ   with <a, b>\n/// ~~~" in text
    assert "/// @addtogroup ops_x_x_hpp" in text and text.count("/// @{") == text.count("/// @}") == 1
    assert "/// (b, s)\n  ConstTensorRef<4> q;\n  /// (b, s)\n  ConstTensorRef<4> k;" in text
    assert "Shape shape{};" in text and "requires" not in text and "void f(T value);" in text


@pytest.mark.parametrize(("text", "page"), [
    ("[a](measuring.md#the-error-rule)", "[a](measuring.md#the-error-rule)"),
    ("[a](../results/README.md)", "[a](results/README.md)"),
    ("[a](../results)", "[a](results/README.md)"),
    ("[a](../src/op/variants.hpp)", "[a](https://host/tree/src/op/variants.hpp)"),
    ("![a](architecture.svg)", "![a](architecture.svg)"),
    ("`[a](b.md)` and <!-- katt: FILE x -->2.4<!-- /katt -->", "`[a](b.md)` and 2.4"),
    ("    [a](../src/op/variants.hpp)", "    [a](../src/op/variants.hpp)"),
    ("[a](https://arxiv.org/abs/1)", "[a](https://arxiv.org/abs/1)"),
])
def test_links_lead_to_pages_or_to_the_source(text, page):
    assert Rewriter(ROOT, "https://host/tree/").rewritten("docs/gpu.md", text).strip("\n") == page.strip("\n")


def test_links_to_sources_are_text_without_an_address():
    assert Rewriter(ROOT, "").rewritten("docs/gpu.md", "[the table](../src/op/variants.hpp)") == "the table"


def test_docstrings_become_lists_and_literal_lines():
    made = python_api.rst("Sums x.\n\nx: the array,\n    of rows.\nArrays:\n    a (n,)\n\n`katt` *says* so.")
    assert "* **x**: the array, of rows." in made and "::\n\n    a (n,)" in made
    assert "``katt`` \\*says\\* so." in made


def test_a_name_without_a_docstring_is_told():
    def half(x, scale=1.0):
        """Halves x."""

    def silent(x):
        pass

    class Open:
        """A class."""

        def method(self):
            pass

    found = [
        line
        for thing in (half, silent, Open)
        for line in python_api.lacks("katt", python_api.described(thing.__name__, thing))
    ]
    assert found == ["katt.half: its docstring does not name scale", "katt.silent: has no docstring",
                     "katt.silent: its docstring does not name x", "katt.Open.method: has no docstring"]


def test_public_headers_exist():
    import cpp_api

    headers = [header for page in cpp_api.pages() for header in page["headers"]]
    assert len(headers) == len(set(headers)) > 40
    assert all(cpp_api.path_of(header).exists() for header in headers)
